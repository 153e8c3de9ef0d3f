"""Test images of an audit: transformed copies of larger images, each sampled once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from equivariant_transformers.arguments import real_number, whole_number
from equivariant_transformers.geometry.frame import pixel_centres
from equivariant_transformers.geometry.groups import Group, group
from equivariant_transformers.geometry.motion import group_warp
from equivariant_transformers.geometry.resampling import check_images, outside
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.text import quote

Function = Callable[[Tensor], Any]
Theta = Tensor | Sequence[float]

_ENLARGEMENT = 4
_VALUES = 9  # number of values of theta for a range
_MOST_PIXELS = 2**14  # per side of a test image
_GOLDEN = (math.sqrt(5) - 1) / 2


class Rendering(TypedDict, total=False):
    """Options for the transformed test images. All fields are optional."""

    size: tuple[int, int] | None
    """Size (height, width) of the test images, which are sampled from larger `images`. By default, test images have the
    size of `images` and are sampled from a four-fold bicubic enlargement. Another aspect ratio crops the images or
    adds fill, as in `Warp.image`."""
    crop: float | None
    """Fraction of each side of `images` that the test images show, from their centre. The transformation acts inside
    this fixed frame and brings in content from around it: with a crop of 1/sqrt(2), content fills a square frame at
    every angle. By default the test images show the whole image, with the fill value around it."""
    fill: float | None
    """Fill value outside the images. The default is the `fill` of the layer, else the mean of each image's border."""
    batch_size: int
    """Number of images per batch; 64 by default."""


@dataclass(frozen=True)
class Renderer:
    """Sampler of test images for a layer, made by `make_renderer`."""

    size: tuple[int, int]
    enlarge: bool
    zoom: Warp
    """Map from the frame of the test images to the frame of the originals."""
    fill: float | None
    batch_size: int
    device: torch.device
    dtype: torch.dtype
    """Type of the parameters of transformations."""

    def transformation(self, acting: Group, theta: Tensor, centre: tuple[float, float]) -> Warp:
        r"""Return $T_\theta$ about the point `centre`, (dx, dy) in pixels from the centre of the test image."""
        warp = group_warp(acting, theta.to(self.device, self.dtype))
        if not any(centre):
            return warp
        pitch = pixel_pitch(self.size)
        shifts = [
            group_warp(group(name), torch.tensor(pixels * step, device=self.device, dtype=self.dtype))
            for name, pixels, step in zip(("x_translation", "y_translation"), centre, pitch, strict=True)
        ]
        shift = shifts[0] @ shifts[1]
        return shift @ warp @ shift.inverse()

    def batches(self, images: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield batches of `images` `(B, C, H, W)` on the device, enlarged where the size is not given."""
        for start in range(0, len(images), self.batch_size):
            rows = slice(start, start + self.batch_size)
            originals = images[rows].to(self.device)
            if self.enlarge:
                large = (_ENLARGEMENT * self.size[0], _ENLARGEMENT * self.size[1])
                originals = Warp.identity().image(originals, size=large, mode="bicubic", padding="border")
            yield rows, originals

    def image(self, originals: Tensor, warp: Warp) -> Tensor:
        """Return the test images of `originals`, transformed by `warp` in their own frame."""
        fill = outside(originals, self.fill)
        return (self.zoom @ warp).image(originals, size=self.size, fill=fill, antialias=True)


def make_renderer(
    layer: Function,
    images: Tensor,
    *,
    size: tuple[int, int] | None = None,
    crop: float | None = None,
    fill: float | None = None,
    batch_size: int = 64,
) -> Renderer:
    """Check the arguments of an audit and return the renderer of its test images."""
    _check(layer, images)
    parts = (*layer.parameters(), *layer.buffers()) if isinstance(layer, nn.Module) else ()
    device = parts[0].device if parts else images.device
    dtype = torch.promote_types(images.dtype, torch.float32)
    zoom = Warp.identity()
    if crop is not None:
        if not 0 < real_number("crop", crop) <= 1:
            raise ValueError(f"crop must be a fraction of the side of the images, in (0, 1]; got {quote(crop)}")
        zoom = group_warp(group("dilation"), torch.tensor(math.log(crop), dtype=dtype, device=device))
    return Renderer(
        size=(images.shape[-2], images.shape[-1]) if size is None else _size(size),
        enlarge=size is None,
        zoom=zoom,
        fill=_own_fill(layer) if fill is None else real_number("fill", fill),
        batch_size=whole_number("batch_size", batch_size),
        device=device,
        dtype=dtype,
    )


def theta_values(theta: Theta, *, crop: float | None = None) -> Tensor:
    """Return the values `(n,)` of theta in float64; for a range, evenly spaced, or `off_grid` in a cropped frame."""
    try:
        if isinstance(theta, Tensor) and theta.is_complex():
            raise TypeError  # replaced by the error below
        dense = theta.detach().to_dense() if isinstance(theta, Tensor) else theta
        values = torch.as_tensor(dense, dtype=torch.float64, device="cpu")
        if not isinstance(theta, Tensor) and values.shape == (2,):
            low, high = values.tolist()
            even = torch.linspace(low, high, _VALUES, dtype=torch.float64, device="cpu")
            values = even if crop is None else off_grid(low, high)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        values = torch.empty(0, device="cpu")
    if values.ndim != 1 or not values.numel() or not values.isfinite().all() or values.min() == values.max():
        raise ValueError(
            f"theta must be at least two distinct finite values (n,), or a range (low, high); got {quote(theta)}"
        )
    return values


def off_grid(low: float, high: float) -> Tensor:
    """Return nine values from `low` to `high`, float64: one in each ninth of the range, at an irrational fraction.

    Evenly spaced values, such as multiples of 45 degrees, often are multiples of the sample spacing of a chart. Such a
    transformation shifts the samples by whole steps, and the error of a layer between the samples is not measured.

    >>> [round(value, 2) for value in off_grid(0, 1).tolist()]
    [0.07, 0.14, 0.32, 0.39, 0.45, 0.63, 0.7, 0.88, 0.95]
    """
    ninth = torch.arange(_VALUES, dtype=torch.float64, device="cpu")
    return low + (high - low) * (ninth + (ninth + 1) * _GOLDEN % 1) / _VALUES


def pixel_pitch(size: tuple[int, int]) -> tuple[float, float]:
    """Return the distances along x and y between the centres of neighbouring pixels of an image of `size` (H, W)."""
    x, y = (ticks.flatten() for ticks in pixel_centres(size, torch.float64, "cpu"))
    return tuple(float(ticks[1] - ticks[0]) if len(ticks) > 1 else 2.0 for ticks in (x, y))  # type: ignore[return-value]


def check_centre(centre: tuple[float, float]) -> tuple[float, float]:
    """Return the offset (dx, dy) in pixels of the centre of a transformation, or raise an error."""
    try:
        x, y = centre
    except (TypeError, ValueError):
        raise ValueError(f"centre must be (dx, dy) in pixels, got {quote(centre)}") from None
    numbers = real_number("dx", x), real_number("dy", y)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"centre must be finite, got {quote(centre)}")
    return numbers


def shape_of(value: Any) -> str:
    """Return the shape of a dense tensor, or the type of any other value, for an error message."""
    dense = isinstance(value, Tensor) and not value.is_nested
    return f"shape {tuple(value.shape)}" if dense else type(value).__name__


def _size(size: Any) -> tuple[int, int]:
    """Return the height and width of the test images."""
    try:
        height, width = size
    except (TypeError, ValueError):
        raise ValueError(
            f"size must be (height, width), or None for the size of the images; got {quote(size)}"
        ) from None
    return whole_number("height", height, most=_MOST_PIXELS), whole_number("width", width, most=_MOST_PIXELS)


def _own_fill(layer: Function) -> float | None:
    parts = layer.modules() if isinstance(layer, nn.Module) else (layer,)
    found = (getattr(part, "fill", None) for part in parts)
    return next((float(value) for value in found if isinstance(value, (int, float))), None)


def _check(layer: Function, images: Tensor) -> None:
    if not callable(layer):
        raise TypeError(f"layer must be a layer or a function of images, got {quote(layer)}")
    if not isinstance(images, Tensor) or images.is_nested or images.ndim != 4 or not len(images):
        raise ValueError(f"images must have the shape (B, C, H, W) with at least one image, got {shape_of(images)}")
    check_images(images)
    if images.is_meta:
        raise ValueError("images on the meta device have no pixels: create them on another device")
