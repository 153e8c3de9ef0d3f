"""Measures self-consistency of layers with random weights on MNIST digits: slope, rms and median error.

    python benchmarks/consistency.py DIGITS.npy [--seeds 10] [--out results/consistency.json]

DIGITS.npy holds test digits as a uint8 array (n, 28, 28). Each digit is enlarged and centred so that it fills 28/64 of
a large picture, from which the transformed images are sampled, so that the figures speak of the layer and not of the
interpolation. Errors are relative to the range of theta.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import equivariant_transformers as et
from equivariant_transformers.probes import THETA, on_canvas

CONDITIONS = {  # name -> size, background, predictor, share of the seeds
    "64x64": ((64, 64), 0.0, "consistent", 1.0),
    "32x32": ((32, 32), 0.0, "consistent", 0.3),
    "48x80": ((48, 80), 0.0, "consistent", 0.3),
    "224x224": ((224, 224), 0.0, "consistent", 0.3),
    "64x64, background 0.3": ((64, 64), 0.3, "consistent", 0.3),
    "64x64, softmax": ((64, 64), 0.0, "softmax", 0.3),
}

Results = dict[str, dict[str, dict[str, float | int]]]


def measure(name: str, digits: np.ndarray, condition: str, seeds: int) -> dict[str, float | int]:
    size, background, predictor, share = CONDITIONS[condition]
    pixels = 448 if max(size) > 128 else 256
    images = on_canvas(torch.from_numpy(digits)[:, None] / 255, pixels, background)
    figures = []
    for seed in range(max(1, round(share * seeds))):
        torch.manual_seed(seed)
        layer = et.EquivariantTransformer(name, in_channels=1, predictor=predictor)
        result = et.self_consistency(layer, images, THETA[name], size=size)
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
        "digits": len(digits),
    }


def table(results: Results) -> str:
    """The figures as markdown, slope / rms / median in each cell; what misses the targets is bold."""
    seeds = {name: next(iter(rows.values()))["seeds"] for name, rows in results.items()}
    lines = [
        "| group | " + " | ".join(f"{name} ({seeds[name]} seeds)" for name in results) + " |",
        "|---" * (1 + len(results)) + "|",
    ]
    for group in THETA:
        loose = group.endswith("perspective")
        cells = []
        for rows in results.values():
            row = rows[group]
            bad = (
                abs(row["slope"] - 1) > (0.15 if loose else 0.05),
                not loose and row["rms"] > 0.05,
                row["median"] > (0.08 if loose else 0.02),
            )
            shown = (f"{row['slope']:.2f}", f"{row['rms']:.3f}", f"{row['median']:.3f}")
            cells.append(" / ".join(f"**{text}**" if miss else text for text, miss in zip(shown, bad, strict=True)))
        lines.append(f"| {group} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def put_table(page: Path, results: Results) -> None:
    before, _, rest = page.read_text().partition("<!-- table -->\n")
    _, marker, after = rest.partition("<!-- end of table -->")
    page.write_text(f"{before}<!-- table -->\n{table(results)}\n{marker}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("digits", type=Path, help="test digits, a uint8 array (n, 28, 28)")
    parser.add_argument("--count", type=int, default=16, help="how many of the digits are used")
    parser.add_argument("--seeds", type=int, default=10, help="random initialisations")
    parser.add_argument("--out", type=Path, help="write the figures to this file; those it already holds are kept")
    parser.add_argument("--docs", type=Path, help="put the table into this page")
    arguments = parser.parse_args()
    digits = np.load(arguments.digits)[: arguments.count]
    results: Results = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else {}
    for condition in CONDITIONS:
        print(f"{condition:24s} {'slope':>7s} {'(min':>7s} {'max)':>7s} {'rms':>7s} {'median':>7s} {'seeds':>6s}")
        rows = results.setdefault(condition, {})
        for name in THETA:
            if name not in rows:
                rows[name] = measure(name, digits, condition, arguments.seeds)
                if arguments.out:
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
            row = rows[name]
            shown = " ".join(f"{row[key]:7.3f}" for key in ("slope", "slope_min", "slope_max", "rms", "median"))
            print(f"  {name:22s} {shown} {row['seeds']:6d}", flush=True)
    if arguments.docs:
        put_table(arguments.docs, results)


if __name__ == "__main__":
    main()
