"""Evaluation mode for the duration of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(layer: Callable[[Tensor], Any]) -> Iterator[None]:
    """Disable gradients and switch to evaluation mode; restore the mode of every submodule afterwards."""
    modes = [(part, part.training) for part in layer.modules()] if isinstance(layer, nn.Module) else []
    try:
        if isinstance(layer, nn.Module):
            layer.eval()
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
