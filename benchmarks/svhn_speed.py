"""Measure images per second of training on SVHN's shapes, before and after each switch, and the loop around the steps.

    python benchmarks/svhn_speed.py [--device cuda] [--network resnet10] [--runs 1 3 6] [--profile] [--out FILE]
    python benchmarks/svhn_speed.py --records results

*steps* counts the training steps alone, *loop* whole epochs of `training.train`: data order, steps, progress,
validation and the copy of the best weights. Both count the images of all runs side by side. The pictures are noise,
which does not affect the time. On a CPU, the figures only show that the benchmark works; choose few `--images` there.
`--records` measures nothing, and lists the speed of finished runs from their files.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import step
import torch

from equivariant_transformers.data import ImageSet, Splits
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.experiments import EXPERIMENTS, results
from equivariant_transformers.training import Config, Job, Progress, train
from equivariant_transformers.training.job import find_device, make_job
from equivariant_transformers.training.optimization import Optimization

SVHN_IMAGES = 68_257
VALIDATION = 5_000
EPOCHS = 3
"""Epochs of a measurement of the loop. The first one, which prepares everything, is not counted."""


@dataclass(frozen=True)
class Setting:
    """Switches of a training step."""

    precision: str = "float32"
    compile: bool = False
    channels_last: bool = False

    @property
    def name(self) -> str:
        switches = [self.precision, "compiled" * self.compile, "channels last" * self.channels_last]
        return ", ".join(filter(None, switches))


SETTINGS = (
    Setting(),
    Setting(channels_last=True),
    Setting("bfloat16"),
    Setting("bfloat16", channels_last=True),
    Setting(compile=True),
    Setting("bfloat16", compile=True),
    Setting("bfloat16", compile=True, channels_last=True),
)


def pictures(count: int, device: torch.device) -> ImageSet:
    """Return noise in the shape of SVHN."""
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, device=device)
    labels = torch.randint(10, (count,), device=device)
    return ImageSet(images=images, labels=labels, name="noise", mean=(128.0,), std=(74.0,))


def configs(network: str) -> dict[str, Config]:
    """Return the configs of the rows of the SVHN table with this network, by kind of layers."""
    rows = {
        cell.row.partition(", ")[2]: cell.config for cell in EXPERIMENTS["svhn"].cells if cell.config.network == network
    }
    if not rows:
        raise SystemExit(f"the SVHN table has no network {network}; use resnet10, resnet18 or resnet34")
    return rows


def jobs(config: Config, setting: Setting, splits: Splits, count: int) -> list[Job]:
    """Return `count` jobs that differ in their seed."""
    switched = config.replace(
        precision=setting.precision, compile=setting.compile, epochs=EPOCHS, examples=None, dataset="svhn"
    )
    made = [make_job(switched.replace(seed=seed), splits, name=f"seed {seed}") for seed in range(count)]
    for job in made:
        if setting.channels_last:
            job.module = job.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made


def steps_per_second(made: list[Job]) -> tuple[float, list[Any]]:
    """Return the images per second of the training steps of all jobs, and the kernels of one step on a GPU."""
    runs = [Optimization(job.module, job.train, job.config, loss=job.loss) for job in made]
    repeats = min(20, len(made[0].train))
    milliseconds = step.step_ms(runs, repeats if runs[0].device.type == "cuda" else 1)
    profile = step.kernels(runs[0]) if runs[0].device.type == "cuda" else []
    return 1e3 * len(runs) * made[0].config.batch_size / milliseconds, profile


def loop_per_second(made: list[Job]) -> float:
    """Return the images per second of whole epochs of all jobs, without the first epoch."""
    ends: list[float] = []

    def report(at: Progress) -> None:
        if at.step == 0 and at.name == made[-1].name:  # the last job has finished an epoch
            ends.append(time.perf_counter())

    train(made, report=report)
    images = len(made) * len(made[0].train) * made[0].config.batch_size * (EPOCHS - 1)
    return images / (ends[-1] - ends[0]) if len(ends) == EPOCHS else math.nan


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table. The last column compares with the first setting of the same kind of layers."""
    lines = ["| layers | setting | runs | steps, images/s | loop, images/s | loop / first |", "|---" * 6 + "|"]
    for row in rows:
        base = next(other for other in rows if other["layers"] == row["layers"])
        ratio = row["loop"] / base["loop"]
        cells = [
            row["layers"],
            row["setting"],
            row["runs"],
            f"{row['steps']:,.0f}",
            f"{row['loop']:,.0f}",
            f"{ratio:.1f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def records_table(root: Path) -> str:
    """Return a markdown table of the speed of the finished runs on SVHN in `root`, by network, layers and images."""
    lines = ["| network | layers | images | runs | ms per step | images/s | commit |", "|---" * 7 + "|"]
    for record in results.load_all(root).values():
        config = record.config
        if config.dataset != "svhn" or not record.losses:
            continue
        images = config.examples or SVHN_IMAGES
        steps = images // config.batch_size * len(record.losses)
        cells = [
            config.network,
            config.predictor if config.layers else "none",
            f"{images:,}",
            record.together,
            f"{1e3 * record.seconds / steps:.1f}",
            f"{config.batch_size * steps / record.seconds:,.0f}",
            record.commit,
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines[:2], *sorted(lines[2:])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--network", default="resnet10")
    parser.add_argument(
        "--layers", nargs="+", choices=("none", "spatial", "equivariant"), default=["none", "equivariant"]
    )
    parser.add_argument("--settings", nargs="+", type=int, metavar="N", default=range(len(SETTINGS)), help="by number")
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 3], help="numbers of seeds side by side")
    parser.add_argument("--images", type=int, default=20_000, help="training images per epoch")
    parser.add_argument("--profile", action="store_true", help="print the slowest kernels of a step, on a GPU")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--records", type=Path, help="folder of result files to list; nothing is measured")
    given = parser.parse_args()
    if given.records:
        print(records_table(given.records))
        return
    device = find_device(given.device)
    validation = pictures(min(VALIDATION, given.images), device)
    splits = Splits(pictures(given.images, device), validation, validation)
    chosen = configs(given.network)
    rows: list[dict[str, Any]] = []
    for layers in given.layers:
        for setting in (SETTINGS[number] for number in given.settings):
            for count in given.runs:
                made = jobs(chosen[layers], setting, splits, count)
                speed, profile = steps_per_second(made)
                row = {"layers": layers, "setting": setting.name, "runs": count, "steps": round(speed)}
                row["loop"] = round(loop_per_second(jobs(chosen[layers], setting, splits, count)))
                rows.append(row)
                print(json.dumps(row), flush=True)
                for name, microseconds, calls in profile[:30] if given.profile else ():
                    print(f"{microseconds:8.1f} us {calls:6.1f} x {name}", flush=True)
    print(table(rows))
    if given.out:
        about = {"device": results.device_name(), "torch": torch.__version__.split("+")[0], "commit": results.commit()}
        with atomic_write(given.out) as file:
            file.write((json.dumps({**about, "network": given.network, "rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
