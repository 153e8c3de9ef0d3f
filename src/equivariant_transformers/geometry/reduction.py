"""Smoothed and smaller copies of images, for grids that are coarser than their pixels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from equivariant_transformers.geometry import kernels
from equivariant_transformers.geometry.frame import Size
from equivariant_transformers.geometry.projective import at_least_float32, can_inspect
from equivariant_transformers.geometry.resampling import smooth
from equivariant_transformers.geometry.warp import Warp

SIDE = 64
"""Least number of pixels along the shorter side of a reduced image."""


class Pyramid:
    """Images `(B, C, H, W)` with copies for coarser grids. Each copy is computed once, when it is needed.

    `mask` `(B, 1, H, W)` is True where the images show the picture; None if they show it everywhere.
    """

    def __init__(self, images: Tensor, mask: Tensor | None = None) -> None:
        self.images = images
        self.mask = mask
        self._smoothed = [images]
        self._reduced: tuple[Pyramid, Warp] | None = None

    def smoothed(self, grid: Tensor) -> Tensor:
        """Return the images smoothed to the resolution of a `grid` `(..., h, w, 2)` over [-1, 1] x [-1, 1].

        The smoothing is the same everywhere and in all directions, because a filter that follows the spacing of the
        grid does not move with the content.
        """
        finer = max(max(self.images.shape[-2:]) / min(grid.shape[-3:-1]), 1.0)
        level = math.floor(math.log2(finer))
        while len(self._smoothed) <= level:
            finest = len(self._smoothed) == 1
            before = self._smoothed[-1] if self.mask is None or not finest else _continued(self.images, self.mask)
            self._smoothed.append(smooth(before, len(self._smoothed)))
        return self._smoothed[level]

    def reduced(self) -> tuple[Pyramid, Warp]:
        """Return the reduced images and mask, and the warp from the coordinates of the images to theirs."""
        if self._reduced is None:
            images, mask, warp = reduce(self.images, self.mask)
            self._reduced = (self if images is self.images else Pyramid(images, mask), warp)
        return self._reduced


def reduce(images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, Warp]:
    """Return reduced images and mask, and the warp from the coordinates of the images to those of the reduced images.

    Blocks of pixels are averaged: 2 x 2 pixels from 128 along the shorter side, 4 x 4 from 256, and so on. A block of
    the mask is True if all of its pixels are. Smaller images are returned unchanged.

    >>> reduce(torch.rand(1, 3, 300, 400), None)[0].shape
    torch.Size([1, 3, 75, 100])
    """
    size = (images.shape[-2], images.shape[-1])
    block = 2 ** max(0, (min(size) // SIDE).bit_length() - 1)
    if block == 1:
        return images, mask, Warp.identity()
    smaller = _block_means(images, block)
    if mask is not None:
        mask = F.max_pool2d((~mask).to(images.dtype), block, ceil_mode=True) == 0
    return smaller, mask, _to_reduced(size, block, images.device)


def _block_means(images: Tensor, block: int) -> Tensor:
    """Return the means of blocks of pixels. On a CPU, sums of slices are faster than pooling."""
    if kernels.can_take_values(images):
        from equivariant_transformers.geometry.kernels import smoothing

        if smoothing.fits(images):
            return smoothing.average(images, block)
    if any(side % block for side in images.shape[-2:]) or not can_inspect(images):
        return F.avg_pool2d(images, block, ceil_mode=True, count_include_pad=False)
    sums = at_least_float32(images)
    for _ in range(block.bit_length() - 1):
        sums = sums[..., ::2, :] + sums[..., 1::2, :]
        sums = sums[..., ::2] + sums[..., 1::2]
    return (sums / block**2).to(images.dtype)


def _continued(images: Tensor, mask: Tensor) -> Tensor:
    """Return `images` with the pixels around the bounding box of the mask `(B, 1, H, W)` replaced by its border pixels.

    A picture is then smoothed up to its border in the same way with and without padding.
    """
    for axis, other in ((-2, -1), (-1, -2)):
        shown = mask.any(other, keepdim=True)  # (B, 1, H, 1) or (B, 1, 1, W)
        count = shown.shape[axis]
        first = shown.to(images.dtype).argmax(axis, keepdim=True)
        last = count - 1 - shown.flip(axis).to(images.dtype).argmax(axis, keepdim=True)
        places = torch.arange(count, device=images.device)
        places = (places[:, None] if axis == -2 else places).clamp(first, last)
        images = images.gather(axis, places.expand_as(images))
    return images


def _to_reduced(size: Size, block: int, device: torch.device) -> Warp:
    """Return the warp that maps the coordinates of an image of `size` to those of the image of its blocks.

    It differs from the identity because the ends of [-1, 1] are the centres of the outer pixels or blocks.
    """
    height, width = (-(-side // block) for side in size)
    intervals = block * (max(height, width) - 1)  # of a pixel, between the centres of the outer blocks
    matrix = torch.eye(3, device=device)
    matrix[:2].mul_((max(size) - 1) / intervals)
    for row, missing in enumerate((size[1] - block * width, size[0] - block * height)):
        if missing:
            matrix[row, 2] = missing / intervals
    return Warp((matrix,))
