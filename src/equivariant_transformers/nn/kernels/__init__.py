"""Building blocks of networks, in two implementations that compute the same results.

A network is written once, in terms of `Operations` and `Features`. The module `plain` implements them in torch, on
`(B, C, H, W)` of any dtype. The module `fused` implements them in GPU kernels, on `(B, H, W, C)` in bfloat16. Its
kernels normalise and activate features when they load them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from equivariant_transformers.geometry import kernels
from equivariant_transformers.nn.conv import CentredActivation, ScaleNorm
from equivariant_transformers.nn.kernels import plain
from equivariant_transformers.nn.visibility import Window

_MOST_CHANNELS = 3  # channels of images
_WIDTHS = (16, 32, 64)  # numbers of features that the kernels support


class Features(Protocol):
    """Output of a layer with `C` channels, in the layout of the implementation."""

    def value(self, window: int = 1) -> Tensor:
        """Return the features as input of the next layer, averaged over windows of `window` x `window` positions."""

    def images(self) -> Tensor:
        """Return the features as `(B, C, H, W)`."""

    def strongest(self, poses: int, sheets: int) -> list[Tensor]:
        """Return the maxima `(B, C, W)` over sheets and rows and, for two `poses`, `(B, C, H)` over sheets and columns.

        The features have a batch size of `B * sheets`.
        """

    def average(self, row_weights: Tensor) -> Tensor:
        """Return the sum over rows with weights `(H,)`, as `(B, C, W)`."""


class Operations(Protocol):
    """Layers with 3x3 convolutions.

    The input `x` is either images `(B, C, H, W)` or a `Features.value`. `wraps` is True for each periodic axis, (along
    W, along H) as in a chart. A periodic axis keeps its length, and `conv` does not pad it.
    """

    def batch_normalised(
        self, x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, *, slope: float, wraps: tuple[bool, bool]
    ) -> Features:
        """Convolve, normalise by `norm`, and apply a leaky ReLU."""

    def scale_normalised(
        self,
        x: Tensor,
        conv: nn.Conv2d,
        weight: Tensor,
        norm: ScaleNorm,
        activation: CentredActivation,
        *,
        wraps: tuple[bool, bool] = (False, False),
    ) -> Features:
        """Convolve with `weight` in place of the weight of `conv`, normalise by `norm`, and apply `activation`."""

    def maxima(self, x: Tensor, conv: nn.Conv2d, *, wraps: tuple[bool, bool]) -> Tensor:
        """Return the maximum `(B, channels)` over all positions of a convolution with a bias."""


class BlockOperations(Protocol):
    """Steps of a network of blocks, each of which is a convolution, batch normalisation, SiLU and an optional shortcut.

    A padding is (along W, along H), and consists of copies of the opposite ends.
    """

    def prepared(self, x: Tensor, around: plain.Padding) -> plain.Prepared:
        """Return features `x` `(B, C, H, W)` as input of the first block, whose padding is `around`."""

    def activated(
        self, y: Tensor, norm: nn.BatchNorm2d, shortcut: Tensor | None, own: plain.Padding, around: plain.Padding
    ) -> plain.Prepared:
        """Return the result of a block as input of the next one.

        Args:
            y: output `(B, C, H, W)` of the convolution.
            norm: normalisation, whose running statistics are updated in training.
            shortcut: `Prepared.shortcut` of the block's input; None for a block without a shortcut.
            own: padding of the block.
            around: padding of the next block.
        """


def standardised(images: Tensor, valid: Tensor, window: Window) -> Tensor:
    """Return samples of a chart with zero mean per channel and unit variance, weighted by their visibility.

    Args:
        images: samples `(B, C, sheets, H, W)`.
        valid: mask `(B or 1, sheets, H, W)` of the samples inside the images.
        window: weights of the samples.
    """
    if kernels.can_take_values(images, valid):
        from equivariant_transformers.nn.kernels import standardisation

        if standardisation.fits(images, window):
            return standardisation.standardised(images, valid, window)
    return plain.standardised(images, valid, window)


def block_operations(x: Tensor, norms: Sequence[nn.BatchNorm2d]) -> BlockOperations:
    """Return the operations for a network of blocks with these `norms` and the input `x` `(B, C, H, W)`."""
    if not kernels.can_take(x) or torch.compiler.is_compiling():
        return plain
    ordinary = all(norm.affine and norm.track_running_stats and norm.momentum is not None for norm in norms)
    padded = 9 * x[:, 0].numel() * max(norm.num_features for norm in norms)  # an axis is at most trebled
    if not ordinary or not 0 < padded < 2**31:  # the kernels use 32-bit indices
        return plain
    from equivariant_transformers.nn.kernels import blocks

    return blocks


def operations(images: Tensor, first: nn.Conv2d, *others: nn.Conv2d) -> Operations:
    """Return the operations for a network that convolves `images` `(B, C, H, W)` with `first`, then with `others`."""
    if not _fit_kernels(images, first, *others):
        return plain
    from equivariant_transformers.nn.kernels import fused

    return fused


def _fit_kernels(images: Tensor, first: nn.Conv2d, *others: nn.Conv2d) -> bool:
    device = images.device.type
    if not (kernels.can_take(images) and torch.is_autocast_enabled(device)):
        return False
    width = first.out_channels
    in_bfloat16 = torch.get_autocast_dtype(device) == torch.bfloat16
    narrow = images.dtype == torch.float32 and images.shape[1] <= _MOST_CHANNELS
    countable = 0 < images.numel() * width < 2**31  # the kernels use 32-bit indices
    unstrided = all(conv.stride == (1, 1) for conv in others)
    return in_bfloat16 and narrow and countable and width in _WIDTHS and unstrided
