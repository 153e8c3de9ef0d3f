"""GPU kernels, written in Triton. Nothing but this file is imported where there is no Triton or no GPU."""

import importlib.util

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None


def can_take(images: Tensor) -> bool:
    """Whether kernels can be launched on `images`: on a GPU with Triton, not for export, not under torch.func."""
    if not (images.is_cuda and HAS_TRITON) or torch.compiler._is_exporting_flag:
        return False
    return torch.compiler.is_compiling() or not torch._C._functorch.is_functorch_wrapped_tensor(images)
