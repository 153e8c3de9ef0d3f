"""Buffers that are recomputed from the arguments of a module instead of being cast or loaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import Self


class Exact(nn.Module):
    """Module that recomputes some buffers whenever its device or dtype changes, in float32 or wider.

    These buffers are exact after `half().float()`, and after `to_empty` on a module from the meta device.
    """

    def __init__(self) -> None:
        super().__init__()
        self._makers: dict[str, Callable[..., Tensor]] = {}

    def keep_exact(self, name: str, make: Callable[..., Tensor]) -> None:
        """Register the result of `make(dtype=, device=)` as a non-persistent buffer `name`."""
        self._makers[name] = make
        self.register_buffer(name, _made_like(torch.empty(0), make), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, make in self._makers.items():
            setattr(self, name, _made_like(getattr(self, name), make))
        return self


def _made_like(buffer: Tensor, make: Callable[..., Tensor]) -> Tensor:
    return make(dtype=torch.promote_types(buffer.dtype, torch.float32), device=buffer.device)
