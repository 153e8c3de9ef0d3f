"""Compare methods that are trained on upright digits and tested on transformed ones: errors, parameters and times.

    python benchmarks/baselines.py [--device cuda] [--examples N] [--epochs N] [--only ROW ...] [--docs PAGE]

All rows have the same training images, epochs and classifier, a narrow ResNet-10. The figures are written to
`--out`, results/baselines/DEVICE.json by default; figures that it already holds are not measured again. The tables of
all files in its folder are written to the page. The row with steerable features needs escnn and is left out without it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import costs
import torch
from consistency import put
from torch import nn

from equivariant_transformers import data, models, training
from equivariant_transformers.data.affnist_set import SIZE
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.data.mnist_set import digits
from equivariant_transformers.data.progress import ProgressLines
from equivariant_transformers.data.synthesis import image_set, uniform
from equivariant_transformers.experiments import results
from equivariant_transformers.experiments.field import AFFINE, BENCHMARKS, PROJECTIVE, cells
from equivariant_transformers.experiments.paper import ST_LEARNING_RATE
from equivariant_transformers.geometry.atlas import classifier_chart
from equivariant_transformers.models import Span
from equivariant_transformers.training.job import evaluation_batch, find_device, make_job, make_loader
from equivariant_transformers.training.optimization import Evaluation

SIZES = {  # defaults per device; width: channels of the classifier
    "cpu": {"examples": 600, "epochs": 8, "batch_size": 20, "validation": 100, "test": 500, "width": 16},
    "cuda": {"examples": 50_000, "epochs": 30, "batch_size": 128, "validation": 5000, "test": 10_000, "width": 32},
}
AUGMENT = next(cell.config.augment for cell in cells(BENCHMARKS["homnist"]) if cell.config.augment)
SPANS = {  # search: a grid over the poses that disturb most, and a refinement over all
    "x_translation": Span(0.25, 3),
    "y_translation": Span(0.25, 3),
    "rotation": Span(0.8, 5),
    "dilation": Span(0.2, 1),
    "hyperbolic_rotation": Span(0.2, 1),
    "x_shear": Span(0.3, 1),
}
ROUNDS = {1: 21, 128: 5}  # batch size -> number of latency measurements per network


@dataclass(frozen=True)
class Row:
    """A method: fields of the config, and the network made from the config's own."""

    fields: dict[str, Any] = field(default_factory=dict)
    replaced: Callable[[Any, dict[str, Any]], nn.Module] | None = None
    """Function from the config's network and the settings to the network to train."""
    loss: Callable[..., Any] | None = None
    tested: Callable[[Any], nn.Module] | None = None
    """Function from the trained network to the network to test."""
    trained_as: str | None = None
    """Row whose training this row shares."""


def discrete(network: Any, settings: dict[str, Any]) -> nn.Module:
    return models.DiscretelyCanonicalized(network.backbone, size=(SIZE, SIZE), fill=network.canonicalizer.fill)


def steerable(_: Any, settings: dict[str, Any]) -> nn.Module:
    return models.SteerableCNN(fields=settings["width"] // 2)


RECIPE = {"chart": "log_polar", "predictor": "consistent", "pose_noise": 0.015}
ROWS: dict[str, Row] = {  # most informative first
    "nothing": Row(),
    "ET, projective": Row({**RECIPE, "layers": PROJECTIVE}),
    "ET, affine": Row({**RECIPE, "layers": AFFINE}),
    "augmentation": Row({"augment": AUGMENT}),
    "discrete canonicalizer": Row(replaced=discrete, loss=partial(models.prior_loss, classes=10)),
    "search": Row(tested=partial(models.PoseSearch, spans=SPANS), trained_as="nothing"),
    "Spatial Transformer": Row(
        {"chart": "log_polar", "predictor": "direct", "layers": AFFINE, "learning_rate": ST_LEARNING_RATE}
    ),
    "steerable features": Row({"learning_rate": 1e-2}, replaced=steerable),  # learns slowly at 0.002
    "ET, projective, augmentation": Row({**RECIPE, "layers": PROJECTIVE, "augment": AUGMENT}),
}


def load(settings: dict[str, Any], device: torch.device, progress: ProgressLines) -> tuple[Any, dict[str, Any]]:
    """Return the upright training and validation images, and the test sets by column."""
    options = {"examples": settings["examples"], "test_copies": 1, "device": device, "progress": progress}
    homnist, affnist = data.homnist(**options), data.affnist("centred", **options)
    base = digits()[1]
    generator = torch.Generator().manual_seed(0)
    turns = uniform(len(base.labels), [(-math.pi, math.pi)], generator)
    make = partial(
        image_set,
        base,
        pose_names=("rotation",),
        size=SIZE,
        name="MNIST",
        origin="generated from MNIST",
        normalisation=(homnist.train.mean, homnist.train.std),
        device=device,
    )
    tests = {"upright": make(0 * turns), "affNIST": affnist.test, "homNIST": homnist.test, "any angle": make(turns)}
    tests = {column: first(settings["test"], part) for column, part in tests.items()}
    return (homnist.train, first(settings["validation"], homnist.validation)), tests


def first(count: int, images: data.ImageSet) -> data.ImageSet:
    return images.take(torch.arange(min(count, len(images))))


def prepare(name: str, settings: dict[str, Any], splits: data.Splits) -> training.Job:
    """Return the job of a row: the same config, data and classifier for all rows, except for the row's own fields."""
    row = ROWS[name]
    config = training.Config(
        dataset="homnist",
        fill="black",
        keep="last",
        examples=settings["examples"],
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr_decay=0.046 ** (1 / settings["epochs"]),
        **row.fields,
    )
    wraps = classifier_chart(config.chart, (SIZE, SIZE)).periodic if config.chart else (False, False)
    classifier = partial(models.resnet10, width=settings["width"], dropout=config.dropout, wraps=wraps)
    job = make_job(config, splits, network=classifier)
    if row.replaced:
        torch.manual_seed(config.seed)
        job.module = row.replaced(job.module, settings).to(splits.train.images.device)
    if row.loss:
        job.loss = row.loss
    return job


def measure_row(
    name: str, settings: dict[str, Any], learned: Any, tests: dict[str, Any], progress: ProgressLines
) -> list[tuple[str, dict[str, Any]]]:
    """Train the network of a row, and test it in this row and in the rows that share its training."""
    job = prepare(name, settings, data.Splits(*learned, tests["upright"]))

    def report(at: training.Progress) -> None:
        progress(f"training, {name}", (at.epoch + at.step / at.steps) / at.epochs)

    (result,) = training.train([job], report=report)
    if result.failure:
        sys.exit(f"{name} diverged: {result.failure}")
    device = job.train.dataset.images.device
    found = []
    for other, row in ROWS.items():
        if other != name and row.trained_as != name:
            continue
        tested = row.tested(job.module) if row.tested else job.module
        tested = tested.to(device)
        errors = {}
        for column, part in tests.items():
            loader = make_loader(part, evaluation_batch(device))
            errors[column] = round(Evaluation(tested, loader, job.config, capture=False).error(), 3)
            progress(f"testing, {other}", len(errors) / len(tests))
        figures = {
            "errors": errors,
            "parameters": sum(parameter.numel() for parameter in job.module.parameters()),
            "training_seconds": round(sum(entry["seconds"] for entry in result.history), 1),
            "commit": results.commit(),
        }
        found.append((other, figures))
    return found


def measure_times(settings: dict[str, Any], blank: data.Splits, names: list[str], progress: ProgressLines) -> Any:
    """Measure the latency of the networks with random weights, which do not affect it; none of rows without escnn."""
    networks = {}
    for name in names:
        try:
            module = prepare(ROWS[name].trained_as or name, {**settings, "batch_size": 1}, blank).module
        except ModuleNotFoundError:
            continue
        tested = ROWS[name].tested
        networks[name] = (tested(module) if tested else module).to(blank.train.images.device).eval()
    images = {batch: torch.rand(batch, 1, SIZE, SIZE, device=blank.train.images.device) for batch in ROUNDS}
    return {
        str(batch): costs.latency(networks, images[batch], "nothing", rounds, progress)
        for batch, rounds in ROUNDS.items()
    }


def table(figures: dict[str, Any]) -> str:
    """Return the figures of one file as a markdown section."""
    settings, latency = figures["settings"], figures.get("latency", {})
    columns = next(iter(figures["rows"].values()))["errors"]
    heads = [*(f"{column}, %" for column in columns), "parameters", "training", *(f"time, batch {b}" for b in latency)]
    lines = [f"### {figures['device']}", "", "| method | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for name in ROWS:
        row = figures["rows"].get(name)
        if row is None:
            lines.append(f"| {name} | " + " | ".join(["not measured", *[""] * (len(heads) - 1)]) + " |")
            continue
        errors = [f"{error:.1f}" for error in row["errors"].values()]
        found = [latency[batch].get(name) for batch in latency]
        times = [f"{one['ratio']:.2f} ({one['ms']:.1f} ms)" if one else "not measured" for one in found]
        lines.append(
            "| "
            + " | ".join([name, *errors, f"{row['parameters']:,}", f"{row['training_seconds']:.0f} s", *times])
            + " |"
        )
    commits = ", ".join(sorted({row["commit"] for row in figures["rows"].values()}))
    lines += [
        "",
        f"*Test errors in per cent; {settings['examples']:,} training images, {settings['epochs']} epochs, batches of "
        f"{settings['batch_size']}, {settings['width']} channels; {settings['test']:,} test images per column; one "
        f"seed; torch {figures['torch']}; commit {commits}.*",
    ]
    return "\n".join(lines)


def tables(folder: Path) -> str:
    """Return the tables of all files in `folder`."""
    return "\n\n".join(table(json.loads(path.read_text())) for path in sorted(folder.glob("*.json")))


def save(figures: dict[str, Any], out: Path) -> None:
    with atomic_write(out) as file:
        file.write((json.dumps(figures, indent=1) + "\n").encode())


def measure(out: Path, settings: dict[str, Any], device: torch.device, names: list[str]) -> None:
    """Measure the rows `names` that the file `out` does not hold yet, and write them to it."""
    figures = costs.continued(out, settings, device)
    progress = ProgressLines()
    missing = [name for name in names if name not in figures["rows"]]
    if missing:
        learned, tests = load(settings, device, progress)
        for name in dict.fromkeys(ROWS[name].trained_as or name for name in missing):
            try:
                figures["rows"] |= dict(measure_row(name, settings, learned, tests, progress))
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            figures.pop("latency", None)
            save(figures, out)
    if "latency" not in figures and "nothing" in figures["rows"]:
        pixels = torch.zeros(1, 1, SIZE, SIZE, dtype=torch.uint8, device=device)
        blank = data.ImageSet(images=pixels, labels=torch.zeros(1, dtype=torch.long, device=device), name="blank")
        measured = [name for name in ROWS if name in figures["rows"]]
        figures["latency"] = measure_times(settings, data.Splits(blank, blank, blank), measured, progress)
        save(figures, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--examples", type=int, help="training images")
    parser.add_argument("--epochs", type=int, help="epochs, the same for all rows")
    parser.add_argument("--test", type=int, help="test images per column")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), help="rows to measure")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of CPU threads")
    parser.add_argument("--out", type=Path, help="file of figures to write; figures that it already holds are kept")
    parser.add_argument("--docs", type=Path, help="page to write the tables of all files in the folder of --out to")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device = find_device(given.device)
    chosen = {name: getattr(given, name) for name in ("examples", "epochs", "test")}
    settings = SIZES[device.type] | {name: value for name, value in chosen.items() if value is not None}
    settings["batch_size"] = min(settings["batch_size"], settings["examples"])
    out: Path = given.out or Path("results/baselines") / f"{device.type}.json"
    measure(out, settings, device, given.only)
    if not out.exists():
        sys.exit("nothing was measured")
    print(table(json.loads(out.read_text())))
    if given.docs:
        put(given.docs, "baselines", tables(out.parent))


if __name__ == "__main__":
    main()
