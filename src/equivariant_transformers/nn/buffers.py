"""Buffers that follow from what a module was made for, and keep their precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import Self


class Exact(nn.Module):
    """A module that makes some buffers anew whenever it is moved or changes its dtype, in float32 at least.

    So they are as they should be after `half().float()`, and after `to_empty` of a module from the meta device.
    """

    def __init__(self) -> None:
        super().__init__()
        self._makers: dict[str, Callable[..., Tensor]] = {}

    def keep_exact(self, name: str, make: Callable[..., Tensor]) -> None:
        """Have a buffer called `name`, which no state dict holds: what `make(dtype=, device=)` returns."""
        self._makers[name] = make
        self.register_buffer(name, _made_like(torch.empty(0), make), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, make in self._makers.items():
            setattr(self, name, _made_like(getattr(self, name), make))
        return self


def _made_like(buffer: Tensor, make: Callable[..., Tensor]) -> Tensor:
    return make(dtype=torch.promote_types(buffer.dtype, torch.float32), device=buffer.device)
