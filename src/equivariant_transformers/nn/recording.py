"""Calls of a canonicalizer as CUDA graphs.

A canonicalizer consists of many small operations, and a GPU runs them faster than a host can launch them. A call that
recurs is therefore recorded once, as one graph for the results and one for the gradients of the weights, and then
replayed as a whole. A replay runs the recorded kernels on the present weights, with new random numbers.

A recording is for one kind of call: shapes, dtypes, modes, flags, stream and places of the weights in memory. Other
calls run as usual, and so do calls that something else tracks: `torch.compile`, export, hooks, transforms of
`torch.func`, another recording, and gradients of images or of the starting warp.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from equivariant_transformers.geometry.kernels import is_unwatched
from equivariant_transformers.nn.graphs import Recording, record

DEVICES = ("cuda",)
"""Device types on which calls are recorded. Tests add the CPU, with graphs that run again what they recorded."""
REHEARSALS = 2
"""Number of calls of a kind that run as usual before one is recorded."""
MOST = 4
"""Largest number of recordings of a module. Each keeps the memory of its call."""

_REMEMBERED = 256  # kinds of calls that are counted, of which most never recur where sizes vary
_KNOWN = ("equivariant_transformers.", "torch.nn.modules.")  # where the classes of a module come from
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_local = threading.local()


@contextmanager
def without_recording() -> Iterator[None]:
    """Run all calls in this thread as usual, for example because they are about to be recorded by the caller."""
    before, _local.off = getattr(_local, "off", False), True
    try:
        yield
    finally:
        _local.off = before


class Recorder:
    """Recordings of the calls of one module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin(None)

    def _begin(self, state: _State | None, options: Sequence[Any] = ()) -> None:
        """Forget all recordings, which were made in another state of the module or with other options."""
        self._state, self._options = state, options
        self._seen: Counter[Any] = Counter()
        self._recordings: dict[Any, Recording | None] = {}  # None for a call that could not be recorded

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        return Recorder()

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        return Recorder, ()

    def __call__(
        self, module: nn.Module, function: Callable[..., Any], inputs: Sequence[Tensor], options: Sequence[Any]
    ) -> Any:
        """Return `function(*inputs)`, from a recording where there is one.

        Args:
            module: module whose weights `function` uses.
            function: call of `module`. Tensors in its result are found by `torch.utils._pytree`.
            inputs: tensors that differ between calls.
            options: all other values on which the result depends.
        """
        if not _can_be_recorded(inputs):
            return function(*inputs)
        with self._lock:
            if self._state is None or self._options != options or not self._state.lasts():
                self._begin(_State(module), options)
            assert self._state is not None
            modes = self._state.modes()
            if modes is None:
                return function(*inputs)
            kind = (modes, *_kind(inputs))
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[kind] += 1
            if self._seen[kind] > REHEARSALS and kind not in self._recordings and len(self._recordings) < MOST:
                self._recordings[kind] = record(module, function, inputs)
            recording = self._recordings.get(kind)
            if recording is not None and not recording.needed():
                return recording.replay(inputs)
        return function(*inputs)


class _State:
    """Submodules of `module`, and the places of its weights in memory."""

    def __init__(self, module: nn.Module) -> None:
        parts = [*module.modules()]
        self._known = all(_is_known(type(part)) for part in parts)  # type: ignore[arg-type]
        self._parts = [part.__dict__ for part in parts]
        self._children = [(fields["_modules"], [*fields["_modules"].values()]) for fields in self._parts]
        owners = [fields[kind] for fields in self._parts for kind in ("_parameters", "_buffers")]
        self._owners = [(owner, [*owner]) for owner in owners if owner]
        self._tensors = [
            (owner, name, tensor, None if tensor is None else _place(tensor))
            for owner, names in self._owners
            for name in names
            for tensor in (owner[name],)
        ]

    def lasts(self) -> bool:
        """Return True if no submodule was replaced, and no weight replaced, moved, frozen or thawed."""
        for owner, name, tensor, place in self._tensors:
            if owner.get(name) is not tensor or (tensor is not None and _place(tensor) != place):
                return False
        if any(len(owner) != len(names) for owner, names in self._owners):
            return False
        return all([*modules.values()] == children for modules, children in self._children)

    def modes(self) -> tuple[Any, ...] | None:
        """Return the modes and constants of all submodules, or None if no call can be recorded.

        A submodule with hooks prevents a recording. So does a class that is part of neither this library nor torch,
        because its calls may depend on more than its weights and inputs.
        """
        if not self._known or any(getattr(module_hooks, f"_global{name}", None) for name in _HOOKS):
            return None
        modes: list[Any] = []
        for fields in self._parts:
            hooks = fields["_forward_hooks"] or fields["_forward_pre_hooks"] or fields["_backward_hooks"]
            if hooks or fields["_backward_pre_hooks"] or "forward" in fields:
                return None
            modes.append(fields["training"])
            if "eps" in fields:
                modes += (fields["eps"], fields["momentum"])
        return tuple(modes)


def _place(tensor: Tensor) -> tuple[int, torch.dtype, bool]:
    return tensor.data_ptr(), tensor.dtype, tensor.requires_grad


@functools.cache
def _is_known(kind: type[nn.Module]) -> bool:
    """Return True if the class `kind` of a module is part of this library or of torch."""
    return kind.__module__.startswith(_KNOWN)


def _can_be_recorded(inputs: Sequence[Tensor]) -> bool:
    return (
        all(given.device.type in DEVICES and not given.requires_grad and given.numel() for given in inputs)
        and len({given.device for given in inputs}) == 1
        and not getattr(_local, "off", False)
        and is_unwatched(inputs)
        and not torch.is_anomaly_enabled()
        and not (inputs[0].is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _kind(inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return what distinguishes a call from others of the same module."""
    device = inputs[0].device
    return (
        *((given.shape, given.stride(), given.dtype, given.device) for given in inputs),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.deterministic,
        torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None,
    )
