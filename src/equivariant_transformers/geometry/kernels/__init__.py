"""GPU kernels in Triton. Without Triton or a GPU, only this file of the package is imported."""

import contextlib
import importlib.util
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

HAS_TRITON = importlib.util.find_spec("triton") is not None
DEVICES = ("cuda",)
"""Device types that kernels are launched on. Tests add the CPU, where Triton interprets the kernels."""


def can_take(images: Tensor, *others: Tensor) -> bool:
    """Return True if kernels can be launched on these tensors: on a GPU with Triton, outside export and torch.func.

    An exported program consists of torch operations, so that it can be converted and run without this library.
    """
    if not (images.device.type in DEVICES and HAS_TRITON) or torch.compiler._is_exporting_flag:
        return False
    if torch.compiler.is_compiling():
        return True
    return not any(map(torch._C._functorch.is_functorch_wrapped_tensor, (images, *others)))


def can_take_values(images: Tensor, *others: Tensor) -> bool:
    """Return True if kernels without gradients can be launched on these tensors, outside of a compiler."""
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and images.requires_grad):
        return False
    return can_take(images, *others)


def is_unwatched(tensors: Iterable[Tensor | None]) -> bool:
    """Return True if nothing but autograd tracks operations on these tensors: no tracing, mode or subclass."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or any(tensor is not None and type(tensor) not in (Tensor, Parameter) for tensor in tensors)
    )


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context in which the GPU of `tensor` is the current device, as a launch requires; empty on a CPU."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else contextlib.nullcontext()  # type: ignore[no-untyped-call]
