"""GPU kernels, written in Triton. Nothing but this file is imported where there is no Triton or no GPU."""

import contextlib
import importlib.util

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
DEVICES = ("cuda",)
"""Types of the devices that kernels are launched on. Tests add the CPU, where Triton interprets the kernels."""


def can_take(images: Tensor) -> bool:
    """Whether kernels can be launched on `images`: on a GPU with Triton, not for export, not under torch.func."""
    if not (images.device.type in DEVICES and HAS_TRITON) or torch.compiler._is_exporting_flag:
        return False
    return torch.compiler.is_compiling() or not torch._C._functorch.is_functorch_wrapped_tensor(images)


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Make the GPU of `tensor` the current one, as a launch needs it. On a CPU there is nothing to do."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else contextlib.nullcontext()  # type: ignore[no-untyped-call]
