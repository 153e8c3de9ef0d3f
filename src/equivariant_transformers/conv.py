"""Convolution over a chart's picture: padding that knows periodic axes, and layers that map nothing to nothing."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.projective import at_least_float32

_FEW = 64  # values of a kernel


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


def convolve(
    images: Tensor, kernels: Tensor, stride: tuple[int, ...] = (1, 1), padding: tuple[int, ...] = (0, 0)
) -> Tensor:
    """`images` `(B, C, H, W)` convolved with `kernels` `(O, C, h, w)`, with `padding` (along H, along W) of zeros.

    A GPU is slow to convolve one or two channels; there it is a product of matrices.
    """
    channels, height, width = kernels.shape[1:]
    if not images.is_cuda or channels * height * width > _FEW:
        return F.conv2d(images, kernels, stride=stride, padding=padding)
    images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    rows, columns = images.shape[2] - height + 1, images.shape[3] - width + 1
    shifted = [
        images[:, :, i : i + rows : stride[0], j : j + columns : stride[1]] for i in range(height) for j in range(width)
    ]
    patches = torch.stack(shifted, -1).permute(0, 2, 3, 1, 4)  # (B, rows, columns, C, h * w)
    batch, rows, columns = patches.shape[:3]
    patches = patches.reshape(batch, rows * columns, -1)
    unused = -patches.shape[-1] % 16  # matrix units want multiples of 16
    weights = F.pad(kernels.flatten(1), (0, unused)).t()
    # One product for each image, so that the sum over images in the gradient is spread over the GPU.
    result = torch.bmm(F.pad(patches, (0, unused)), weights.expand(batch, -1, -1))
    return result.reshape(batch, rows, columns, -1).permute(0, 3, 1, 2)


class Conv2d(nn.Conv2d):
    """`convolve` with weights of its own."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, bias=False)
        self.zeros = padding

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` to `(B, O, h, w)`."""
        return convolve(images, self.weight, self.stride, self.zeros)


class ScaleNorm(nn.Module):
    r"""Divide each channel by its root mean square over the batch: $x \mapsto g\,x / \sqrt{E[x^2]}$.

    Batch normalisation without its shift, so that 0 stays 0. In evaluation a running mean square is used.
    """

    mean_square: Tensor

    def __init__(self, channels: int, *, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.register_buffer("mean_square", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """`(B, C, H, W)` to the same shape."""
        if self.training and x.numel():
            mean_square = at_least_float32(x).square().sum((0, 2, 3)) / (x.numel() // x.shape[1])
            self.mean_square.lerp_(mean_square.detach(), self.momentum)
        else:
            mean_square = self.mean_square
        scale = self.weight * torch.rsqrt(mean_square + self.eps)
        return x * scale.to(x.dtype)[:, None, None]


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
