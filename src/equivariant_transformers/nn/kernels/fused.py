"""Operations in GPU kernels. Features are the raw output `(B, H, W, C)` of a convolution, in bfloat16.

The kernel that loads features normalises and activates them. This module needs Triton.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.nn.conv import CentredActivation, ScaleNorm
from equivariant_transformers.nn.kernels import activation as activations
from equivariant_transformers.nn.kernels import convolution, plain


class Features(NamedTuple):
    """Raw output of a convolution, with the normalisation and activation that are still to be applied."""

    raw: Tensor
    """Output `(B, H, W, C)` of the convolution, in bfloat16."""
    scale: Tensor
    """Factor `(C,)` of each channel."""
    shift: Tensor
    """Term `(C,)` added to each channel after scaling."""
    slope: float
    """Negative slope of the leaky ReLU."""
    centred: bool = False
    """True to subtract the activation of 0, so that 0 maps to 0."""

    def value(self, window: int = 1) -> Tensor:
        value: Tensor = activations.activate(*self, window)
        return value

    def images(self) -> Tensor:
        return self.value().permute(0, 3, 1, 2)

    def strongest(self, poses: int, sheets: int) -> list[Tensor]:
        if poses == 1:
            return [self._pool(None, sheets)]
        return plain.Features(self.images()).strongest(poses, sheets)

    def average(self, row_weights: Tensor) -> Tensor:
        return self._pool(row_weights, 1)

    def _pool(self, row_weights: Tensor | None, sheets: int) -> Tensor:
        pooled, _ = activations.pool(*self, row_weights, sheets)
        profile: Tensor = pooled.transpose(1, 2)
        return profile


def batch_normalised(
    x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, *, slope: float, wraps: tuple[bool, bool]
) -> Features:
    raw, total, squares = convolve(x, conv.weight, stride=conv.stride, padding=conv.padding, wraps=wraps)  # type: ignore[arg-type]
    assert norm.running_mean is not None
    assert norm.running_var is not None
    if norm.training:
        count = raw.numel() // raw.shape[-1]
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0)
        with torch.no_grad():
            norm.running_mean.lerp_(mean, norm.momentum)  # type: ignore[arg-type]
            norm.running_var.lerp_(variance * (count / max(count - 1, 1)), norm.momentum)  # type: ignore[arg-type]
    else:
        mean, variance = norm.running_mean, norm.running_var
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    return Features(raw, scale, norm.bias - mean * scale, slope)


def scale_normalised(
    x: Tensor,
    conv: nn.Conv2d,
    weight: Tensor,
    norm: ScaleNorm,
    activation: CentredActivation,
    *,
    wraps: tuple[bool, bool] = (False, False),
) -> Features:
    raw, _, squares = convolve(x, weight, stride=conv.stride, padding=conv.padding, wraps=wraps)  # type: ignore[arg-type]
    scale = norm.scale(squares / (raw.numel() // raw.shape[-1]) if norm.training else None)
    return Features(raw, scale, activation.bias, activation.slope, centred=True)


def maxima(x: Tensor, conv: nn.Conv2d, *, wraps: tuple[bool, bool]) -> Tensor:
    channels = conv.out_channels
    width = max(8, 1 << (channels - 1).bit_length())  # kernels need powers of two, cuDNN is fast for multiples of 8
    weight = F.pad(conv.weight, (0, 0, 0, 0, 0, 0, 0, width - channels))
    maps, *_ = convolve(x, weight, wraps=wraps)
    logits: Tensor = maps[..., :channels].flatten(1, 2).float().max(1).values + conv.bias  # type: ignore[operator]
    return logits


def convolve(
    x: Tensor,
    weight: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    wraps: tuple[bool, bool] = (False, False),
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolve `x` with 3x3 kernels `(F, C, 3, 3)`.

    Return the result `(B, h, w, F)`, its sum `(F,)` and the sum `(F,)` of its squares.

    `x` is either images `(B, C, H, W)` or features `(B, H, W, C)` in bfloat16, which need a stride of 1. `stride` and
    `padding` are (along H, along W) as in torch. `wraps` is (along W, along H) as in a chart. An axis that wraps keeps
    its length.
    """
    if x.dtype == torch.bfloat16:
        for axis, wrapped in ((1, wraps[1]), (2, wraps[0])):
            if wrapped:
                x = torch.cat((x.narrow(axis, x.shape[axis] - 1, 1), x, x.narrow(axis, 0, 1)), axis)
        narrow = weight.detach().permute(0, 2, 3, 1).to(x.dtype).contiguous()
        result, sums = convolution.convolve_features(x, weight, narrow, [*padding])
    else:
        around = [1 if wrapped else amount for wrapped, amount in zip(wraps[::-1], padding, strict=True)]
        result, sums = convolution.convolve(x.contiguous(), weight, [*stride], around, [*wraps[::-1]])
    return result, sums[0].sum(1), sums[1].sum(1)  # separate sums fuse with the code that follows when compiled
