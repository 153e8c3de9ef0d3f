"""Measure group matrices, sampling grids and warps on the CPU, and the same warps in kornia and in torch alone.

    python benchmarks/warp.py [--threads 2] [--json FILE]

All implementations are measured in turns in one process on the same inputs. Torch alone, `affine_grid` and
`grid_sample`, has affine warps only. The ratios are medians over rounds; the times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from kornia import __version__ as kornia_version
from kornia.geometry.transform import homography_warp
from turns import machine, take_turns

import equivariant_transformers as et

SHAPES = [(128, 1, 64, 64), (16, 3, 224, 224)]
ROUNDS = 60

Times = dict[str, dict[str, dict[str, float]]]  # operation -> implementation -> milliseconds, and ratio to ours


def matrices(batch: int, *groups: str) -> torch.Tensor:
    """Return one matrix per image that combines transformations of the `groups`."""
    theta = torch.linspace(-0.4, 0.4, batch)
    product = torch.eye(3)
    for group in groups:
        product = product @ et.group(group).matrix(theta)
    return product


def warp_times(shape: tuple[int, int, int, int]) -> Times:
    images = torch.rand(shape)
    size = shape[2:]
    grid = et.chart("log_polar").replace(size=size).grid()

    def ours(matrix: torch.Tensor) -> torch.Tensor:
        return et.Warp.projective(matrix).image(images)

    def kornia(matrix: torch.Tensor) -> torch.Tensor:
        return homography_warp(images, matrix, size, align_corners=True, normalized_homography=True)

    def alone(matrix: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(images, F.affine_grid(matrix[:, :2], shape, align_corners=True), align_corners=True)

    label = " x ".join(map(str, shape))
    homographies = matrices(shape[0], "rotation", "x_shear", "x_perspective")
    affinities = matrices(shape[0], "rotation", "x_shear")
    found = {}
    for kind, matrix, others in (
        ("homographies", homographies, {"kornia": kornia}),
        ("affine warps", affinities, {"kornia": kornia, "torch": alone}),
    ):
        functions = {"ours": ours, **others}
        for other in others.values():
            torch.testing.assert_close(ours(matrix), other(matrix), rtol=0, atol=1e-4)
        leaf = matrix.clone().requires_grad_()
        found[f"{kind} {label}"] = take_turns({name: partial(run, matrix) for name, run in functions.items()}, ROUNDS)
        found[f"{kind}, gradient {label}"] = take_turns(
            {name: partial(_forward_and_backward, run, leaf) for name, run in functions.items()}, ROUNDS
        )
    found[f"log-polar grid {label}"] = take_turns(
        {"ours": lambda: et.Warp.projective(homographies).sample(images, grid)}, ROUNDS
    )
    return found


def _forward_and_backward(run: Callable[[torch.Tensor], torch.Tensor], matrix: torch.Tensor) -> None:
    run(matrix).sum().backward()


def measure() -> Times:
    results: Times = {}
    for shape in SHAPES:
        results |= warp_times(shape)
    theta = torch.linspace(-1, 1, 128)
    for name in ("rotation", "x_shear", "x_perspective"):
        results[f"matrix, {name}, 128"] = take_turns({"ours": partial(et.group(name).matrix, theta)}, ROUNDS)
    results["grid, log_polar, 64 x 64"] = take_turns({"ours": et.chart("log_polar").grid}, ROUNDS)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    about = {**machine("cpu"), "kornia": kornia_version}
    print(about)
    results = measure()
    print(
        f"{'median times in ms, and the ratio to ours':44s}"
        + "".join(f"{name:>10s}" for name in ("ours", "kornia", "torch"))
    )
    for name, times in results.items():
        cells = [
            f"{row['ms']:10.3f}" + (f" ({row['ratio']:.2f})" if other != "ours" else "") for other, row in times.items()
        ]
        print(f"{name:44s}{''.join(cells)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": about, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
