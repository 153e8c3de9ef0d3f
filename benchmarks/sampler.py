"""Measure the bandwidth of the sampler against a copy of the same images, forward and backward.

    python benchmarks/sampler.py [--device cuda] [--out results/sampler_cpu.json]

The forward pass reads the images and writes as many samples, so a copy is its lower limit. Its share of the copy's
bandwidth is the time of a copy over the time of a warp. On a GPU the aims are a share of 0.8, and a backward pass, of
images and matrices, that takes at most twice the time of the forward pass.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from turns import machine, take_turns

import equivariant_transformers as et

SHAPES = {"cuda": [(64, 3, 224, 224), (16, 3, 1080, 1920)], "cpu": [(16, 3, 224, 224), (1, 3, 1080, 1920)]}
LAYOUTS = {"planes": torch.contiguous_format, "channels last": torch.channels_last}


def rotations(batch: int, device: str) -> Tensor:
    """Return rotations of up to 30 degrees with a little perspective, one per image."""
    theta = torch.linspace(-0.5, 0.5, batch, device=device)
    return et.group("rotation").matrix(theta) @ et.group("x_perspective").matrix(0.2 * theta)


def measure(shape: tuple[int, int, int, int], dtype: torch.dtype, layout: str, device: str, rounds: int) -> dict:
    images = torch.rand(shape, device=device).to(dtype).to(memory_format=LAYOUTS[layout])
    matrix, target = rotations(shape[0], device), torch.empty_like(images)
    leaves = [images.detach().requires_grad_(), matrix.detach().requires_grad_()]
    result = et.Warp((leaves[1],)).image(leaves[0])
    gradient = torch.ones_like(result)
    functions = {
        "copy": partial(target.copy_, images),
        "forward": lambda: et.Warp((matrix,)).image(images),
        "backward": lambda: torch.autograd.grad(result, leaves, gradient, retain_graph=True),
    }
    times = {name: found["ms"] for name, found in take_turns(functions, rounds, device).items()}
    moved = 2 * images.numel() * images.element_size()
    return {
        "shape": shape,
        "dtype": str(dtype).removeprefix("torch."),
        "layout": layout,
        "ms": times,
        "copy_gb_per_s": round(moved / times["copy"] / 1e6, 1),
        "share_of_copy": round(times["copy"] / times["forward"], 3),
        "backward_over_forward": round(times["backward"] / times["forward"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kind = arguments.device.partition(":")[0]
    rows = []
    for shape in SHAPES[kind]:
        for dtype in (torch.float32, torch.bfloat16, torch.float16) if kind == "cuda" else (torch.float32,):
            for layout in LAYOUTS:
                row = measure(shape, dtype, layout, arguments.device, arguments.rounds)
                rows.append(row)
                print(
                    f"{' x '.join(map(str, shape)):22s} {row['dtype']:9s}{layout:14s} "
                    f"copy {row['copy_gb_per_s']:7.1f} GB/s   "
                    f"forward {row['ms']['forward']:8.3f} ms, {row['share_of_copy']:.2f} of the copy's bandwidth"
                    f"   backward {row['backward_over_forward']:.2f} x forward",
                    flush=True,
                )
    if arguments.out:
        arguments.out.write_text(json.dumps({**machine(arguments.device), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
