"""Recording of one call of a module: a CUDA graph of its results, and another of the gradients of its weights.

The module `recording` decides which calls are recorded.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd.function import once_differentiable
from torch.utils import _pytree


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, stream: Any, pool: Any = None, mode: str = "global") -> Iterator[None]:
    """Record operations of this thread in `graph`, see `torch.cuda.graph`.

    Meanwhile no garbage is collected: what this frees on the GPU would end the recording.
    """
    with torch.cuda.graph(graph, pool, stream, mode):
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


class Graph:
    """CUDA graph of `work`, a function without arguments. A replay writes its `results` again, in the same memory."""

    def __init__(self, work: Callable[[], list[Tensor]], device: torch.device, earlier: Graph | None = None) -> None:
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        pool = None if earlier is None else earlier.graph.pool()
        with capture(self.graph, stream, pool, "thread_local"):
            results = work()
        self.results = [result.detach() for result in results]

    def replay(self) -> None:
        self.graph.replay()


def record(module: nn.Module, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Recording | None:
    """Return a recording of a call; None, with a warning, if CUDA refuses."""
    try:
        return Recording(module, function, inputs)
    except RuntimeError as error:
        if inputs[0].is_cuda:
            _end_recording(inputs[0].device)
        reason = str(error).partition("\n")[0]
        warnings.warn(f"a call could not be recorded as a CUDA graph and runs without: {reason}", stacklevel=5)
        return None


def _end_recording(device: torch.device) -> None:
    """Record something else: after a recording that failed, torch would draw no random numbers."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.graph(torch.cuda.CUDAGraph(), None, stream):
        torch.zeros((), device=device)


class Recording:
    """One kind of call: a graph of its results and, if weights have gradients, a graph of the gradients."""

    def __init__(self, module: nn.Module, function: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        device = inputs[0].device
        dtype, enabled = torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
        called = _Call(module, function)
        with torch.inference_mode(False):  # so that they can be written in any mode
            self.inputs = [torch.empty_like(given) for given in inputs]
        self.weights = [weight for weight in module.parameters() if weight.requires_grad]
        leaves: dict[str, Tensor] = {}

        def renew_leaves() -> None:
            """Replace the weights by new tensors in the same memory, whose gradients belong to the current stream."""
            outputs.clear()
            with torch.inference_mode(False):
                for name, weight in called.named_parameters():
                    leaves[name] = weight.detach().requires_grad_(weight.requires_grad)

        self._write(inputs)
        self.calls = 0
        self.waiting: weakref.ref[_Waiting] | None = None
        outputs: list[Tensor] = []  # of the latest call, those with a gradient

        def forward() -> list[Tensor]:
            with torch.autocast(device.type, dtype, enabled, cache_enabled=False):  # casts are recorded
                result = torch.func.functional_call(called, leaves, tuple(self.inputs))
            found, self.structure = _pytree.tree_flatten(result)
            tensors = [leaf for leaf in found if isinstance(leaf, Tensor) and not self._is_input(leaf)]
            outputs[:] = [tensor for tensor in tensors if tensor.requires_grad]
            fixed = [tensor for tensor in tensors if not tensor.requires_grad]
            self.fixed = _Packs(fixed)
            self.sources = [self._source(leaf, fixed, outputs) for leaf in found]
            return [*self.fixed.pack(fixed), *outputs]

        def backward() -> list[Tensor]:
            with torch.autocast(device.type, enabled=False):
                needed = [leaf for leaf in leaves.values() if leaf.requires_grad]
                # What it reads is kept, so that it can be replayed several times.
                found = torch.autograd.grad(outputs, needed, self.gradients, retain_graph=True, allow_unused=True)
            present = [gradient for gradient in found if gradient is not None]
            self.reached = [gradient is not None for gradient in found]
            self.packs = _Packs(present)
            return self.packs.pack(present)

        with _unchanged(module, device), _without_search():
            renew_leaves()
            forward()  # compiles kernels and loads libraries, which a recording cannot do
            self.gradients = [torch.zeros_like(output) for output in outputs]
            if outputs:
                backward()
            renew_leaves()
            self.forward = Graph(forward, device)
            self.backward = Graph(backward, device, self.forward) if outputs else None
        outputs.clear()

    def needed(self) -> bool:
        """Return True if the gradients of the latest call may still be asked for: another call would destroy them."""
        return self.waiting is not None and self.waiting() is not None

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        """Return the result of a call for `inputs`."""
        self._write(inputs)
        self.calls += 1
        results: Sequence[Tensor]
        if self.backward is None:
            self.forward.replay()
            results = [result.clone() for result in self.forward.results]
        else:
            results = _Replayed.apply(self, *self.weights)  # type: ignore[no-untyped-call]
        count = len(self.fixed.groups)
        tensors = {"input": inputs, "fixed": self.fixed.unpack(results[:count]), "output": results[count:]}
        leaves = [value if kind == "value" else tensors[kind][value] for kind, value in self.sources]
        return _pytree.tree_unflatten(leaves, self.structure)

    def _write(self, inputs: Sequence[Tensor]) -> None:
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given)

    def _is_input(self, leaf: Any) -> bool:
        return any(leaf is given for given in self.inputs)

    def _source(self, leaf: Any, fixed: list[Tensor], outputs: list[Tensor]) -> tuple[str, Any]:
        """Return where a leaf of the result comes from: the kind of tensors and its number among them, or its value."""
        for kind, tensors in (("input", self.inputs), ("fixed", fixed), ("output", outputs)):
            for number, tensor in enumerate(tensors):
                if leaf is tensor:
                    return kind, number
        return "value", leaf


class _Waiting:
    """Mark that lives as long as the gradients of a call may be asked for."""


class _Replayed(torch.autograd.Function):
    """Replay of a call that has gradients of the weights."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, *_weights: Tensor) -> tuple[Tensor, ...]:
        recording.forward.replay()
        results = tuple(result.clone() for result in recording.forward.results)
        ctx.mark_non_differentiable(*results[: len(recording.fixed.groups)])
        ctx.set_materialize_grads(False)
        ctx.recording, ctx.number, ctx.waiting = recording, recording.calls, _Waiting()
        recording.waiting = weakref.ref(ctx.waiting)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        recording: Recording = ctx.recording
        if ctx.number != recording.calls:
            raise RuntimeError(
                "a later call of the canonicalizer has overwritten what this second backward pass needs; call it again "
                "after all backward passes, or set canonicalizer.cuda_graph = False"
            )
        assert recording.backward is not None
        for kept, gradient in zip(recording.gradients, given[len(recording.fixed.groups) :], strict=True):
            kept.zero_() if gradient is None else kept.copy_(gradient)
        recording.backward.replay()
        present = iter(recording.packs.unpack([pack.clone() for pack in recording.backward.results]))
        recording.waiting = None
        return None, *(next(present) if reached else None for reached in recording.reached)


class _Call(nn.Module):
    """Call of a module, as a module."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class _Packs:
    """Tensors that are copied together: one flat tensor for each dtype."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        dtypes = [tensor.dtype for tensor in tensors]
        self.groups = [[n for n, own in enumerate(dtypes) if own == dtype] for dtype in dict.fromkeys(dtypes)]
        self._like = [tensor.detach() for tensor in tensors]

    def pack(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        parts = ([tensors[number] for number in group] for group in self.groups)
        return [_flatten_dense_tensors(part) for part in parts]  # type: ignore[no-untyped-call]

    def unpack(self, packs: Sequence[Tensor]) -> list[Tensor]:
        found = dict[int, Tensor]()
        for group, pack in zip(self.groups, packs, strict=True):
            like = [self._like[number] for number in group]
            found |= zip(group, _unflatten_dense_tensors(pack, like), strict=True)  # type: ignore[no-untyped-call]
        return [found[number] for number in range(len(found))]


@contextmanager
def _without_search() -> Iterator[None]:
    """Let cuDNN choose convolutions without trying them, which would end a recording."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _unchanged(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Undo what happens in the block to the buffers of `module` and to random numbers."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
