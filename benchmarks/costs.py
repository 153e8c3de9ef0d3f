"""Memory and latency of networks for images of 64 x 64 pixels, and files of figures that runs add to."""

from __future__ import annotations

import json
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_STATUS = Path("/proc/self/status")  # on Linux only


def noise(count: int, device: torch.device) -> Tensor:
    return torch.rand(count, 1, 64, 64, device=device)


def step_memory(make: Callable[[], nn.Module], batch_size: int, device: torch.device) -> float | None:
    """Measure the additional memory in MiB of a forward and backward pass of the network that `make` returns.

    On the CPU it is the resident memory of a separate process; None if the system does not report it.
    """
    if device.type == "cuda":
        return _step_memory(make, batch_size, device)
    if not _STATUS.exists():
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["equivariant_transformers.experiments"])
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (torch.get_num_threads(),)) as pool:
        return pool.submit(_step_memory, make, batch_size, device).result()


def _step_memory(make: Callable[[], nn.Module], batch_size: int, device: torch.device) -> float:
    network = make().train()

    def step(images: Tensor) -> None:
        labels = torch.zeros(len(images), dtype=torch.long, device=device)
        F.cross_entropy(network(images), labels).backward()

    step(noise(2, device))  # warm-up: loads and allocates what is needed once
    images = noise(batch_size, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    before, _ = _memory(device)
    step(images)
    _, peak = _memory(device)
    return round((peak - before) / 2**20, 1)


def _memory(device: torch.device) -> tuple[int, int]:
    """Return the current and the peak memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    status = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    now, peak = (1024 * int(status[field].split()[0]) for field in ("VmRSS", "VmHWM"))
    return now, peak


@torch.no_grad()
def latency(
    networks: dict[str, nn.Module],
    images: Tensor,
    base: str,
    rounds: int,
    progress: Callable[[str, float], None],
) -> dict[str, dict[str, float]]:
    """Measure each network on `images`, in turns: median milliseconds, and median ratio to `base` of the same round."""
    times: dict[str, list[float]] = {name: [] for name in networks}
    for turn in range(1 + rounds):
        for name, network in networks.items():
            start = time.perf_counter()
            network(images)
            if images.is_cuda:
                torch.cuda.synchronize(images.device)
            if turn:  # the first round is a warm-up
                times[name].append(1e3 * (time.perf_counter() - start))
        progress(f"latency, batch {len(images)}", turn / rounds)
    return {
        name: {
            "ms": round(statistics.median(taken), 3),
            "ratio": round(statistics.median(one / other for one, other in zip(taken, times[base], strict=True)), 3),
        }
        for name, taken in times.items()
    }


def continued(out: Path, settings: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the figures in the file `out`, or figures without rows. A file of other settings ends the program."""
    on_cpu = f"CPU ({platform.machine()}, threads: {torch.get_num_threads()})"
    figures: dict[str, Any] = {
        "device": on_cpu if device.type == "cpu" else torch.cuda.get_device_name(device),
        "torch": torch.__version__.split("+")[0],
        "settings": settings,
        "rows": {},
    }
    if not out.exists():
        return figures
    found: dict[str, Any] = json.loads(out.read_text())
    for field in ("device", "torch", "settings"):
        if found[field] != figures[field]:
            sys.exit(f"{out} was measured with {field} {found[field]}, got {figures[field]}; choose another --out")
    return found
