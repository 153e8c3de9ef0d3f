"""Interpolation of pixels, for the whole library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from typing_extensions import TypedDict

from equivariant_transformers.geometry import kernels, projective
from equivariant_transformers.geometry.frame import extent

_OUTSIDE = 4.0  # coordinate well outside the image
_FAR = 1e18  # largest coordinate that grid_sample converts to pixels safely; beyond, it may read out of bounds
_FRAME = 4  # width in pixels of the frame that a cubic convolution may read around an image
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of images
_LEVELS = 4  # anti-aliasing filters for shrinking by 1, 2, 4 and 8


class Sampling(TypedDict, total=False):
    """Options of resampling. All fields are optional."""

    mode: Literal["bilinear", "nearest", "bicubic", "sharp_bicubic"]
    """Interpolation between pixels; bilinear by default.

    `bicubic` and `sharp_bicubic` are cubic convolutions over 4 x 4 pixels. Their slope a at distance one is -0.75 (as
    in PyTorch) and -1.
    """
    padding: Literal["zeros", "border", "reflection"]
    """Values outside the image: the fill value (`zeros`, the default), the border pixels, or a reflection."""
    fill: float | Tensor
    """Fill value outside the image, a number or a tensor that broadcasts to `(B, C, 1, 1)`; 0 by default."""
    antialias: bool
    """Low-pass filter the image where it shrinks, up to eight-fold; False by default."""


def resample(
    images: Tensor,
    places: Tensor,
    visible: Tensor,
    *,
    mode: str = "bilinear",
    padding: str = "zeros",
    fill: float | Tensor = 0.0,
    antialias: bool = False,
    frame: tuple[float, float] | None = None,
) -> Tensor:
    """Sample `images` `(B, C, H, W)` at the points `places` `(2, B or 1, ..., h, w)`, as `(B, C, ..., h, w)`.

    Points that are not `visible` `(B or 1, ..., h, w)` lie outside the images; `()` if all are visible. The images span
    `frame` (half width, half height); by default the `extent` of their size.
    """
    if mode not in ("bilinear", "nearest", "bicubic", "sharp_bicubic"):
        raise ValueError(f"unknown mode {mode!r}; the modes are bilinear, nearest, bicubic and sharp_bicubic")
    if padding not in ("zeros", "border", "reflection"):
        raise ValueError(f"unknown padding {padding!r}; the paddings are zeros, border and reflection")
    filled = isinstance(fill, Tensor) or fill != 0
    if filled and padding != "zeros":
        raise ValueError(f"a fill value needs padding='zeros', got padding={padding!r}; change one of the two")
    ends = extent((images.shape[-2], images.shape[-1])) if frame is None else frame
    if visible.ndim:
        if padding != "zeros":  # a hidden point takes the value at the end of its row
            visible = torch.stack((visible, torch.ones_like(visible)))
        places = torch.where(visible, places, _OUTSIDE)
    grid = _stretched(places, ends).movedim(0, -1)
    shape = grid.shape[1:-1]
    pictures, warps = images.shape[0], grid.shape[0]
    if pictures != warps and 1 not in (pictures, warps):
        raise ValueError(f"{pictures} images and {warps} warps: the counts must be equal, or one of them 1")
    batch = warps if pictures == 1 else pictures
    source = images.to(grid.dtype)
    if filled:
        source = source - fill
    if antialias:
        source = _blurred(source, padding)
    source = source.expand(batch, -1, -1, -1)
    flat = grid.flatten(1, -3).expand(batch, -1, -1, -1)
    if mode == "sharp_bicubic":
        sampled = _sharp_bicubic(source, flat, padding)
    else:
        sampled = F.grid_sample(source, flat, mode=mode, padding_mode=padding, align_corners=True)
    if antialias:
        weights = _level_weights(grid, images.shape[-2:]).flatten(2, -2)  # (B or 1, levels, rows, w)
        sampled = (sampled.reshape(batch, _LEVELS, images.shape[1], *flat.shape[1:3]) * weights[:, :, None]).sum(1)
    if filled:
        sampled.add_(fill)  # in place: a new tensor of this size costs more than the sum
    return sampled.reshape(batch, images.shape[1], *shape).to(images.dtype)


def _stretched(places: Tensor, ends: tuple[float, float]) -> Tensor:
    """Convert points `(2, ...)` of which the image spans `ends` to those of `grid_sample`, where it spans [-1, 1]."""
    if ends != (1, 1):
        places = torch.stack([place / end for place, end in zip(places, ends, strict=True)])
    return places if _known_near(places) else places.clamp(-_FAR, _FAR).nan_to_num_(_OUTSIDE)


def _known_near(places: Tensor) -> bool:
    """Return True if it is known that no coordinate is NaN or beyond `_FAR`."""
    if not projective.can_inspect(places) or not places.numel():
        return False
    least, greatest = torch.aminmax(places.detach())
    return bool(least >= -_FAR) and bool(greatest <= _FAR)


def _sharp_bicubic(images: Tensor, grid: Tensor, padding: str) -> Tensor:
    """Sample `images` `(B, C, H, W)` at `grid` `(B, h, w, 2)` by cubic convolution with a = -1, as `(B, C, h, w)`."""
    shape = images.shape[:2] + grid.shape[1:3]
    column, right = _cell(grid[..., 0], images.shape[-1], padding)
    row, down = _cell(grid[..., 1], images.shape[-2], padding)
    framed = _framed(_framed(images, -1, padding), -2, padding)
    lines, stride = framed.shape[-2:]
    pixels = framed.flatten()
    first = torch.arange(0, len(pixels), lines * stride, device=images.device).reshape(*shape[:2], 1, 1)
    corner = (first + (row * stride + column)[:, None]).flatten()  # the first of the 4 x 4 pixels, in `pixels`
    right, down = (part[:, None].expand(shape).flatten() for part in (right, down))
    # Skip samples whose 4 x 4 pixels are all zero. Their number is a value, which only a CPU returns without waiting.
    skip = not images.requires_grad and projective.can_inspect(images)
    if skip:
        ink = pixels != 0
        for step in (1, stride):
            ink = ink[: -3 * step] | ink[step : -2 * step] | ink[2 * step : -step] | ink[3 * step :]
        busy = ink.index_select(0, corner).nonzero()[:, 0]
        corner, right, down = (part.index_select(0, busy) for part in (corner, right, down))
    count = len(pixels) - 3 * (stride + 1)
    across, along = _cubic_weights(right), _cubic_weights(down)
    sums = []
    for i in range(4):
        taps = [pixels[i * stride + j :][:count].index_select(0, corner) for j in range(4)]
        sums.append(_weighted_sum(taps, across))
    values = _weighted_sum(sums, along)
    if skip:
        values = torch.zeros(shape, dtype=values.dtype, device=values.device).flatten().index_copy(0, busy, values)
    return values.reshape(shape)


def _cell(place: Tensor, size: int, padding: str) -> tuple[Tensor, Tensor]:
    """Return the first of the four pixels around `place` in the framed image, and the offset from the second pixel."""
    position = (place + 1) * ((size - 1) / 2)
    if padding == "reflection":
        position = _reflected(position, size)
    position = position.clamp(-2, size + 1)
    second = position.detach().floor()
    return (second + (_FRAME - 1)).long(), position - second


def _cubic_weights(t: Tensor) -> tuple[Tensor, ...]:
    """Return the weights of four pixels in a row at `t` from 0 (second pixel) to 1 (third pixel), with a = -1."""
    s = 1 - t
    return -t * s * s, 1 - t * t * (2 - t), 1 - s * s * (2 - s), -s * t * t


def _weighted_sum(parts: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    total = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = torch.addcmul(total, part, weight)
    return total


def _framed(images: Tensor, axis: int, padding: str) -> Tensor:
    """Pad `images` with `_FRAME` pixels at both ends of `axis`."""
    size = images.shape[axis]
    places = torch.arange(-_FRAME, size + _FRAME, device=images.device)
    if padding == "reflection":
        places = _reflected(places, size)
    framed = images.index_select(axis, places.clamp(0, size - 1))
    if padding == "zeros":
        framed = framed * ((places >= 0) & (places < size)).to(images.dtype).reshape(-1, *[1] * (-1 - axis))
    return framed


def _reflected(places: Tensor, size: int) -> Tensor:
    """Reflect `places`, in pixels, into the image at its first and its last pixel."""
    last = max(size - 1, 1)
    return last - ((places % (2 * last)) - last).abs()


def smooth(images: Tensor, level: int, padding: str = "border") -> Tensor:
    """Smooth `images` `(B, C, H, W)` by one more step: `level` 1 prepares them for halving, then 2 for quartering."""
    if images.shape[1] == 0:  # F.pad rejects images without channels
        return images
    if padding == "border" and kernels.can_take_values(images):
        from equivariant_transformers.geometry.kernels import smoothing

        if smoothing.fits(images):
            return smoothing.smooth(images, level)
    spacing = 2 ** (level - 1)
    # Four sums of neighbours along each axis give the binomial weights 1, 4, 6, 4, 1, here without a division.
    smoothed = projective.at_least_float32(images) / 256
    smoothed = F.pad(smoothed, [2 * spacing] * 4, mode="constant" if padding == "zeros" else "replicate")
    for axis in (-2, -2, -1, -1):
        first, middle, last = (smoothed.narrow(axis, k * spacing, smoothed.shape[axis] - 2 * spacing) for k in range(3))
        smoothed = (first + last).add_(middle, alpha=2)
    return smoothed.to(images.dtype)


def _blurred(images: Tensor, padding: str) -> Tensor:
    """Return `images` and smoothed copies, prepared for shrinking by 1, 2, 4 and 8: `(B, levels * C, H, W)`."""
    copies = [images]
    for level in range(1, _LEVELS):
        copies.append(smooth(copies[-1], level, padding))
    return torch.cat(copies, 1)


def _level_weights(grid: Tensor, image_size: tuple[int, ...]) -> Tensor:
    """Return the weight of each level of `_blurred` in every sample, from the spacing of `grid` in input pixels."""
    height, width = image_size
    spacing = torch.ones(grid.shape[:-1], dtype=grid.dtype, device=grid.device)
    for axis in (-3, -2):
        if grid.shape[axis] > 1:
            x, y = grid.detach().diff(dim=axis).unbind(-1)
            steps = torch.hypot(x * (max(width - 1, 1) / 2), y * (max(height - 1, 1) / 2))
            nearest = torch.cat((steps, steps.narrow(axis + 1, -1, 1)), axis + 1)
            spacing = torch.maximum(spacing, nearest)
    level = torch.log2(spacing).clamp(0, _LEVELS - 1)
    levels = torch.arange(_LEVELS, device=grid.device).reshape(-1, *[1] * (level.ndim - 1))
    return (1 - (level[:, None] - levels).abs()).clamp_min(0)


def border_mean(images: Tensor) -> Tensor:
    """Return the mean of the outermost pixels of each channel of `images` `(B, C, H, W)`, as `(B, C, 1, 1)`."""
    sides = (images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1])
    pixels = torch.cat([projective.at_least_float32(side) for side in sides], -1)
    return pixels.mean(-1)[..., None, None].to(images.dtype)


def masked_fill(images: Tensor, mask: Tensor, fill: float | None) -> float | Tensor:
    """Return the fill value of `images` with padding: `fill`, or the mean of the pixels where `mask` is True."""
    if (
        not isinstance(mask, Tensor)
        or mask.dtype != torch.bool
        or mask.shape != (images.shape[0], 1, *images.shape[-2:])
    ):
        given = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"a mask is a boolean tensor (B, 1, H, W) for images {tuple(images.shape)}, got {given}")
    if fill is not None:
        return fill
    total = torch.where(mask, projective.at_least_float32(images), 0).sum((2, 3), keepdim=True)
    return (total / mask.sum((2, 3), keepdim=True).clamp_min(1)).to(images.dtype)


def outside(images: Tensor, fill: float | None) -> float | Tensor:
    """Return the fill value of `images`: `fill`, or the border mean of each image if `fill` is None."""
    return border_mean(images) if fill is None else fill


def check_images(images: Tensor) -> None:
    """Raise an error unless `images` is a dense floating-point tensor `(B, C, H, W)` with at least one pixel."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch.Tensor, got {type(images).__name__}; convert with torch.as_tensor")
    if images.is_nested:
        raise TypeError("images must be one tensor (B, C, H, W), got a nested tensor; resize the images and stack them")
    if images.ndim != 4:
        raise ValueError(f"images have shape (B, C, H, W), got {tuple(images.shape)}")
    if images.layout != torch.strided:
        raise TypeError(f"images must be dense, got the layout {images.layout}; convert with images.to_dense()")
    if images.dtype not in _DTYPES:
        needed = "of 16 bits or more" if images.is_floating_point() else "floating point"
        raise TypeError(
            f"images must be {needed}, got {images.dtype}; convert with images.float() / 255, or use mask()"
        )
    if 0 in images.shape[-2:]:
        raise ValueError(f"images need at least one pixel, got {tuple(images.shape)}")
