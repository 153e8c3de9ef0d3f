"""Operations in torch. Features are `(B, C, H, W)`, normalised and activated right after the convolution."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.geometry.projective import at_least_float32
from equivariant_transformers.nn.conv import CentredActivation, ScaleNorm, pad, wrap_around
from equivariant_transformers.nn.visibility import Window

Padding = tuple[int, int]
"""Numbers of samples on each side, along W and along H."""


class Features(NamedTuple):
    """Normalised and activated features."""

    finished: Tensor
    """Features `(B, C, H, W)`."""

    def value(self, window: int = 1) -> Tensor:
        return F.avg_pool2d(self.finished, window) if window > 1 else self.finished

    def images(self) -> Tensor:
        return self.finished

    def strongest(self, poses: int, sheets: int) -> list[Tensor]:
        pooled = [_maximum(self.finished, axis) for axis in (2, 3)[:poses]]
        return [profile.reshape(-1, sheets, *profile.shape[1:]).max(1).values for profile in pooled]

    def average(self, row_weights: Tensor) -> Tensor:
        return _average_rows(self.finished, row_weights)


def batch_normalised(
    x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, *, slope: float, wraps: tuple[bool, bool]
) -> Features:
    found = norm(conv(wrap_around(x, 1, wraps)))
    return Features(F.leaky_relu(found, slope, inplace=True) if slope else F.relu(found, inplace=True))


def scale_normalised(
    x: Tensor,
    conv: nn.Conv2d,
    weight: Tensor,
    norm: ScaleNorm,
    activation: CentredActivation,
    *,
    wraps: tuple[bool, bool] = (False, False),
) -> Features:
    found = F.conv2d(wrap_around(x, 1, wraps), weight, stride=conv.stride, padding=conv.padding)
    return Features(activation(norm(found)))


class Prepared(NamedTuple):
    """Features as input of a block."""

    padded: Tensor
    """Features `(B, C, H, W)`, padded for the convolution of the block by wrapping around."""
    shortcut: Tensor
    """The same features for the shortcut of the block; here without padding."""


def prepared(x: Tensor, around: Padding) -> Prepared:
    return Prepared(pad(x, around, (True, True)), x)


def activated(y: Tensor, norm: nn.BatchNorm2d, shortcut: Tensor | None, own: Padding, around: Padding) -> Prepared:
    value = F.silu(norm(y))
    return prepared(value if shortcut is None else value.add_(shortcut), around)


def standardised(images: Tensor, valid: Tensor, window: Window) -> Tensor:
    weights, values = window(valid)[:, None], at_least_float32(images)
    total = weights.sum((2, 3, 4), keepdim=True).clamp_min(1e-6)
    centred = values - (values * weights).sum((2, 3, 4), keepdim=True) / total
    weighted = centred * weights
    variance = (centred * weighted).sum((1, 2, 3, 4), keepdim=True) / (images.shape[1] * total)
    result: Tensor = (weighted * torch.rsqrt(variance + 1e-6)).to(images.dtype)
    return result


def maxima(x: Tensor, conv: nn.Conv2d, *, wraps: tuple[bool, bool]) -> Tensor:
    maps: Tensor = conv(wrap_around(x, 1, wraps))  # (B, channels, h, w)
    return maps.flatten(2).max(2).values  # not amax: see `_maximum`


def _maximum(x: Tensor, axis: int) -> Tensor:
    """Return the maximum of `x` `(B, C, H, W)` along axis 2 or 3, with its gradient at the index of the maximum.

    The backward of `amax` compares `x` with the maximum, which fails if a compiler recomputes `x` in another precision.
    With the channels moved last, their place in memory on a CPU, the gradient has the memory format of `x`.
    """
    return x.movedim(1, 3).max(axis - 1).values.movedim(2, 1)


def _average_rows(x: Tensor, weights: Tensor) -> Tensor:
    """Return the average `(B, C, W)` of the rows of `x` `(B, C, H, W)` with weights `(H,)`; fast for channels last."""
    rows = x.permute(0, 2, 3, 1)  # (B, H, W, C)
    average = weights.to(x.dtype)[None] @ rows.flatten(2)  # (B, 1, W * C)
    return average.reshape(-1, *rows.shape[2:]).transpose(1, 2)
