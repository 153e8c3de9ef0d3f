"""Profile one layer in inference and in a training step: time and number of operations of each of its parts.

    python benchmarks/layer.py [--device cuda] [--predictor posterior] [--batches 1,16]

The parts are measured as ranges of `torch.profiler`. An operation is a call of torch that computes: on a GPU, about one
kernel. Views and allocations do not count. A GPU samples in one kernel; the operations outside of sampling are about
the same there. On a GPU, the gradient is computed by another thread, whose operations are not counted.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from turns import finish, machine

import equivariant_transformers as et
from equivariant_transformers.geometry import sampler
from equivariant_transformers.geometry.reduction import Pyramid
from equivariant_transformers.nn.posterior import PosteriorPredictor

WHOLE = "whole layer"
NO_WORK = ("aten::empty", "aten::detach", "aten::promote_types", "aten::_local_scalar")
Mark = Callable[[Callable[..., str], Callable[..., Any]], Callable[..., Any]]


class Operations(TorchDispatchMode):
    """Counter of the operations in each part."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.part = "poses, matrices, checks"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = [result.alias_info for result in func._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in aliases)
        if not view and not func.name().startswith(NO_WORK):
            self.counts[self.part] += 1
        return func(*args, **kwargs or {})


@contextmanager
def marked(operations: Operations, predictor: torch.nn.Module) -> Iterator[Mark]:
    """Mark the parts of a layer with this predictor for the profiler and the counter; return the function that does."""

    def mark(name: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            operations.part, before = name(*args), operations.part
            with record_function(operations.part):
                result = function(*args, **kwargs)
            operations.part = before
            return result

        return run

    def kind(_steps: Any, _images: Any, target: sampler.Target) -> str:
        return "sampling of the image" if target.points is None else "sampling of the chart"

    smooth, sample, read = Pyramid.smoothed, sampler.sample, predictor.forward
    Pyramid.smoothed = mark(lambda *_: "smoothing", smooth)  # type: ignore[method-assign]
    sampler.sample = mark(kind, sample)
    predictor.forward = mark(lambda *_: "predictor", read)
    yield mark
    Pyramid.smoothed, sampler.sample, predictor.forward = smooth, sample, read  # type: ignore[method-assign]


def moving(layers: Sequence[str], predictor: str) -> et.Canonicalizer:
    """Return layers for colour images whose poses differ from 0, as after training.

    A `posterior` layer starts with evidence 0 and pose 0, at which pixels keep their places.
    """
    canonicalizer = et.Canonicalizer(layers, in_channels=3, predictor=predictor)
    for layer in canonicalizer.layers:
        if isinstance(layer.predictor, PosteriorPredictor):
            torch.nn.init.normal_(layer.predictor.head.weight)
    return canonicalizer


def measure(
    predictor: str, batch: int, size: int, device: str, rounds: int, training: bool
) -> dict[str, tuple[float, int]]:
    """Return the median milliseconds and the number of operations of each part."""
    torch.manual_seed(0)
    layer = moving(["rotation"], predictor).to(device).train(training)
    images = torch.rand(batch, 3, size, size, device=device)
    operations, times = Operations(), defaultdict(list)

    with marked(operations, layer.layers[0].predictor) as mark:
        loss = mark(lambda *_: "alignment loss", et.alignment_loss)
        backward = mark(lambda *_: "gradient", torch.Tensor.backward)

        def run() -> None:
            with torch.inference_mode(not training), record_function(WHOLE):
                out = layer(images)
                out.image  # noqa: B018
                if training:
                    backward(loss(out))
            finish(device)

        with operations:
            run()
        on_gpu = device.startswith("cuda")
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        for turn in range(rounds + 3):
            with profile(activities=activities) as profiler:
                run()
            if turn >= 3:
                for event in profiler.key_averages():
                    if event.key in (WHOLE, *operations.counts):
                        taken = event.device_time_total if on_gpu else event.cpu_time_total
                        times[event.key].append(taken / 1e3)
    found = {part: (statistics.median(times[part]), operations.counts[part]) for part in times if part != WHOLE}
    whole = statistics.median(times[WHOLE]), operations.counts.total()
    rest = whole[0] - sum(time for time, _ in found.values()), whole[1] - sum(count for _, count in found.values())
    return {**found, "poses, matrices, checks": rest, WHOLE: whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--predictor", default="posterior")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(machine(given.device))
    for batch in map(int, given.batches.split(",")):
        for training in (False, True):
            parts = measure(given.predictor, batch, given.size, given.device, given.rounds, training)
            what = "training step" if training else "inference"
            print(f"{given.predictor}, {what}, batch {batch}, {given.size} x {given.size} pixels")
            for part, (milliseconds, count) in parts.items():
                share = milliseconds / parts[WHOLE][0]
                print(f"  {part:24s}{milliseconds:8.3f} ms {share:6.0%} {count:5d} operations")
            outside = parts[WHOLE][1] - sum(count for part, (_, count) in parts.items() if part.startswith("sampling"))
            print(f"  outside of sampling{outside:31d} operations")


if __name__ == "__main__":
    main()
