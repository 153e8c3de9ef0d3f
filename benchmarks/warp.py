"""Measure group matrices, sampling grids and homography warps on the CPU, and the same warps in kornia.

    python benchmarks/warp.py [--json FILE]

Both libraries are measured in turns in one process on the same inputs. Compare the ratios; the times depend on the
machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from kornia.geometry.transform import homography_warp

import equivariant_transformers as et

SHAPES = [(128, 1, 64, 64), (16, 3, 224, 224)]


def take_turns(functions: dict[str, Callable[[], object]], rounds: int = 60) -> dict[str, float]:
    """Return the median time in milliseconds of each function; the functions are called in turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 5):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn >= 5:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def homographies(batch: int) -> torch.Tensor:
    """Return one matrix per image that combines a rotation, a shear and a perspective."""
    theta = torch.linspace(-0.4, 0.4, batch)
    return (
        et.group("rotation").matrix(theta) @ et.group("x_shear").matrix(theta) @ et.group("x_perspective").matrix(theta)
    )


def warp_times(shape: tuple[int, int, int, int]) -> dict[str, dict[str, float]]:
    images, matrix = torch.rand(shape), homographies(shape[0])
    size = shape[2:]
    grid = et.chart("log_polar").replace(size=size).grid()
    leaf = matrix.clone().requires_grad_()

    def ours(matrix: torch.Tensor) -> torch.Tensor:
        return et.Warp.projective(matrix).image(images)

    def kornia(matrix: torch.Tensor) -> torch.Tensor:
        return homography_warp(images, matrix, size, align_corners=True, normalized_homography=True)

    torch.testing.assert_close(ours(matrix), kornia(matrix), rtol=0, atol=1e-4)
    label = " x ".join(map(str, shape))
    return {
        f"warp {label}": take_turns({"ours": lambda: ours(matrix), "kornia": lambda: kornia(matrix)}),
        f"warp and gradient {label}": take_turns(
            {"ours": lambda: ours(leaf).sum().backward(), "kornia": lambda: kornia(leaf).sum().backward()}
        ),
        f"warp onto a log-polar grid {label}": take_turns(
            {"ours": lambda: et.Warp.projective(matrix).sample(images, grid)}
        ),
    }


def measure() -> dict[str, dict[str, float]]:
    results = {}
    for shape in SHAPES:
        results |= warp_times(shape)
    theta = torch.linspace(-1, 1, 128)
    for name in ("rotation", "x_shear", "x_perspective"):
        results[f"matrix, {name}, 128"] = take_turns({"ours": partial(et.group(name).matrix, theta)})
    results["grid, log_polar, 64 x 64"] = take_turns({"ours": et.chart("log_polar").grid})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    results = measure()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; median times in ms")
    for name, times in results.items():
        ratio = (
            f"   kornia {times['kornia']:8.3f}   ratio {times['kornia'] / times['ours']:.2f}"
            if "kornia" in times
            else ""
        )
        print(f"{name:48s} ours {times['ours']:8.3f}{ratio}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
