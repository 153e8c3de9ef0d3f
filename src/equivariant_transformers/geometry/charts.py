r"""Canonical coordinates: in the chart of a group, its transformations are translations.

$\rho(T_\theta x) = \rho(x) + \theta e_1$ (equation 1 of the paper). The charts of the paper are in `atlas`; `derive`
builds charts for other groups.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.projective import wrap

Range = tuple[float, float]
Map = Callable[[Tensor], Tensor]
SheetMap = Callable[[Tensor, Tensor], Tensor]

_BLURRED = 1 / 32  # distance from the singular set, about a pixel of a small image, below which orbits blur together


@dataclass(frozen=True)
class Chart:
    r"""Canonical coordinates of one group, or of two that commute.

    A chart has two coordinates. The first `k` are the pose coordinates of its `k` groups: $T_\theta$ adds theta to
    them and leaves the others unchanged. Parts of the plane with the same coordinates (half planes, quadrants) are the
    chart's *sheets*, numbered from 0. A transformation moves every sheet the same way.

    A chart is an immutable value that compares by its fields. `replace` returns a modified copy.

    >>> import equivariant_transformers as et
    >>> rotation = et.chart("rotation")
    >>> u = rotation.to_canonical(torch.tensor([0.0, 2.0]))
    >>> u
    tensor([1.5708, 2.0000])
    >>> rotation.to_plane(u).round()
    tensor([-0., 2.])
    """

    name: str
    groups: tuple[Group, ...]
    ranges: tuple[Range, Range]
    """Interval of each coordinate that `grid` covers."""
    forward: Map
    """Map from points of the plane `(..., 2)` to canonical coordinates `(..., 2)`."""
    backward: SheetMap
    """Map from canonical coordinates `(..., 2)` and sheet numbers `(...)` to points of the plane `(..., 2)`."""
    distance: Map
    """Map from points `(..., 2)` to `(...)`: zero on the singular set, large compared with rounding elsewhere."""
    sheet_of: Map | None = None
    """Map from points `(..., 2)` to sheet numbers `(...)`; None for a chart with one sheet."""
    sheets: int = 1
    mirrored: bool = False
    """True if the second sheet covers the negated range of the first coordinate, as 1/x does left of the origin."""
    periods: tuple[float | None, float | None] = (None, None)
    origin: tuple[float, float] | None = None
    """Coordinates of content whose pose is 0; the middle of the ranges by default."""
    order: int = 1
    """Number of derivatives along the flow that fade out the fixed points in the image.

    2 where orbits run towards a fixed point, as for scales; 1 elsewhere.
    """
    size: tuple[int, int] = (64, 64)
    """Size of the grid as (height, width); the first coordinate runs along the width."""
    formulas: Any = None
    """Symbolic formulas, if `derive` found any."""

    def __post_init__(self) -> None:
        try:
            ranges = tuple((float(low), float(high)) for low, high in self.ranges)
            size = tuple(int(count) for count in self.size)
        except TypeError:
            raise ValueError(
                f"ranges must be two (low, high) pairs and size must be (height, width), "
                f"got {self.ranges} and {self.size}"
            ) from None
        object.__setattr__(self, "ranges", ranges)
        object.__setattr__(self, "size", size)
        if not 1 <= len(self.groups) <= 2:
            raise ValueError(f"a chart has one or two groups, got {len(self.groups)}")
        if len(self.ranges) != 2:
            raise ValueError(f"a chart has two ranges, got {len(self.ranges)}")
        for low, high in self.ranges:
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"a chart range is (low, high) with low < high and both finite, got ({low}, {high})")
        if len(self.size) != 2 or min(self.size) < 1:
            raise ValueError(f"a chart size is (height, width), both at least 1, got {self.size}")

    @property
    def periodic(self) -> tuple[bool, bool]:
        """Flags of the coordinates that wrap around: the range of such a coordinate is one whole period."""
        first, second = (
            period is not None and math.isclose(high - low, period, rel_tol=1e-6)
            for period, (low, high) in zip(self.periods, self.ranges, strict=True)
        )
        return first, second

    @property
    def centre(self) -> tuple[float, float]:
        """Coordinates that content is moved to: the `origin`, or the middle of the ranges."""
        (left, right), (top, bottom) = self.ranges
        return self.origin or ((left + right) / 2, (top + bottom) / 2)

    def pose_widths(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the width of the range of each pose coordinate, `(k,)`."""
        return torch.tensor([high - low for low, high in self.ranges[: len(self.groups)]], dtype=dtype, device=device)

    def row_weights(self, samples: int = 512) -> Tensor:
        """Return the weight of each row of the grid for the pose: `(height,)`, float32 on the CPU, summing to 1.

        A row of the grid is an orbit (one value of the second coordinate). Its weight is the square of the image area
        that the row covers, so singular rows have no weight. The weight drops as more of this area lies beyond the
        range of the first coordinate, where content can enter and leave, or so close to the singular set that pixels
        blur it. Areas are sums over `samples` positions of the first coordinate.
        """
        (low, high), _ = self.ranges
        reach = 0 if self.periodic[0] else (high - low) / 2
        with torch.device("cpu"):  # also inside a torch.device("meta") context
            area = self._row_areas((low - reach, high + reach), 0.0, samples)
            useful = self._row_areas((low, high), _BLURRED, samples)
        weights = (useful * (useful / area.clamp_min(1e-12)).clamp(max=1) ** 8) ** 2
        return (weights / weights.sum().clamp_min(1e-12)).float()

    def _row_areas(self, bounds: Range, margin: float, samples: int) -> Tensor:
        """Return the image area of each row in `bounds`, over all sheets, at least `margin` off the singular set."""
        first = torch.linspace(*bounds, 2 * samples + 1, dtype=torch.float64)[1::2]
        second = self.axes(dtype=torch.float64)[1]
        u = torch.stack(torch.meshgrid(first, second, indexing="xy"), -1)  # (height, samples, 2)
        total = torch.zeros(len(second), dtype=torch.float64)
        for sheet in torch.arange(self.sheets):
            shifted = torch.stack((u[..., 0] + self._shift(sheet), u[..., 1]), -1)
            points = self.to_plane(shifted, sheet)
            first_way, second_way = (
                (self.to_plane(shifted + step, sheet) - self.to_plane(shifted - step, sheet)) / 2e-5
                for step in 1e-5 * torch.eye(2, dtype=torch.float64)
            )
            area = (first_way[..., 0] * second_way[..., 1] - first_way[..., 1] * second_way[..., 0]).abs()
            seen = (points.abs() <= 1).all(-1) & (self.sheet(points) == sheet) & (self.distance(points).abs() >= margin)
            total += torch.where(seen, area, 0).sum(-1) * (bounds[1] - bounds[0]) / samples
        return total

    def replace(self, **changes: Any) -> Chart:
        """Return a copy of the chart with other `ranges`, `size` or `name`.

        >>> import equivariant_transformers as et
        >>> et.chart("x_shear").replace(size=(32, 48)).size
        (32, 48)
        """
        return dataclasses.replace(self, **changes)

    def to_canonical(self, points: Tensor) -> Tensor:
        r"""Map `points` `(..., 2)` as (x, y) to canonical coordinates `(..., 2)` by $\rho$.

        The result is finite everywhere. On the singular set (see `valid`) it is one of the values nearby.
        """
        return self.forward(points)

    def to_plane(self, coordinates: Tensor, sheet: Tensor | int = 0) -> Tensor:
        r"""Map canonical `coordinates` `(..., 2)` to points `(..., 2)` of a sheet by $\rho^{-1}$.

        `sheet` is an integer or an integer tensor that broadcasts against the leading shape.
        """
        return self.backward(coordinates, torch.as_tensor(sheet, device=coordinates.device))

    def sheet(self, points: Tensor) -> Tensor:
        """Return the sheet number of each of `points` `(..., 2)`, as integers `(...)`."""
        if self.sheet_of is None:
            return torch.zeros(points.shape[:-1], dtype=torch.long, device=points.device)
        return self.sheet_of(points)

    def valid(self, points: Tensor) -> Tensor:
        """Return a mask `(...)` of the `points` `(..., 2)` that are off the singular set."""
        return self.distance(points).abs() > torch.finfo(points.dtype).eps

    def wrap(self, difference: Tensor) -> Tensor:
        """Wrap a difference of canonical coordinates `(..., 2)` to within half a period of 0 on periodic axes."""
        columns = [wrap(column, period) for column, period in zip(difference.unbind(-1), self.periods, strict=True)]
        return torch.stack(columns, -1)

    def axes(
        self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sampled values of both coordinates, `(width,)` and `(height,)`.

        A periodic axis omits its end point, which equals its first point.
        """
        height, width = self.size
        first, second = (
            _samples(bounds, count, periodic, dtype, device)
            for bounds, count, periodic in zip(self.ranges, (width, height), self.periodic, strict=True)
        )
        return first, second

    def grid(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the points of the plane that an image in this chart samples: `(sheets, height, width, 2)`.

        The first coordinate runs along the width and the second along the height.
        """
        first, second = self.axes(dtype=dtype, device=device)
        u = torch.stack(torch.meshgrid(first, second, indexing="xy"), -1)  # (height, width, 2)
        sheets = torch.arange(self.sheets, device=u.device)[:, None, None]
        shift = torch.stack((self._shift(sheets).to(u.dtype), torch.zeros_like(sheets, dtype=u.dtype)), -1)
        return self.to_plane(u + shift, sheets)

    def _shift(self, sheet: Tensor) -> Tensor:
        """Return the shift of the first coordinate's range on each of `sheet` `(...)`."""
        return sheet * (-sum(self.ranges[0]) if self.mirrored else 0.0)

    def covers(self, points: Tensor) -> Tensor:
        """Return a mask `(...)` of the `points` `(..., 2)` in the chart's ranges and off its singular set."""
        inside = self.valid(points)
        first, second = self.to_canonical(points).unbind(-1)
        columns = (first - self._shift(self.sheet(points)), second)
        for column, (low, high), whole, period in zip(columns, self.ranges, self.periodic, self.periods, strict=True):
            if not whole:
                middle = (low + high) / 2
                nearest = column if period is None else middle + wrap(column - middle, period)
                inside = inside & (nearest >= low) & (nearest <= high)
        return inside

    def coverage(self, samples: int = 512) -> float:
        """Return the fraction of a square image, [-1, 1] x [-1, 1], that the chart's ranges cover.

        >>> import equivariant_transformers as et
        >>> round(et.chart("x_shear").coverage(), 2)
        0.9
        """
        centres = (torch.arange(samples, dtype=torch.float64) + 0.5) * (2 / samples) - 1
        points = torch.stack(torch.meshgrid(centres, centres, indexing="xy"), -1)
        return self.covers(points).double().mean().item()

    def __repr__(self) -> str:
        parts = [self.name, "groups " + "+".join(group.name for group in self.groups)]
        for label, (low, high), periodic in zip(("first", "second"), self.ranges, self.periodic, strict=True):
            parts.append(f"{label} [{low:.4g}, {high:.4g}{')' if periodic else ']'}")
        parts.append(f"sheets {self.sheets}")
        parts.append(f"size {self.size[0]}x{self.size[1]}")
        return f"Chart({', '.join(parts)})"


def _samples(
    bounds: Range, count: int, periodic: bool, dtype: torch.dtype | None, device: torch.device | str | None
) -> Tensor:
    low, high = bounds
    if count == 1 and not periodic:
        return torch.full((1,), (low + high) / 2, dtype=dtype, device=device)
    end = high - (high - low) / count if periodic else high
    return torch.linspace(low, end, count, dtype=dtype, device=device)
