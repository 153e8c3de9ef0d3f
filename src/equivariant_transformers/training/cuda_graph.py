"""A piece of work that is done over and over: as it is on the CPU, as one CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Replay:
    """`work`, a function without arguments that reads and writes tensors in place, ready to be repeated.

    On a GPU it is recorded once and replayed as a whole, on a stream of its own, without the host waiting for anything.
    Recording runs the work a few times first and calls `restore` after each time, which must undo what the work did.
    """

    def __init__(
        self, work: Callable[[], None], device: torch.device, *, capture: bool, restore: Callable[[], None]
    ) -> None:
        self.work = work
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if capture and self.stream is not None:
            self._record(self.stream, restore)

    def __call__(self) -> None:
        """Do the work once; on a GPU, put it in the queue of its stream."""
        if self.stream is None:
            self.work()
            return
        with torch.cuda.stream(self.stream):
            if self.graph is None:
                self.work()
            else:
                self.graph.replay()

    def _record(self, stream: torch.cuda.Stream, restore: Callable[[], None]) -> None:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True  # the first calls find the fastest convolutions, the recording uses them
        try:
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                rehearse(self.work, restore)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                self.work()
            torch.cuda.synchronize()
        finally:
            torch.backends.cudnn.benchmark = before


def rehearse(work: Callable[[], None], restore: Callable[[], None]) -> None:
    """Run `work` three times, each from the same state: compiles kernels, fills caches, makes the optimizer's state."""
    for _ in range(3):
        work()
        restore()
