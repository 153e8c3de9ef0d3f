"""Features whose normalisation and activation are left to whoever reads them: a GPU does them on the way.

On a GPU, in bfloat16, the networks of this library go through the modules of `kernels`; everywhere else they use the
operations of torch. Both compute the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from equivariant_transformers.geometry import kernels
from equivariant_transformers.nn.conv import CentredActivation, ScaleNorm

_MOST_CHANNELS = 3  # of images
_WIDTHS = (16, 32, 64)  # features that fit the kernels


class Features(NamedTuple):
    """What a convolution left, and what is still to do to it."""

    raw: Tensor
    """`(B, H, W, C)`, bfloat16."""
    scale: Tensor
    """`(C,)`."""
    shift: Tensor
    """`(C,)`."""
    slope: float
    """Of the leaky ReLU."""
    centred: bool = False
    """Whether the activation of nothing is taken off, so that 0 stays 0."""

    def value(self, window: int = 1) -> Tensor:
        """The features `(B, H, W, C)`, normalised and activated, and averaged over windows of some places each way."""
        from equivariant_transformers.nn.kernels import activation

        value: Tensor = activation.activate(*self, window)
        return value

    def strongest(self, sheets: int) -> Tensor:
        """The maximum over rows, and over the sheets of each of `B` images: `(B * sheets, H, W, C)` to `(B, C, W)`."""
        return self._pool(None, sheets)

    def average(self, row_weights: Tensor) -> Tensor:
        """The sum over rows with weights `(H,)`, `(B, C, W)`."""
        return self._pool(row_weights, 1)

    def _pool(self, row_weights: Tensor | None, sheets: int) -> Tensor:
        from equivariant_transformers.nn.kernels import activation

        pooled, _ = activation.pool(*self, row_weights, sheets)
        profile: Tensor = pooled.transpose(1, 2)
        return profile


def fits(images: Tensor, width: int) -> bool:
    """Whether networks of `width` features can use `Features` on `images` `(B, C, H, W)`, here and now."""
    if not (kernels.can_take(images) and torch.is_autocast_enabled("cuda")):
        return False
    in_bfloat16 = torch.get_autocast_dtype("cuda") == torch.bfloat16
    narrow = images.dtype == torch.float32 and images.shape[1] <= _MOST_CHANNELS
    countable = 0 < images.numel() * width < 2**31  # the kernels count in 32 bits
    return in_bfloat16 and narrow and countable and width in _WIDTHS


def convolve(
    x: Tensor,
    weight: Tensor,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    wraps: tuple[bool, bool] = (False, False),
) -> tuple[Tensor, Tensor, Tensor]:
    """The result `(B, h, w, F)` of 3x3 kernels `(F, C, 3, 3)`, and the sums `(F,)` of it and of its squares.

    Images are `(B, C, H, W)`; features, `(B, H, W, C)` in bfloat16, have a stride of 1. `stride` and `padding` are
    (along H, along W) as in torch, `wraps` (along W, along H) as in a chart; an axis that wraps keeps its length.
    """
    from equivariant_transformers.nn.kernels import convolution

    if x.dtype == torch.bfloat16:
        for axis, wrapped in ((1, wraps[1]), (2, wraps[0])):
            if wrapped:
                x = torch.cat((x.narrow(axis, x.shape[axis] - 1, 1), x, x.narrow(axis, 0, 1)), axis)
        narrow = weight.detach().permute(0, 2, 3, 1).to(x.dtype).contiguous()
        result, sums = convolution.convolve_features(x, weight, narrow, [*padding])
    else:
        around = [1 if wrapped else amount for wrapped, amount in zip(wraps[::-1], padding, strict=True)]
        result, sums = convolution.convolve(x.contiguous(), weight, [*stride], around, [*wraps[::-1]])
    return result, sums[0].sum(1), sums[1].sum(1)  # not at once: a compiler makes one kernel of these and what follows


def batch_norm(norm: nn.BatchNorm2d, raw: Tensor, total: Tensor, squares: Tensor, slope: float) -> Features:
    """What a convolution left, to be normalised by `norm` and followed by a leaky ReLU."""
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


def scale_norm(
    norm: ScaleNorm, activation: CentredActivation, raw: Tensor, _total: Tensor, squares: Tensor
) -> Features:
    """What a convolution left, to be normalised by `norm` and followed by `activation`."""
    scale = norm.scale(squares / (raw.numel() // raw.shape[-1]) if norm.training else None)
    return Features(raw, scale, activation.bias, activation.slope, centred=True)
