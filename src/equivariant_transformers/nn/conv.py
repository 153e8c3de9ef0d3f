"""Convolution over a chart's picture: padding that knows periodic axes, and layers that map nothing to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from typing_extensions import Self

from equivariant_transformers.geometry.projective import at_least_float32


def pad(
    images: Tensor,
    extent: tuple[int, int],
    periodic: tuple[bool, bool],
    ends: Literal["replicate", "constant"] = "replicate",
) -> Tensor:
    """`images` `(B, C, H, W)` with `extent` (along W, along H) more samples on each side.

    A periodic axis wraps around, any other repeats its end or, with `constant` ends, gets zeros. `periodic` is
    (along W, along H), the order of a chart.
    """
    for amount, wraps, axis in zip(extent, periodic, (-1, -2), strict=True):
        if amount and not wraps and ends == "constant":
            images = F.pad(images, (amount, amount) if axis == -1 else (0, 0, amount, amount))
        elif amount:
            last = images.shape[axis] - 1
            before, after = ((last + 1 - amount, amount), (0, amount)) if wraps else ((0, 1), (last, 1))
            shape = [*images.shape]
            shape[axis] = amount
            around = [images.narrow(axis, *part).expand(shape) for part in (before, after)]
            images = torch.cat((around[0], images, around[1]), axis)  # unlike F.pad, it compiles both ways
    return images


def wrap_around(images: Tensor, reach: int, wraps: tuple[bool, bool]) -> Tensor:
    """`images` `(B, C, H, W)` with `reach` more samples on each side of the axes that wrap, (along W, along H)."""
    return pad(images, (reach * wraps[0], reach * wraps[1]), wraps)


class Evidence(nn.Conv1d):
    """A convolution of three samples to one channel, as sums of products that a compiler can fuse with what is around.

    The result has at least float32.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 1, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, C, N + 2)` to `(B, 1, N)`."""
        samples = x.shape[2] - 2
        kernel = self.weight[0].expand(x.shape[0], -1, -1)  # one for each image: its gradient is summed in two steps
        parts = (at_least_float32(x).transpose(1, 2)[..., None] * kernel[:, None]).sum(2)  # (B, N + 2, 3)
        return (parts[:, :samples, 0] + parts[:, 1 : 1 + samples, 1] + parts[:, 2:, 2])[:, None]


class ScaleNorm(nn.Module):
    r"""Divide each channel by its root mean square over the batch: $x \mapsto g\,x / \sqrt{E[x^2]}$.

    Batch normalisation without its shift, so that 0 stays 0. In evaluation a running mean square is used. Its precision
    is at least float32, also in a module of float16: the square of a value can overflow where the value does not.
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
        """`(B, C, H, W)` to the same shape."""
        mean_square = None
        if self.training and x.numel():
            mean_square = at_least_float32(x).square().sum((0, 2, 3)) / (x.numel() // x.shape[1])
        return x * self.scale(mean_square).to(x.dtype)[:, None, None]

    def scale(self, mean_square: Tensor | None) -> Tensor:
        """What to multiply channels by, `(C,)`: by the `mean_square` of a batch, or by that of earlier batches."""
        if mean_square is None:
            mean_square = self.mean_square
        else:
            self.mean_square.lerp_(mean_square.detach().to(self.mean_square.dtype), self.momentum)
        return self.weight * torch.rsqrt(mean_square + self.eps)


class CentredActivation(nn.Module):
    r"""A leaky ReLU with a learned threshold that maps 0 to 0: $x \mapsto \sigma(x + b) - \sigma(b)$."""

    def __init__(self, channels: int, *, slope: float = 0.1) -> None:
        super().__init__()
        self.slope = slope
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """`(B, C, H, W)` to the same shape."""
        bias = self.bias[:, None, None]
        return F.leaky_relu(x + bias, self.slope, inplace=True) + -F.leaky_relu(
            bias, self.slope
        )  # the gradient of + needs no copy
