"""Measure how well `et.discover` finds the group that moves digits or photographs, for known groups and unknown theta.

    python benchmarks/discover.py [--kind labels] [--seeds 3] [--examples 600] [--out results/discover.json] [NAME...]

Each image is moved by its own theta, drawn evenly from the range of the group. Kinds of data: MNIST digits with labels,
MNIST digits without labels, CIFAR-10 photographs on black without labels, and the inner part of CIFAR-10 photographs.
The cosine is that of the vector fields over the whole image, up to sign. The lens, the wave and pairs of groups are
measured only if named. Rows that are already in the file are not measured again.
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


PAIRS = {
    "rotation and dilation": ("rotation", "dilation"),
    "x_translation and y_translation": ("x_translation", "y_translation"),
}
KINDS = ("labels", "without labels", "photographs", "filling photographs")
_INNER = 1 / 0.6  # half width of a photograph that fills the frame at any angle


def moved_images(
    name: str, count: int, seed: int, kind: str = "labels", *, test: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` moved images and their labels."""
    splits = (et.data.cifar10 if "photographs" in kind else et.data.mnist)(seed=0)
    part = splits.test if test else splits.train
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(part.images), generator=generator)[:count]
    members = PAIRS.get(name, (name,))
    half_width = _INNER if kind == "filling photographs" else min(SETS[member][1] for member in members)
    place = et.Warp.projective(torch.diag(torch.tensor([1 / half_width, 1 / half_width, 1.0])))
    for member in members:
        low, high = SETS[member][0]
        theta = low + (high - low) * torch.rand(count, generator=generator)
        if member != "unmoved":
            place = place @ group_warp(true_group(member), theta)
    return place.image(part.images[chosen].float() / 255, size=(SIDE, SIDE)), part.labels[chosen]


def true_group(name: str) -> et.Group:
    return OWN.get(name) or et.group(PAIRS.get(name, (name,))[0])


def generator_cosine(found: et.Group, true: et.Group) -> float | None:
    """Return the cosine between two generators of trace 0, up to sign, or None if one of them has none."""
    if found.generator is None or true.generator is None:
        return None
    pair = [torch.tensor(group.generator, dtype=torch.float64) for group in (found, true)]
    flat = torch.stack([(matrix - matrix.trace() / 3 * torch.eye(3)).flatten() for matrix in pair])
    return round(float(torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0).abs()), 4)


def measure(name: str, kind: str, seed: int, examples: int) -> dict[str, Any]:
    images, labels = moved_images(name, examples, seed, kind)
    family = "polynomial" if name in POLYNOMIAL else "projective"
    members = PAIRS.get(name, (name,))
    began = time.process_time()
    result = et.discover(
        images, labels if kind == "labels" else None, family=family, count=len(members), examples=examples, seed=seed
    )
    seconds = time.process_time() - began
    found = result.found[0] if result.found else result.rejected
    assert found is not None
    groups = result.groups or (found.group,)
    known = name != "unmoved"
    return {
        "found": len(result.found) == len(members),
        "cosine": round(min(cosine_with_span(true_group(member), groups) for member in members), 4) if known else None,
        "generator_cosine": generator_cosine(found.group, true_group(name)) if known and name not in PAIRS else None,
        "confidence": round(found.confidence, 3),
        "explained": None if found.explained is None else round(found.explained, 3),
        "ratio": round(found.ratio, 3),
        "agreement": round(found.agreement, 4),
        "theta": None if found.theta is None else [round(value, 3) for value in found.theta],
        "seconds": round(seconds, 1),
    }


def cosine_with_span(group: et.Group, groups: tuple[et.Group, ...]) -> float:
    """Return the cosine between the field of `group` and its projection on the span of the fields of `groups`."""
    line = torch.linspace(-1, 1, SIDE + 1, dtype=torch.float64)
    points = torch.cartesian_prod(line, line)
    field = group.vector_field(points).flatten()
    span = torch.linalg.qr(torch.stack([other.vector_field(points).flatten() for other in groups], 1))[0]
    return float((span.T @ field).norm() / field.norm())


def draw(names: list[str], path: Path, kind: str, examples: int) -> None:
    """Draw moved images, and the flow lines of the group found from them over one of them, a row per data set."""
    from matplotlib.figure import Figure

    from equivariant_transformers import viz

    figure = Figure(figsize=(9, 1.6 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 7, squeeze=False)
    for row, name in zip(axes, names, strict=True):
        images, labels = moved_images(name, examples, 0, kind)
        found = et.discover(images, labels if kind == "labels" else None, examples=examples).found[0]
        for axis, image in zip(row, images, strict=False):
            viz.show(image.clamp(0, 1), axis)
        viz.show(images[6].clamp(0, 1), row[6])
        viz.flow_lines(found.group, row[6])
        row[0].set_ylabel(name.replace("_", " "), fontsize=8)
    figure.savefig(path, dpi=110)


def table(results: dict[str, dict[str, dict[str, Any]]], kinds: tuple[str, ...] = KINDS[:3]) -> str:
    """Return the table of `docs/discovery.md`: means over the seeds, the worst in brackets, and what was reported."""
    heads = [f"cosine, {kind} | reported" for kind in kinds]
    lines = ["| hidden group | theta | " + " | ".join(heads) + " |", "|---" * (2 + 2 * len(kinds)) + "|"]
    for name in [*SETS, *PAIRS]:
        if name not in results:
            continue
        span = "none" if name == "unmoved" else "" if name in PAIRS else f"±{SETS[name][0][1]:.2f}"
        cells = [name.replace("_", " "), span]
        for kind in kinds:
            rows = list(results[name].get(kind, {}).values())
            reported = f"{sum(row['found'] for row in rows)} of {len(rows)}"
            cells += [_mean(rows, "cosine"), reported] if rows else ["", ""]
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
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets; all but lens, wave and pairs by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, help="images per search; 600 with labels, 8,000 without by default")
    parser.add_argument("--kind", choices=KINDS, default="labels")
    parser.add_argument("--figure", type=Path, help="draw the named data sets to this PNG instead of measuring")
    parser.add_argument("--table", action="store_true", help="print the table of the results instead of measuring")
    parser.add_argument("--out", type=Path, default=Path("results/discover.json"))
    options = parser.parse_args()
    kind = options.kind
    examples = options.examples or (600 if kind == "labels" else 8000)
    if options.figure:
        draw(options.names, options.figure, kind, examples)
        return
    results: dict[str, dict[str, dict[str, Any]]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.table:
        print(table(results))
        return
    for name in options.names or [name for name in SETS if name not in POLYNOMIAL]:
        for seed in range(options.seeds):
            rows = results.setdefault(name, {}).setdefault(kind, {})
            if str(seed) not in rows:
                rows[str(seed)] = measure(name, kind, seed, examples)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(name, kind, seed, rows[str(seed)], flush=True)


if __name__ == "__main__":
    main()
