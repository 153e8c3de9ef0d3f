"""Timing that the benchmarks share: functions are called in turns, so that other work slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def take_turns(
    functions: dict[str, Callable[[], object]], rounds: int, device: str = "cpu", *, calls: int = 1
) -> dict[str, dict[str, float]]:
    """Call the functions in turns; return median milliseconds and the median ratio to the first in the same round.

    In each round, a function is called `calls` times in a row, and the time of one call is their mean.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(2 + rounds):
        for name, function in functions.items():
            finish(device)
            start = time.perf_counter()
            for _ in range(calls):
                function()
            finish(device)
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start) / calls)
    base = next(iter(times.values()))
    return {
        name: {
            "ms": round(statistics.median(taken), 3),
            "ratio": round(statistics.median(one / other for one, other in zip(taken, base, strict=True)), 3),
        }
        for name, taken in times.items()
    }


def finish(device: str) -> None:
    """Wait until `device` has done its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def machine(device: str) -> dict[str, object]:
    """Return the name of the device, the number of CPU threads, and the version of torch."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
