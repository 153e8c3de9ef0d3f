"""The only place where pixels are interpolated."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from typing_extensions import TypedDict

_OUTSIDE = 4.0  # a coordinate that is well outside the image
_BINOMIAL = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
_LEVELS = 4  # anti-aliasing filters for shrinking by 1, 2, 4 and 8


class Sampling(TypedDict, total=False):
    """How an image is resampled. All fields are optional."""

    mode: Literal["bilinear", "nearest", "bicubic"]
    """How to interpolate between pixels; bilinear by default."""
    padding: Literal["zeros", "border", "reflection"]
    """What lies outside the image: the background (`zeros`, the default), its border pixels, or its reflection."""
    background: float | Tensor
    """The value outside the image, a number or a tensor that broadcasts to `(B, C, 1, 1)`; 0 by default."""
    antialias: bool
    """Whether to filter the image where it shrinks, up to eight-fold; False by default."""


def resample(
    images: Tensor,
    x: Tensor,
    y: Tensor,
    visible: Tensor,
    *,
    mode: str = "bilinear",
    padding: str = "zeros",
    background: float | Tensor = 0.0,
    antialias: bool = False,
) -> Tensor:
    """`images` `(B, C, H, W)` at points (x, y) of shape `(B or 1, ..., h, w)`, as `(B, C, ..., h, w)`."""
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(f"unknown mode {mode!r}; the modes are bilinear, nearest and bicubic")
    if padding not in ("zeros", "border", "reflection"):
        raise ValueError(f"unknown padding {padding!r}; the paddings are zeros, border and reflection")
    filled = isinstance(background, Tensor) or background != 0
    if filled and padding != "zeros":
        raise ValueError(f"a background needs padding='zeros': padding={padding!r} leaves nothing outside the image")
    grid = torch.stack(torch.broadcast_tensors(torch.where(visible, x, _OUTSIDE), y), -1)  # type: ignore[no-untyped-call]
    shape = grid.shape[1:-1]
    pictures, warps = images.shape[0], grid.shape[0]
    if pictures != warps and 1 not in (pictures, warps):
        raise ValueError(f"{pictures} images and {warps} warps: they must be as many, or one of either")
    batch = warps if pictures == 1 else pictures
    source = images.to(grid.dtype)
    if filled:
        source = source - background
    levels = _LEVELS if antialias else 1
    if antialias:
        source = _blurred(source, padding)
    sampled = F.grid_sample(
        source.expand(batch, -1, -1, -1),
        grid.flatten(1, -3).expand(batch, -1, -1, -1),
        mode=mode,
        padding_mode=padding,
        align_corners=True,
    )
    sampled = sampled.reshape(batch, levels, images.shape[1], *shape)
    if antialias:
        weights = _level_weights(grid, images.shape[-2:])  # (B or 1, levels, ..., h, w)
        sampled = (sampled * weights[:, :, None]).sum(1, keepdim=True)
    result = sampled[:, 0]
    if isinstance(background, Tensor):
        background = background.reshape(background.shape + (1,) * (result.ndim - images.ndim))
    if filled:
        result = result + background
    return result.to(images.dtype)


def smooth(images: Tensor, level: int, padding: str = "border") -> Tensor:
    """`images` `(B, C, H, W)` after one more step of smoothing: 1 makes them fit for halving, then 2 for quartering."""
    spacing = 2 ** (level - 1)
    for axis, sides in ((-2, (0, 0, 1, 1)), (-1, (1, 1, 0, 0))):
        around = [2 * spacing * side for side in sides]
        wide = F.pad(images, around, mode="constant" if padding == "zeros" else "replicate")
        shifted = [wide.narrow(axis, k * spacing, images.shape[axis]) for k in range(5)]
        images = torch.stack([weight * part for weight, part in zip(_BINOMIAL, shifted, strict=True)]).sum(0)
    return images


def _blurred(images: Tensor, padding: str) -> Tensor:
    """`images` and smoother copies of them, fit for shrinking by 1, 2, 4 and 8: `(B, levels * C, H, W)`."""
    copies = [images]
    for level in range(1, _LEVELS):
        copies.append(smooth(copies[-1], level, padding))
    return torch.cat(copies, 1)


def _level_weights(grid: Tensor, image_size: tuple[int, ...]) -> Tensor:
    """How much of each level of `_blurred` every sample takes, by the spacing of `grid` in input pixels."""
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
    """The mean of the outermost pixels of each channel of `images` `(B, C, H, W)`, as `(B, C, 1, 1)`."""
    rows = torch.cat((images[..., 0, :], images[..., -1, :]), -1)
    columns = torch.cat((images[..., 0], images[..., -1]), -1)
    return torch.cat((rows, columns), -1).mean(-1)[..., None, None]


def pixel_centres(
    size: tuple[int, int], dtype: torch.dtype, device: torch.device | str | None
) -> tuple[Tensor, Tensor]:
    """The coordinates x `(1, 1, W)` and y `(1, H, 1)` of the pixel centres of an image of `size` (H, W)."""
    height, width = size
    return _centres(width, dtype, device)[None, None, :], _centres(height, dtype, device)[None, :, None]


def _centres(count: int, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    if count == 1:
        return torch.zeros(1, dtype=dtype, device=device)
    return torch.linspace(-1, 1, count, dtype=dtype, device=device)


def check_images(images: Tensor) -> None:
    """Raise an error that says what is wrong with `images`, if anything is."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch.Tensor, got {type(images).__name__}; convert with torch.as_tensor")
    if images.ndim != 4:
        raise ValueError(f"images have shape (B, C, H, W), got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise TypeError(
            f"images must be floating point, got {images.dtype}; convert with images.float() / 255, or use mask()"
        )
    if 0 in images.shape[-2:]:
        raise ValueError(f"images need at least one pixel, got {tuple(images.shape)}")
