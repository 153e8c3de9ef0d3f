"""Fit of canonical coordinates to the image: ranges, grid sizes and distortion."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from equivariant_transformers.geometry.charts import Chart, Map, Range

ANY: tuple[Range, Range] = ((-1.0, 1.0), (-1.0, 1.0))
"""Placeholder ranges of a chart before `fitted`."""

_SINGULAR = 1e-6  # distance from the singular set below which rounding dominates
_APART = 0.1  # smallest magnitude of a coordinate with a pole, as a fraction of its median magnitude
_STEEP = {1: 64, 2: 96}  # order -> largest steepness relative to the median; beyond, a pixel covers much of the chart
_THIN = 0.2  # smallest number of orbits in a column, as a fraction of the fullest column
_FADES = 2  # e-foldings of the speed along an orbit that runs towards a fixed point
_WIDTHS = (64, 128, 256)
_STRIDE = 0.1  # distance that a point of median speed may move between two samples of the pose


def image_points(samples: int = 96) -> Tensor:
    """Return a float64 grid `(samples**2, 2)` over [-1, 1] x [-1, 1], with corners; an even count avoids the axes."""
    ticks = torch.linspace(-1, 1, samples, dtype=torch.float64)
    return torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1).flatten(0, 1)


@dataclass(frozen=True)
class Side:
    """Sheets of a pose coordinate with a pole: 1 for `points` `(..., 2)` with a negative coordinate, else 0."""

    to_canonical: Map

    def __call__(self, points: Tensor) -> Tensor:
        return (self.to_canonical(points)[..., 0] < 0).long()


def fitted(chart: Chart, points: Tensor) -> Chart:
    r"""Fit the ranges, origin, order and width of `chart` to the image, from `points` `(n, 2)` spread over the image.

    A periodic coordinate gets its whole period. The range of any other coordinate ends where its steepness
    $|\nabla\rho_i|$ exceeds 64 times the median over the image. Closer to a singular set, a pixel spans so much of the
    coordinate that it carries no information. If the orbits run towards a fixed point, two derivatives along the flow
    fade out the content near this point (`Chart.order`), and the limit is 96. If the steepness limits the pose
    coordinate, its range ends at the last column of the grid with at least a fifth as many orbits as the fullest
    column: all orbits that run *into* a singular set reach it, but among orbits that run *along* the set only the
    nearest extend far. The two sides of a pole, such as the pole of 1/x, become sheets, so that content on both sides
    shares one range. The origin is the median of each coordinate.

    >>> from equivariant_transformers import chart
    >>> for name in ("dilation", "x_shear"):
    ...     low, high = fitted(chart(name), image_points(256)).ranges[0]
    ...     print(f"{name}: {low:.1f} to {high:.1f}")
    dilation: -4.4 to 0.3
    x_shear: -4.8 to 4.8
    """
    points = points[chart.distance(points).abs() > _SINGULAR]
    values, steepness = _with_steepness(chart.to_canonical, points)
    if chart.sheets == 1 and chart.periods[0] is None and _has_pole(values[:, 0]):
        chart = chart.replace(sheets=2, mirrored=True, sheet_of=Side(chart.forward))
        values[:, 0] = values[:, 0].abs()
    fits = _with_ranges(chart, values, steepness, _STEEP[1])
    order = _order(fits)
    if order == 2:
        fits = _with_ranges(chart, values, steepness, _STEEP[2])
    return fits.replace(order=order, size=(chart.size[0], _width(fits, points)))


def _with_ranges(chart: Chart, values: Tensor, steepness: Tensor, limit: float) -> Chart:
    """Return `chart` with the ranges and the origin of its coordinates where they are at most `limit` times as steep.

    `values` and `steepness` `(n, 2)` are the coordinates of points spread over the image and their steepness.
    """
    gentle = steepness <= limit * steepness.median(0).values
    ranges, origin = [], []
    for column, kept, period in zip(values.unbind(-1), gentle.unbind(-1), chart.periods, strict=True):
        shown = column[kept]
        ranges.append((shown.min().item(), shown.max().item()) if period is None else (-period / 2, period / 2))
        origin.append(column.quantile(0.5).item() if period is None else 0.0)
    chart = chart.replace(ranges=tuple(ranges), origin=None if chart.mirrored else tuple(origin))
    if chart.periods[0] is None:
        chart = chart.replace(ranges=(_without_thin_ends(chart, values[:, 0]), ranges[1]))
    return chart


def _has_pole(values: Tensor) -> bool:
    """Return True if `values` have both signs and stay away from 0, as 1/x does over the image."""
    return bool(values.min() < 0 < values.max() and values.abs().min() > _APART * values.abs().median())


def _with_steepness(coordinates: Callable[[Tensor], Tensor], points: Tensor) -> tuple[Tensor, Tensor]:
    """Return both coordinates and the norms of their gradients, `(n, 2)` each."""
    points = points.detach().requires_grad_()
    values = coordinates(points)
    return values.detach(), torch.stack([_steepness(column, points) for column in values.unbind(-1)], -1)


def _steepness(values: Tensor, points: Tensor) -> Tensor:
    """Return the norm `(n,)` of the gradient of `values` at each of `points`."""
    steepness: Tensor = torch.autograd.grad(values.sum(), points, retain_graph=True)[0].norm(dim=-1)
    return steepness


def _without_thin_ends(chart: Chart, values: Tensor) -> Range:
    """Return the pose range without the columns of few orbits, at each end that `values` exceed."""
    filled = _seen(chart, chart.grid(dtype=values.dtype)).any(0).sum(0)
    full = chart.axes(dtype=values.dtype)[0][filled >= _THIN * filled.max()]
    low, high = chart.ranges[0]
    return full.min().item() if values.min() < low else low, full.max().item() if values.max() > high else high


def _seen(chart: Chart, grid: Tensor) -> Tensor:
    """Return a mask `(sheets, height, width)` of the points of `grid` in the image, each on its own sheet."""
    return (grid.abs() <= 1).all(-1) & (chart.sheet(grid) == torch.arange(chart.sheets)[:, None, None])


def _order(chart: Chart) -> int:
    """Return 2 if the orbits run towards a fixed point: from end to end, their mean log speed changes by `_FADES`.

    The sides of a pole run in opposite directions and gain what the other side loses, so their changes cancel.
    """
    if chart.periods[0] is not None:
        return 1
    grid = chart.grid(dtype=torch.float64)
    seen = _seen(chart, grid)
    speed = chart.groups[0].vector_field(grid).norm(dim=-1).clamp_min(1e-300).log()
    first, last = seen.int().argmax(-1, keepdim=True), seen.shape[-1] - 1 - seen.flip(-1).int().argmax(-1, keepdim=True)
    change = (speed.gather(-1, last) - speed.gather(-1, first))[seen.any(-1)]
    return 2 if change.mean().abs() > _FADES else 1


def _width(chart: Chart, points: Tensor) -> int:
    """Return the number of pose samples at which a point of median speed moves at most `_STRIDE` per sample."""
    low, high = chart.ranges[0]
    way = (high - low) * chart.groups[0].vector_field(points).norm(dim=-1).median()
    return next((width for width in _WIDTHS if way <= _STRIDE * width), _WIDTHS[-1])


def distortion(coordinate: Callable[[Tensor], Tensor], points: Tensor) -> float:
    r"""Return the unevenness of a coordinate's level lines: the standard deviation of $\log|\nabla v|$ over `points`.

    0 is even spacing, which loses nothing to resampling. Infinity means that the gradient vanishes or is not finite.

    >>> points = image_points()
    >>> round(distortion(lambda p: 3 * p[..., 1], points), 6)
    0.0
    >>> radius, its_square = (distortion(f, points) for f in (lambda p: p.norm(dim=-1), lambda p: p.square().sum(-1)))
    >>> radius < its_square
    True
    """
    points = points.detach().requires_grad_()
    spacing = torch.log(_steepness(coordinate(points), points))
    return spacing.std().item() if bool(spacing.isfinite().all()) else math.inf
