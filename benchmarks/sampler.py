"""Measure the bandwidth of the sampler against a copy of the same images, forward and backward.

    python benchmarks/sampler.py [--device cuda] [--out results/sampler_cpu.json]

The forward pass reads the images and writes as many samples, so a copy is its lower limit. Its share of the copy's
bandwidth is the time of a copy over the time of a warp. On a GPU it is stated twice: for the time that the GPU works,
and for a call and the wait for its end. The GPU works on several batches in turn, which together do not fit its cache.
The time until a call returns is that of the host. The aims on a GPU are a share of 0.8, and a backward pass, of images
and matrices, that takes at most twice the time of the forward pass.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from turns import finish, machine, take_turns

import equivariant_transformers as et

Shape = tuple[int, int, int, int]
SHAPES = {"cuda": [(64, 3, 224, 224), (16, 3, 1080, 1920)], "cpu": [(16, 3, 224, 224), (1, 3, 1080, 1920)]}
CACHE = 2**28
"""Bytes that no cache of a GPU holds."""
LAYOUTS = {"planes": torch.contiguous_format, "channels last": torch.channels_last}


def rotations(batch: int, device: str) -> Tensor:
    """Return rotations of up to 30 degrees with a little perspective, one per image."""
    theta = torch.linspace(-0.5, 0.5, batch, device=device)
    return et.group("rotation").matrix(theta) @ et.group("x_perspective").matrix(0.2 * theta)


def gpu_ms(calls: list[Callable[[], object]], rounds: int) -> float:
    """Return the median milliseconds that the GPU takes for one of `calls`, on the current stream, without the host."""
    for call in calls:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        _results = [call() for call in calls]  # kept, so that each call writes to memory of its own
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(calls))
    return statistics.median(times)


def host_us(function: Callable[[], object], rounds: int, device: str) -> float:
    """Return the median microseconds until a call returns, with no earlier work left on the device."""
    times = []
    for _ in range(rounds):
        finish(device)
        start = time.perf_counter()
        function()
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def functions(shape: Shape, dtype: torch.dtype, layout: str, device: str) -> dict[str, Callable[[], object]]:
    """Return a copy of images, a warp of them, and its backward pass."""
    images = torch.rand(shape, device=device).to(dtype).to(memory_format=LAYOUTS[layout])
    matrix, target = rotations(shape[0], device), torch.empty_like(images)
    leaves = [images.detach().requires_grad_(), matrix.detach().requires_grad_()]
    result = et.Warp((leaves[1],)).image(leaves[0])
    gradient = torch.rand_like(result)
    return {
        "copy": partial(target.copy_, images),
        "forward": partial(et.Warp((matrix,)).image, images),
        "backward": partial(torch.autograd.grad, result, leaves, gradient, retain_graph=True),
    }


def measure(shape: Shape, dtype: torch.dtype, layout: str, device: str, rounds: int) -> dict:
    moved = 2 * math.prod(shape) * dtype.itemsize
    gpu = device.startswith("cuda")
    sets = [functions(shape, dtype, layout, device) for _ in range(1 + CACHE // moved if gpu else 1)]
    times = {name: found["ms"] for name, found in take_turns(sets[0], rounds, device).items()}
    row = {
        "shape": shape,
        "dtype": str(dtype).removeprefix("torch."),
        "layout": layout,
        "ms": times,
        "share_of_copy": round(times["copy"] / times["forward"], 3),
        "backward_over_forward": round(times["backward"] / times["forward"], 2),
    }
    if gpu:
        alone = {name: gpu_ms([found[name] for found in sets], rounds) for name in times}
        row |= {
            "gpu_ms": {name: round(taken, 4) for name, taken in alone.items()},
            "gpu_share_of_copy": round(alone["copy"] / alone["forward"], 3),
            "gpu_backward_over_forward": round(alone["backward"] / alone["forward"], 2),
            "host_us": {name: round(host_us(function, rounds, device), 1) for name, function in sets[0].items()},
        }
    return row | {"copy_gb_per_s": round(moved / row.get("gpu_ms", times)["copy"] / 1e6, 1)}


def line(row: dict) -> str:
    """Return a row as a line of a table."""
    text = f"{' x '.join(map(str, row['shape'])):22s} {row['dtype']:9s}{row['layout']:14s} "
    for title, prefix in (("GPU", "gpu_"), ("call", "")):
        if prefix + "ms" in row:
            text += (
                f"{title}: copy {row[prefix + 'ms']['copy']:.3f} ms, forward {row[prefix + 'ms']['forward']:.3f} ms, "
                f"{row[prefix + 'share_of_copy']:.2f} of the copy's bandwidth, "
                f"backward {row[prefix + 'backward_over_forward']:.2f} x forward   "
            )
    return text + "".join(f"host {name} {taken:.0f} us " for name, taken in row.get("host_us", {}).items())


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
    if kind == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # a graph records the work of a stream that is not the default
    for shape in SHAPES[kind]:
        for dtype in (torch.float32, torch.bfloat16, torch.float16) if kind == "cuda" else (torch.float32,):
            for layout in LAYOUTS:
                row = measure(shape, dtype, layout, arguments.device, arguments.rounds)
                rows.append(row)
                print(line(row), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({**machine(arguments.device), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
