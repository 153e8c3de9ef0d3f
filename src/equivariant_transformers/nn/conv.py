"""Parts of convolutional networks on charts: padding for periodic axes, and layers that map 0 to 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from typing_extensions import Self

from equivariant_transformers.geometry.projective import at_least_float32


def channels_last(x: Tensor) -> Tensor:
    """Return `x` `(B, C, H, W)` in the memory format channels last, also under `torch.func.vmap`."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def pad(
    images: Tensor,
    extent: tuple[int, int],
    periodic: tuple[bool, bool],
    ends: Literal["replicate", "constant"] = "replicate",
) -> Tensor:
    """Pad `images` `(B, C, H, W)` with `extent` (along W, along H) samples on each side.

    A periodic axis wraps around. Any other axis repeats its end or, with `constant` ends, is padded with zeros.
    `periodic` is (along W, along H), as in a chart.
    """
    for amount, wraps, axis in zip(extent, periodic, (-1, -2), strict=True):
        if amount and not wraps and ends == "constant":
            images = F.pad(images, (amount, amount) if axis == -1 else (0, 0, amount, amount))
        elif amount:
            images = _extended(images, amount, axis, wraps)
    return images


def _extended(images: Tensor, amount: int, axis: int, wraps: bool) -> Tensor:
    """Extend `axis` by `amount` samples at both ends, by wrapping around or by repeating the ends.

    Unlike that of `F.pad`, the backward compiles.
    """
    samples = images.shape[axis]
    if wraps and 2 * amount <= samples:  # the gradient is summed over the ends alone
        first, middle, last = images.split_with_sizes((amount, samples - 2 * amount, amount), axis)
        return torch.cat((last, first, middle, last, first), axis)
    before, after = ((samples - amount, amount), (0, amount)) if wraps else ((0, 1), (samples - 1, 1))
    shape = [*images.shape]
    shape[axis] = amount
    around = [images.narrow(axis, *part).expand(shape) for part in (before, after)]
    return torch.cat((around[0], images, around[1]), axis)


def wrap_around(images: Tensor, reach: int, wraps: tuple[bool, bool]) -> Tensor:
    """Pad `images` `(B, C, H, W)` with `reach` samples on each side of the axes that wrap, (along W, along H)."""
    return pad(images, (reach * wraps[0], reach * wraps[1]), wraps)


class Evidence(nn.Conv1d):
    """Convolution over three samples to one channel, written as sums of products that a compiler can fuse.

    The result is in float32 or wider.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 1, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution `(B, 1, N)` of `x` `(B, C, N + 2)`."""
        samples = x.shape[2] - 2
        kernel = self.weight[0].expand(x.shape[0], -1, -1)  # one per image: the gradient is summed in two steps
        parts = (at_least_float32(x).transpose(1, 2)[..., None] * kernel[:, None]).sum(2)  # (B, N + 2, 3)
        return (parts[:, :samples, 0] + parts[:, 1 : 1 + samples, 1] + parts[:, 2:, 2])[:, None]


class ScaleNorm(nn.Module):
    r"""Divide each channel by its root mean square over the batch: $x \mapsto g\,x / \sqrt{E[x^2]}$.

    This is batch normalisation without the shift, so that 0 maps to 0. Evaluation uses a running mean square. The mean
    square is in float32 or wider even in a float16 module, where the square of a value can overflow.
    """

    mean_square: Tensor

    def __init__(self, channels: int, *, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.register_buffer("mean_square", at_least_float32(torch.ones(channels)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = self.mean_square
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.mean_square.dtype.itemsize < 4:
            self.mean_square = before.to(self.mean_square.device, torch.float32)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` `(B, C, H, W)` normalised."""
        mean_square = None
        if self.training and x.numel():
            mean_square = at_least_float32(x).square().sum((0, 2, 3)) / (x.numel() // x.shape[1])
        return x * self.scale(mean_square).to(x.dtype)[:, None, None]

    def scale(self, mean_square: Tensor | None) -> Tensor:
        """Return the factor `(C,)` of each channel.

        The factor follows from the `mean_square` of a batch, which updates the running mean square. For None, the
        running mean square is used.
        """
        if mean_square is None:
            mean_square = self.mean_square
        else:
            self.mean_square.lerp_(mean_square.detach().to(self.mean_square.dtype), self.momentum)
        return self.weight * torch.rsqrt(mean_square + self.eps)


class CentredActivation(nn.Module):
    r"""Leaky ReLU with a learned threshold that maps 0 to 0: $x \mapsto \sigma(x + b) - \sigma(b)$."""

    def __init__(self, channels: int, *, slope: float = 0.1) -> None:
        super().__init__()
        self.slope = slope
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of `x` `(B, C, H, W)`."""
        bias = self.bias[:, None, None]
        return F.leaky_relu(x + bias, self.slope, inplace=True) + -F.leaky_relu(
            bias, self.slope
        )  # the gradient of + needs no copy
