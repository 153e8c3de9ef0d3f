"""Measure the self-consistency of layers with random or trained weights on MNIST digits: slope, rms and median error.

    python benchmarks/consistency.py [--seeds 10] [--trained CHECKPOINT...] [--out results/consistency.json]

Each test digit is enlarged and centred so that it fills 28/64 of a large canvas. The transformed images are sampled
from the canvas, so that the figures measure the layer and not the interpolation. Errors are relative to the range of
theta.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import sympy
import torch

import equivariant_transformers as et
from equivariant_transformers.audit.probes import THETA, on_canvas
from equivariant_transformers.data import ImageSet
from equivariant_transformers.training import Config, checkpoint
from equivariant_transformers.training.job import make_module

mnist = importlib.import_module("equivariant_transformers.data.mnist_set")
projective_mnist = importlib.import_module("equivariant_transformers.data.projective_mnist_set")

X, Y, T = sympy.symbols("x y theta")
LENS = sympy.sqrt(1 - 2 * T * (X**2 + Y**2))
OWN = {  # groups that are not built in, and their ranges of theta
    "spiral": (et.Group.from_generator([[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]], name="spiral"), (-1.5, 1.5)),
    "dilation about (-0.2, -0.1)": (et.Group.from_generator([[1, 0, 0.2], [0, 1, 0.1], [0, 0, 0]]), (-np.log(2), 0.0)),
    "shear along the diagonal": (et.Group.from_generator([[0.5, -0.5, 0], [0.5, -0.5, 0], [0, 0, 0]]), (-0.8, 0.8)),
    "lens distortion": ((X / LENS, Y / LENS), (-0.5, 0.5)),
}
CONDITIONS = {  # name -> size, fill value, predictor, share of the seeds
    "64x64": ((64, 64), 0.0, "consistent", 1.0),
    "32x32": ((32, 32), 0.0, "consistent", 0.3),
    "48x80": ((48, 80), 0.0, "consistent", 0.3),
    "224x224": ((224, 224), 0.0, "consistent", 0.3),
    "64x64, background 0.3": ((64, 64), 0.3, "consistent", 0.3),
    "64x64, softmax": ((64, 64), 0.0, "softmax", 0.3),
    "64x64, derived": ((64, 64), 0.0, "consistent", 0.3),
    "32x32, derived": ((32, 32), 0.0, "consistent", 0.3),
}

Results = dict[str, dict[str, dict[str, float | int]]]


def ranges(condition: str) -> dict[str, tuple[float, float]]:
    """Return the groups that are measured under a condition, with their ranges of theta."""
    return THETA | {name: theta for name, (_, theta) in OWN.items()} if "derived" in condition else THETA


def random_layers(name: str, condition: str, count: int) -> Iterator[et.EquivariantTransformer]:
    predictor = CONDITIONS[condition][2]
    chart = et.derive(OWN[name][0] if name in OWN else name) if "derived" in condition else name
    for seed in range(count):
        torch.manual_seed(seed)
        yield et.EquivariantTransformer(chart, in_channels=1, predictor=predictor)


def trained_layers(path: Path) -> dict[str, et.EquivariantTransformer]:
    """Return the layers of a trained network with the weights of its best epoch, by group."""
    tensors, description = checkpoint.read(path)
    config = Config.from_dict(description["config"])
    blank = torch.zeros(1, 1, projective_mnist.SIZE, projective_mnist.SIZE, dtype=torch.uint8)
    mean, std = projective_mnist.NORMALISATION
    module = make_module(config, ImageSet(images=blank, labels=torch.zeros(1).long(), name="", mean=mean, std=std))
    weights = {name.removeprefix("best/"): t for name, t in tensors.items() if name.startswith("best/")}
    module.load_state_dict(weights)
    return {layer.chart.groups[0].name: layer for layer in module.canonicalizer.layers}


def measure(
    theta: tuple[float, float],
    layers: Iterable[et.EquivariantTransformer],
    images: torch.Tensor,
    size: tuple[int, int],
) -> dict[str, float | int]:
    figures = []
    for layer in layers:
        result = et.self_consistency(layer, images, theta, size=size)
        figures.append([float(result.slope), float(result.rms), float(result.median)])
    slope, rms, median = np.mean(figures, 0)
    low, high = np.min(figures, 0)[0], np.max(figures, 0)[0]
    return {
        "slope": round(slope, 4),
        "slope_min": round(low, 4),
        "slope_max": round(high, 4),
        "rms": round(rms, 4),
        "median": round(median, 4),
        "seeds": len(figures),
        "digits": len(images),
    }


def table(results: Results) -> str:
    """Return a markdown table with slope / rms / median in each cell. Figures that miss the targets are bold."""
    seeds = {name: next(iter(rows.values()))["seeds"] for name, rows in results.items()}
    lines = [
        "| group | " + " | ".join(f"{name} ({seeds[name]} seeds)" for name in results) + " |",
        "|---" * (1 + len(results)) + "|",
    ]
    measured = {group for rows in results.values() for group in rows}
    for group in filter(measured.__contains__, [*THETA, *OWN]):
        loose = group.endswith("perspective")
        cells = []
        for rows in results.values():
            row = rows.get(group)
            if row is None:
                cells.append("")
                continue
            bad = (
                abs(row["slope"] - 1) > (0.15 if loose else 0.05),
                not loose and row["rms"] > 0.05,
                row["median"] > (0.08 if loose else 0.02),
            )
            shown = (f"{row['slope']:.2f}", f"{row['rms']:.3f}", f"{row['median']:.3f}")
            cells.append(" / ".join(f"**{text}**" if miss else text for text, miss in zip(shown, bad, strict=True)))
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def put(page: Path, name: str, content: str) -> None:
    """Replace the content between the marks `name` of a page."""
    before, opening, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"<!-- end of {name} -->")
    page.write_text(f"{before}{opening}{content}\n{closing}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=16, help="number of digits")
    parser.add_argument("--seeds", type=int, default=10, help="number of random initialisations")
    parser.add_argument("--trained", type=Path, nargs="*", default=[], help="checkpoints of trained networks")
    parser.add_argument("--out", type=Path, help="file of figures to write; figures that it already holds are kept")
    parser.add_argument("--docs", type=Path, help="page to write the tables to")
    arguments = parser.parse_args()
    digits = mnist.digits()[1].images[: arguments.count].numpy()
    results: Results = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else {}
    trained: dict[str, list[dict[str, et.EquivariantTransformer]]] = {}
    for path in arguments.trained:
        layers = trained_layers(path)
        kind = next(
            name for name, kind in et.PREDICTORS.items() if isinstance(next(iter(layers.values())).predictor, kind)
        )
        trained.setdefault(f"64x64, {kind}, trained", []).append(layers)
    for condition in [*CONDITIONS, *trained]:
        print(f"{condition:24s} {'slope':>7s} {'(min':>7s} {'max)':>7s} {'rms':>7s} {'median':>7s} {'seeds':>6s}")
        rows = results.setdefault(condition, {})
        size, fill, _, share = CONDITIONS.get(condition, ((64, 64), 0.0, "", 0.0))
        pixels = 448 if max(size) > 128 else 256
        images = on_canvas(torch.from_numpy(digits)[:, None] / 255, pixels, fill)
        for name, theta in ranges(condition).items():
            if condition in trained and name not in trained[condition][0]:
                continue
            if name not in rows:
                if condition in CONDITIONS:
                    count = max(1, round(share * arguments.seeds))
                    rows[name] = measure(theta, random_layers(name, condition, count), images, size)
                else:
                    (mean,), (std,) = projective_mnist.NORMALISATION
                    networks = (layers[name] for layers in trained[condition])
                    rows[name] = measure(theta, networks, (255 * images - mean) / std, size)
                if arguments.out:
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
            row = rows[name]
            shown = " ".join(f"{row[key]:7.3f}" for key in ("slope", "slope_min", "slope_max", "rms", "median"))
            print(f"  {name:22s} {shown} {row['seeds']:6d}", flush=True)
    if arguments.docs:
        for mark in ("trained", "derived"):
            put(arguments.docs, mark, table({name: rows for name, rows in results.items() if mark in name}))
            results = {name: rows for name, rows in results.items() if mark not in name}
        put(arguments.docs, "table", table(results))


if __name__ == "__main__":
    main()
