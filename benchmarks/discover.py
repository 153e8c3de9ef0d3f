"""Measure how well `et.discover` finds the group that moves MNIST digits, for known groups and unknown theta.

    python benchmarks/discover.py [--seeds 3] [--examples 600] [--out results/discover.json] [NAME...]

Each digit is moved by its own theta, drawn evenly from the range of the group. The search gets the moved digits alone,
with or without their labels. The cosine is that of the vector fields over the whole image, up to sign. The lens and the
wave are measured only if named: a search over polynomial fields takes minutes. Rows that are already in the file are
not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

import equivariant_transformers as et
from equivariant_transformers.discovery import cosine
from equivariant_transformers.geometry.motion import group_warp

LOG2 = math.log(2)
SIDE = 32
WAVE = et.Group.from_flow(
    lambda theta, p: torch.stack((p[..., 0] + theta * torch.sin(math.pi * p[..., 1]), p[..., 1]), -1), name="wave"
)
OWN = {
    "rotation about (0.3, 0.1)": et.Group.from_generator([[0, -1, 0.1], [1, 0, -0.3], [0, 0, 0]]),
    "diagonal shear": et.Group.from_generator([[0.5, -0.5, 0], [0.5, -0.5, 0], [0, 0, 0]]),
    "spiral": et.Group.from_generator([[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]]),
    "lens": et.RADIAL_LENS,
    "wave": WAVE,
}
POLYNOMIAL = ("lens", "wave")
# Range of theta, and half width of the 28 x 28 digit in the image.
SETS: dict[str, tuple[tuple[float, float], float]] = {
    "unmoved": ((0, 0), 0.5),
    "x_translation": ((-0.5, 0.5), 0.4),
    "y_translation": ((-0.5, 0.5), 0.4),
    "rotation": ((-math.pi, math.pi), 0.7),
    "dilation": ((-LOG2, LOG2), 0.5),
    "x_scale": ((-LOG2, LOG2), 0.5),
    "y_scale": ((-LOG2, LOG2), 0.5),
    "hyperbolic_rotation": ((-LOG2, LOG2), 0.5),
    "x_shear": ((-1.5, 1.5), 0.5),
    "y_shear": ((-1.5, 1.5), 0.5),
    "x_perspective": ((-1.6, 1.6), 0.5),
    "y_perspective": ((-1.6, 1.6), 0.5),
    "rotation about (0.3, 0.1)": ((-1.5, 1.5), 0.6),
    "diagonal shear": ((-1.5, 1.5), 0.5),
    "spiral": ((-1.5, 1.5), 0.6),
    "lens": ((-0.6, 0.6), 0.8),
    "wave": ((-0.4, 0.4), 0.8),
}


def moved_digits(name: str, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` moved digits and their labels."""
    digits = et.data.mnist(seed=0).train
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(digits.images), generator=generator)[:count]
    (low, high), half_width = SETS[name]
    theta = low + (high - low) * torch.rand(count, generator=generator)
    place = et.Warp.projective(torch.diag(torch.tensor([1 / half_width, 1 / half_width, 1.0])))
    if name != "unmoved":
        place = place @ group_warp(true_group(name), theta)
    return place.image(digits.images[chosen].float() / 255, size=(SIDE, SIDE)), digits.labels[chosen]


def true_group(name: str) -> et.Group:
    return OWN.get(name) or et.group(name)


def generator_cosine(found: et.Group, true: et.Group) -> float | None:
    """Return the cosine between two generators of trace 0, up to sign, or None if one of them has none."""
    if found.generator is None or true.generator is None:
        return None
    pair = [torch.tensor(group.generator, dtype=torch.float64) for group in (found, true)]
    flat = torch.stack([(matrix - matrix.trace() / 3 * torch.eye(3)).flatten() for matrix in pair])
    return round(float(torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0).abs()), 4)


def measure(name: str, labelled: bool, seed: int, examples: int) -> dict[str, Any]:
    images, labels = moved_digits(name, examples, seed)
    family = "polynomial" if name in POLYNOMIAL else "projective"
    began = time.perf_counter()
    result = et.discover(images, labels if labelled else None, family=family, examples=examples, seed=seed)
    found = result.found[0] if result.found else result.rejected
    assert found is not None
    similar = None if name == "unmoved" else round(abs(cosine(found.group, true_group(name))), 4)
    return {
        "found": bool(result.found),
        "cosine": similar,
        "generator_cosine": None if name == "unmoved" else generator_cosine(found.group, true_group(name)),
        "confidence": round(found.confidence, 3),
        "explained": round(found.explained, 3),
        "ratio": round(found.ratio, 3),
        "agreement": round(found.agreement, 4),
        "theta": [round(value, 3) for value in found.theta],
        "seconds": round(time.perf_counter() - began, 1),
    }


def draw(names: list[str], path: Path, examples: int) -> None:
    """Draw moved digits, and the flow lines of the group found from them over one of them, a row per data set."""
    from matplotlib.figure import Figure

    from equivariant_transformers import viz

    figure = Figure(figsize=(9, 1.6 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 7, squeeze=False)
    for row, name in zip(axes, names, strict=True):
        images, labels = moved_digits(name, examples, 0)
        found = et.discover(images, labels, examples=examples).found[0]
        for axis, image in zip(row, images, strict=False):
            viz.show(image.clamp(0, 1), axis)
        viz.show(images[6].clamp(0, 1), row[6])
        viz.flow_lines(found.group, row[6])
        row[0].set_ylabel(name.replace("_", " "), fontsize=8)
    figure.savefig(path, dpi=110)


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the table of `docs/discovery.md`: means over the seeds, the worst in brackets, and what was reported."""
    lines = [
        "| hidden group | theta | cosine | generators | reported | cosine, no labels | reported |",
        "|---" * 7 + "|",
    ]
    for name, kinds in results.items():
        cells = [name.replace("_", " "), "none" if name == "unmoved" else f"±{SETS[name][0][1]:.2f}"]
        for kind in ("labels", "without labels"):
            rows = list(kinds.get(kind, {}).values())
            cells.append(_mean(rows, "cosine"))
            cells += [_mean(rows, "generator_cosine")] if kind == "labels" else []
            cells.append(f"{sum(row['found'] for row in rows)} of {len(rows)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(rows: list[dict[str, Any]], key: str) -> str:
    values = [row[key] for row in rows if row[key] is not None]
    if not values:
        return "-"
    mean = f"{sum(values) / len(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets; all but lens and wave by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--without-labels", action="store_true")
    parser.add_argument("--figure", type=Path, help="draw the named data sets to this PNG instead of measuring")
    parser.add_argument("--table", action="store_true", help="print the table of the results instead of measuring")
    parser.add_argument("--out", type=Path, default=Path("results/discover.json"))
    options = parser.parse_args()
    if options.figure:
        draw(options.names, options.figure, options.examples)
        return
    results: dict[str, dict[str, dict[str, Any]]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.table:
        print(table(results))
        return
    kind = "without labels" if options.without_labels else "labels"
    for name in options.names or [name for name in SETS if name not in POLYNOMIAL]:
        for seed in range(options.seeds):
            rows = results.setdefault(name, {}).setdefault(kind, {})
            if str(seed) not in rows:
                rows[str(seed)] = measure(name, not options.without_labels, seed, options.examples)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(name, kind, seed, rows[str(seed)], flush=True)


if __name__ == "__main__":
    main()
