"""Compare errors and costs of one backbone: plain, with Spatial Transformer or ET layers, augmentation, pose search.

    python benchmarks/compare.py [--device cuda] [--examples N] [--epochs N] [--threads 2] [--docs docs/benchmarks.md]

The figures are written to `--out`, results/compare/DEVICE.json by default. The tables of all files in its folder are
written to the page. Figures that `--out` already holds are not measured again. Training resumes from the checkpoints in
runs/compare. Latencies are measured in turns within one process: compare the ratios, not the times.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import costs
import torch
from consistency import put
from torch import Tensor, nn

from equivariant_transformers import data, training
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.data.progress import ProgressLines
from equivariant_transformers.data.synthesis import pose_matrix
from equivariant_transformers.experiments import results
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.training.job import find_device, make_job
from equivariant_transformers.training.optimization import Evaluation

LAYERS = ("x_shear", "hyperbolic_rotation")
AUGMENTATION = {  # poses are drawn from [-value, value]: all angles, half the ranges of Projective MNIST
    "hyperbolic_rotation": math.log(1.5) / 2,
    "dilation": math.log(2) / 4,
    "x_shear": 0.75,
    "rotation": math.pi,
}
SEARCH = ((-0.4, 0.4, 3), (-0.2, 0.2, 3))  # for each of LAYERS: first pose, last pose, number of poses
SIZES = {  # defaults per device
    "cpu": {"examples": 1500, "epochs": 7, "batch_size": 32, "validation": 500, "test": 2000},
    "cuda": {"examples": 10_000, "epochs": 40, "batch_size": 128, "validation": 5000, "test": 10_000},
}
ROUNDS = {1: 31, 128: 7}  # batch size -> number of latency measurements per network


class Augmented(nn.Module):
    """Plain `network` that is trained with random augmentation."""

    def __init__(self, network: Canonicalized) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return self.network(images)
        draws = [half * (2 * torch.rand(len(images), device=images.device) - 1) for half in AUGMENTATION.values()]
        return self.network(images, Warp.projective(pose_matrix(torch.stack(draws, -1), tuple(AUGMENTATION))))


class Searched(nn.Module):
    """Plain `network` that is tested with its largest probabilities over a grid of poses to remove."""

    def __init__(self, network: Canonicalized) -> None:
        super().__init__()
        self.network = network
        poses = torch.cartesian_prod(*(torch.linspace(*line) for line in SEARCH))
        self.matrices = pose_matrix(-poses, LAYERS).to(next(network.parameters()).device)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            return self.network(images)
        found = []
        for some in self.matrices.split(max(1, 128 // len(images))):  # several poses of a small batch at once
            start = Warp.projective(some.repeat_interleave(len(images), 0))
            logits = self.network(images.repeat(len(some), 1, 1, 1), start)
            found.append(logits.softmax(1).unflatten(0, (len(some), -1)).amax(0))
        return torch.stack(found).amax(0)


ROWS: dict[str, dict[str, Any]] = {  # name -> fields of the config
    "nothing": {},
    "Spatial Transformer": {"layers": LAYERS, "predictor": "direct"},
    "ET, consistent": {"layers": LAYERS, "predictor": "consistent"},
    "ET, softmax": {"layers": LAYERS, "predictor": "softmax"},
    "augmentation": {},
    "search": {},
}
AROUND: dict[str, Callable[[Any], nn.Module]] = {"augmentation": Augmented, "search": Searched}


def make_config(name: str, settings: dict[str, Any]) -> training.Config:
    """Return the config of a row. Rows differ only in layers and predictor. The learning rate falls to an eighth."""
    return training.Config(
        chart="log_polar",
        examples=settings["examples"],
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr_decay=8 ** (-1 / settings["epochs"]),
        **ROWS[name],
    )


def make_network(name: str, settings: dict[str, Any], device: torch.device) -> nn.Module:
    """Return the network of a row with random weights, which do not affect its costs."""
    pixels = torch.zeros(1, 1, 64, 64, dtype=torch.uint8, device=device)
    blank = data.ImageSet(images=pixels, labels=torch.zeros(1, dtype=torch.long, device=device), name="blank")
    network = make_job(make_config(name, {**settings, "batch_size": 1}), data.Splits(blank, blank, blank)).module
    return AROUND[name](network) if name in AROUND else network


def measure_error(
    name: str, splits: data.Splits, settings: dict[str, Any], directory: Path, progress: ProgressLines
) -> dict[str, Any]:
    """Train and test the network of a row. The row `search` tests the network of the row `nothing`."""
    trained = "nothing" if name == "search" else name
    job = make_job(make_config(name, settings), splits, directory=directory / trained, name=trained)
    if name == "augmentation":
        job.module = Augmented(job.module)

    def report(at: training.Progress) -> None:
        progress(f"training, {at.name}", (at.epoch + at.step / at.steps) / at.epochs)

    (result,) = training.train([job], report=report)
    error = result.test_error
    if name == "search":
        error = Evaluation(Searched(job.module), job.test, job.config, capture=False).error()
    return {
        "test_error": None if result.failure else round(error, 3),
        "test_images": len(splits.test),
        "best_epoch": result.best_epoch,
        "parameters": sum(parameter.numel() for parameter in job.module.parameters()),
        "commit": results.commit(),
    }


def tables(folder: Path) -> str:
    """Return a markdown section with a table for each complete file of figures in `folder`."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return "\n\n".join(table(figures) for figures in found if "latency" in figures)


def table(figures: dict[str, Any]) -> str:
    settings, latency = figures["settings"], figures["latency"]
    batches = " | ".join(f"time, batch {batch}" for batch in latency)
    lines = [
        f"### {figures['device']}",
        "",
        f"| the backbone with | test error, % | parameters | {batches} | memory of a training step |",
        "|---" * (4 + len(latency)) + "|",
    ]
    for name, row in figures["rows"].items():
        times = [f"{latency[batch][name]['ratio']:.2f} ({latency[batch][name]['ms']:.1f} ms)" for batch in latency]
        used = "not measured" if row["memory_mib"] is None else f"{row['memory_mib']:.0f} MiB"
        cells = [name, show_error(row), f"{row['parameters']:,}", *times, used]
        lines.append("| " + " | ".join(cells) + " |")
    images = next(iter(figures["rows"].values()))["test_images"]
    commits = ", ".join(sorted({row["commit"] for row in figures["rows"].values()}))
    lines += [
        "",
        f"*{settings['examples']:,} training images, {settings['epochs']} epochs, batches of {settings['batch_size']} "
        f"(also for the memory); {images:,} test images, one seed, ± the 95 % interval of so many images; "
        f"torch {figures['torch']}; commit {commits}.*",
    ]
    return "\n".join(lines)


def show_error(row: dict[str, Any]) -> str:
    if row["test_error"] is None:
        return "diverged"
    share = row["test_error"] / 100
    return f"{100 * share:.1f} ± {196 * math.sqrt(share * (1 - share) / row['test_images']):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--examples", type=int, help="training images; 1,500 on a CPU and 10,000 on a GPU by default")
    parser.add_argument("--epochs", type=int, help="epochs; 7 on a CPU and 40 on a GPU by default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of CPU threads")
    parser.add_argument("--out", type=Path, help="file of figures to write; figures that it already holds are kept")
    parser.add_argument("--docs", type=Path, help="page to write the tables of all files in the folder of --out to")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device = find_device(given.device)
    chosen = {"examples": given.examples, "epochs": given.epochs}
    settings = SIZES[device.type] | {name: value for name, value in chosen.items() if value is not None}
    settings["batch_size"] = min(settings["batch_size"], settings["examples"])
    out: Path = given.out or Path("results/compare") / f"{device.type}.json"
    measure(out, settings, device)
    print(table(json.loads(out.read_text())))
    if given.docs:
        put(given.docs, "tables", tables(out.parent))


def measure(out: Path, settings: dict[str, Any], device: torch.device) -> None:
    """Measure the figures that the file `out` does not hold yet, and write them to it."""
    figures = costs.continued(out, settings, device)
    progress = ProgressLines()
    missing = [name for name in ROWS if name not in figures["rows"]]
    if missing:
        full = data.projective_mnist(examples=settings["examples"], test_copies=1, device=device, progress=progress)
        splits = data.Splits(
            full.train, *(first(settings[part], getattr(full, part)) for part in ("validation", "test"))
        )
    for name in missing:
        row = measure_error(name, splits, settings, Path("runs/compare") / out.stem, progress)
        used = costs.step_memory(partial(make_network, name, settings, device), settings["batch_size"], device)
        figures["rows"][name] = {**row, "memory_mib": used}
        save(figures, out)
    if "latency" not in figures:
        networks = {name: make_network(name, settings, device).eval() for name in ROWS}
        figures["latency"] = {
            str(batch): costs.latency(networks, costs.noise(batch, device), "nothing", rounds, progress)
            for batch, rounds in ROUNDS.items()
        }
        save(figures, out)


def save(figures: dict[str, Any], out: Path) -> None:
    with atomic_write(out) as file:
        file.write((json.dumps(figures, indent=1) + "\n").encode())


def first(count: int, images: data.ImageSet) -> data.ImageSet:
    return images.take(torch.arange(min(count, len(images))))


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, training.Stopped):
        sys.exit("stopped; the same command resumes")
