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

_BLURRED = 1 / 32  # closer to the singular set than this, about a pixel of a small image, orbits cannot be told apart


@dataclass(frozen=True)
class Chart:
    r"""Canonical coordinates of one group, or of two that commute.

    A chart has two coordinates. The first `k` are the pose coordinates of its `k` groups: $T_\theta$ adds theta to
    them and leaves the others unchanged. Where the coordinates cannot tell parts of the plane apart (half planes,
    quadrants), those parts are the chart's *sheets*, numbered from 0: a transformation moves every sheet the same way.

    A chart is a value: compare it, print it, or change it with `replace`.

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
    """The interval of each coordinate that `grid` covers."""
    forward: Map
    """`(..., 2)` points of the plane to `(..., 2)` canonical coordinates."""
    backward: SheetMap
    """`(..., 2)` canonical coordinates and `(...)` sheet numbers to `(..., 2)` points of the plane."""
    distance: Map
    """`(..., 2)` points to `(...)`, zero on the singular set and large compared with rounding off it."""
    sheet_of: Map | None = None
    """`(..., 2)` points to `(...)` sheet numbers; None where there is one sheet."""
    sheets: int = 1
    mirrored: bool = False
    """Whether the second sheet covers the first coordinate's range negated, as 1/x does left of the origin."""
    periods: tuple[float | None, float | None] = (None, None)
    origin: tuple[float, float] | None = None
    """Where canonical content sits: a pose of 0 means content around these coordinates. By default mid-range."""
    order: int = 1
    """How many derivatives along the flow it takes to fade out the fixed points that orbits run into in the image.

    2 where they do so at a constant rate, as for scales; 1 elsewhere.
    """
    size: tuple[int, int] = (64, 64)
    """Samples of the grid as (height, width): the first coordinate runs along the width."""
    formulas: Any = None
    """The symbolic formulas, where `derive` found them."""

    def __post_init__(self) -> None:
        try:
            ranges = tuple((float(low), float(high)) for low, high in self.ranges)
            size = tuple(int(count) for count in self.size)
        except TypeError:
            raise ValueError(
                f"ranges are two (low, high) pairs and a size is (height, width); got {self.ranges} and {self.size}"
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
        """Which coordinates wrap around: those whose range is one whole period."""
        first, second = (
            period is not None and math.isclose(high - low, period, rel_tol=1e-6)
            for period, (low, high) in zip(self.periods, self.ranges, strict=True)
        )
        return first, second

    @property
    def centre(self) -> tuple[float, float]:
        """The coordinates that canonical content is brought to: the `origin`, or the middle of the ranges."""
        (left, right), (top, bottom) = self.ranges
        return self.origin or ((left + right) / 2, (top + bottom) / 2)

    def pose_widths(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """How wide the range of each pose coordinate is, `(k,)`."""
        return torch.tensor([high - low for low, high in self.ranges[: len(self.groups)]], dtype=dtype, device=device)

    def row_weights(self) -> Tensor:
        """How much each row of the grid tells about the pose: `(height,)`, float32 on the CPU, summing to 1.

        A row of the picture is an orbit (one value of the second coordinate). It counts by the square of the area that
        it shows of the image, so that singular rows count for nothing, and less the more of its area lies beyond
        the range of the first coordinate, where content could come and go unseen, or so close to the singular set
        that pixels blur it.
        """
        (low, high), _ = self.ranges
        reach = 0 if self.periodic[0] else (high - low) / 2
        with torch.device("cpu"):  # also while a module is made on the meta device
            area = self._row_areas((low - reach, high + reach), 0.0)
            useful = self._row_areas((low, high), _BLURRED)
        weights = (useful * (useful / area.clamp_min(1e-12)).clamp(max=1) ** 8) ** 2
        return (weights / weights.sum().clamp_min(1e-12)).float()

    def _row_areas(self, bounds: Range, margin: float, samples: int = 512) -> Tensor:
        """The image's area on each row between `bounds`, over all sheets and `margin` off the singular set."""
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
        """The same chart with other `ranges`, `size` or `name`.

        >>> import equivariant_transformers as et
        >>> et.chart("x_shear").replace(size=(32, 48)).size
        (32, 48)
        """
        return dataclasses.replace(self, **changes)

    def to_canonical(self, points: Tensor) -> Tensor:
        r"""The map $\rho$: `points` `(..., 2)` as (x, y) to canonical coordinates `(..., 2)`.

        Finite everywhere; on the singular set (see `valid`) the value is one of the nearby ones.
        """
        return self.forward(points)

    def to_plane(self, coordinates: Tensor, sheet: Tensor | int = 0) -> Tensor:
        r"""The map $\rho^{-1}$ onto a sheet: canonical `coordinates` `(..., 2)` to points `(..., 2)`.

        `sheet` is a number or a tensor of numbers that broadcasts against the leading shape.
        """
        return self.backward(coordinates, torch.as_tensor(sheet, device=coordinates.device))

    def sheet(self, points: Tensor) -> Tensor:
        """Which sheet each of `points` `(..., 2)` lies on, as integers `(...)`."""
        if self.sheet_of is None:
            return torch.zeros(points.shape[:-1], dtype=torch.long, device=points.device)
        return self.sheet_of(points)

    def valid(self, points: Tensor) -> Tensor:
        """Where `points` `(..., 2)` are off the singular set, as booleans `(...)`."""
        return self.distance(points).abs() > torch.finfo(points.dtype).eps

    def wrap(self, difference: Tensor) -> Tensor:
        """A difference of canonical coordinates `(..., 2)`, brought into half a period either way on periodic axes."""
        columns = [wrap(column, period) for column, period in zip(difference.unbind(-1), self.periods, strict=True)]
        return torch.stack(columns, -1)

    def axes(
        self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sampled values of both coordinates, `(width,)` and `(height,)`.

        A periodic axis leaves out its end point, which is its first point again.
        """
        height, width = self.size
        first, second = (
            _samples(bounds, count, periodic, dtype, device)
            for bounds, count, periodic in zip(self.ranges, (width, height), self.periodic, strict=True)
        )
        return first, second

    def grid(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """The points of the plane that a picture in this chart samples: `(sheets, height, width, 2)`.

        The first coordinate runs along the width and the second along the height.
        """
        first, second = self.axes(dtype=dtype, device=device)
        u = torch.stack(torch.meshgrid(first, second, indexing="xy"), -1)  # (height, width, 2)
        sheets = torch.arange(self.sheets, device=u.device)[:, None, None]
        shift = torch.stack((self._shift(sheets).to(u.dtype), torch.zeros_like(sheets, dtype=u.dtype)), -1)
        return self.to_plane(u + shift, sheets)

    def _shift(self, sheet: Tensor) -> Tensor:
        """By how much the range of the first coordinate differs on each of `sheet` `(...)`."""
        return sheet * (-sum(self.ranges[0]) if self.mirrored else 0.0)

    def covers(self, points: Tensor) -> Tensor:
        """Whether `points` `(..., 2)` lie in the chart's ranges and off its singular set, as booleans `(...)`."""
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
        """The share of the image [-1, 1] x [-1, 1] that the chart's ranges cover.

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
