"""Repeated work, run as a plain function on the CPU and as one CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from equivariant_transformers.nn.graphs import capture
from equivariant_transformers.nn.recording import without_recording


class Replay:
    """Callable that runs `prepare` and `work`, functions without arguments that read and write tensors in place.

    On a GPU, `work` is recorded once and replayed as a whole on its own stream. The host does not wait for it. Before
    recording, `work` is run a few times. After each run, `restore` is called and must undo the effect of `work`.
    `prepare`, which may compute on the host, is not recorded.
    """

    def __init__(
        self,
        work: Callable[[], None],
        device: torch.device,
        *,
        capture: bool,
        prepare: Callable[[], None],
        restore: Callable[[], None],
    ) -> None:
        self.work = work
        self.prepare = prepare
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if capture and self.stream is not None:
            self._record(self.stream, restore)

    def __call__(self) -> None:
        """Run the work once; on a GPU, enqueue it on its stream."""
        if self.stream is None:
            self.prepare()
            self.work()
            return
        with torch.cuda.stream(self.stream):
            self.prepare()
            if self.graph is None:
                self.work()
            else:
                self.graph.replay()

    def _record(self, stream: torch.cuda.Stream, restore: Callable[[], None]) -> None:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True  # the first calls select the fastest convolutions for the recording
        try:
            torch.cuda.synchronize()
            with torch.cuda.stream(stream), without_recording():
                rehearse(self.work, restore)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with capture(self.graph, stream):
                self.work()
            torch.cuda.synchronize()
        finally:
            torch.backends.cudnn.benchmark = before


def rehearse(work: Callable[[], None], restore: Callable[[], None]) -> None:
    """Run `work` three times from the same state, to compile kernels, fill caches and create the optimizer's state."""
    for _ in range(3):
        work()
        restore()
