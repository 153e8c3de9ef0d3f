"""Coordinates of a picture in the plane, and the pixels they belong to.

x points to the right and y down, with the same unit in both directions. The longer side of a picture spans [-1, 1]
with the centres of its first and last pixel at the ends. The shorter side spans less: a picture of 48 x 80 pixels
spans x in [-1, 1] and y in [-47/79, 47/79]. A square picture spans [-1, 1] x [-1, 1]. A side of one pixel has no
spacing between pixels; it spans [-1, 1] as well, and the picture is constant along it.
"""

from __future__ import annotations

import torch
from torch import Tensor

Size = tuple[int, int]
"""Height and width of a picture in pixels."""


def extent(size: Size) -> tuple[float, float]:
    """Return the half width and the half height of a picture of `size` (height, width).

    >>> extent((48, 80)), extent((64, 64))
    ((1.0, 0.5949367088607594), (1.0, 1.0))
    """
    height, width = size
    intervals = _intervals(size)
    return (width - 1) / intervals or 1.0, (height - 1) / intervals or 1.0


def same_frame(size: Size, other: Size) -> bool:
    """Return True if the aspect ratios of two sizes agree up to the rounding of a side by less than one pixel.

    Pictures of such sizes show the same frame at different resolutions.

    >>> same_frame((50, 80), (7, 10)), same_frame((48, 80), (64, 64))
    (True, False)
    """
    return abs(size[0] * other[1] - size[1] * other[0]) < max(*size, *other)


def pixel_centres(size: Size, dtype: torch.dtype, device: torch.device | str | None) -> tuple[Tensor, Tensor]:
    """Return the coordinates x `(1, 1, W)` and y `(1, H, 1)` of the pixel centres of a picture of `size` (H, W)."""
    (height, width), (right, bottom) = size, extent(size)
    x, y = (_centres(end, count, dtype, device) for end, count in ((right, width), (bottom, height)))
    return x[None, None, :], y[None, :, None]


def _centres(end: float, count: int, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    if count == 1:
        return torch.zeros(1, dtype=dtype, device=device)
    return torch.linspace(-end, end, count, dtype=dtype, device=device)


def from_pixels(places: Tensor, size: Size) -> Tensor:
    """Convert points `(..., 2)` or boxes `(..., 4)` from pixels of a picture of `size` to coordinates of the plane.

    Pixel centres are at whole numbers, and (0, 0) is the centre of the first pixel.

    >>> from_pixels(torch.tensor([79.0, 0.0]), (48, 80))
    tensor([ 1.0000, -0.5949])
    """
    unit = 2 / _intervals(size)
    columns = [(column - last / 2) * unit for column, last in _with_last_pixels(places, size)]
    return torch.stack(columns, -1)


def to_pixels(places: Tensor, size: Size) -> Tensor:
    """Convert points `(..., 2)` or boxes `(..., 4)` to pixels of a picture of `size`, the inverse of `from_pixels`."""
    unit = 2 / _intervals(size)
    columns = [column / unit + last / 2 for column, last in _with_last_pixels(places, size)]
    return torch.stack(columns, -1)


def _with_last_pixels(places: Tensor, size: Size) -> list[tuple[Tensor, int]]:
    """Return the columns of `places`, x and y in turn, each with the number of the last pixel along its axis."""
    height, width = size
    return [(column, (height if number % 2 else width) - 1) for number, column in enumerate(places.unbind(-1))]


def _intervals(size: Size) -> int:
    """Return the number of intervals between pixel centres along the longer side; 1 for a single pixel."""
    return max(*size, 2) - 1
