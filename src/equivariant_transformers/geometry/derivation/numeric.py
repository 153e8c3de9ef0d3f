r"""Algorithm 1 without formulas: a chart that follows the orbits from curves across them.

`to_plane(u, v)` is $T_u(s(v))$, where $s$ is a curve across the orbits, parametrised by arc length. Each curve is a
sheet. The inverse solves $T_{-u}(x) = s(v)$ by Newton's method, starting from a table of solutions over the image. If
closed orbits have different periods, the time of a point is ambiguous by the period of its orbit; the shortest time is
used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.coordinates import pair
from equivariant_transformers.geometry.derivation import coverage, transversal
from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.projective import away_from_zero, wrap

_TABLE_EDGE, _TABLE_SIZE = 1.2, 49
_NEWTON_STEPS = 10
_LONGEST_STEP = 0.3
_FAR = 1e4
_TRUSTED = 4


@dataclass(frozen=True, eq=False)
class Section:
    """Curves across the orbits of a group, and a table of where the orbits through the image meet the curves."""

    group: Group
    nodes: Tensor = field(repr=False)
    """Nodes `(sheets, n, 2)` of the curves; a shorter curve repeats its last node."""
    tangents: Tensor = field(repr=False)
    bounds: Tensor = field(repr=False)
    """Arc lengths `(sheets, 3)` at the first node, at the last node, and between nodes."""
    table: Tensor = field(repr=False)
    """Table `(size, size, 4)` of time, arc length, sheet, and 1 where a solution exists."""
    period: float | None = None
    """Length of a closed curve; None for open curves."""

    @property
    def longest_time(self) -> float:
        """Longest time for which the flow is trusted: `_TRUSTED` times the longest time in the table."""
        return _TRUSTED * float(self.table[..., 0].abs().max()) if self.group.period is None else torch.inf

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Section) or (self.group, self.period) != (other.group, other.period):
            return False
        mine, theirs = ((s.nodes, s.tangents, s.bounds, s.table) for s in (self, other))
        return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))

    def __hash__(self) -> int:
        return hash((self.group, self.period, self.nodes.shape))

    def curve(self, v: Tensor, sheet: Tensor) -> tuple[Tensor, Tensor]:
        """Return the point and tangent `(..., 2)` at arc length `v` `(...)`: cubic between nodes, straight beyond."""
        if self.period is not None:
            v = v % self.period
        start, end, step = self.bounds.to(v)[sheet].unbind(-1)
        inside = torch.minimum(torch.maximum(v, start), end)
        segment = ((inside - start) / step).detach().floor().clamp_min(0)
        segment = torch.minimum(segment, ((end - start) / step).round() - 1).long()
        t = ((inside - start) / step - segment)[..., None]
        h = step[..., None]
        nodes, tangents = self.nodes.to(v), self.tangents.to(v)
        p0, p1 = nodes[sheet, segment], nodes[sheet, segment + 1]
        m0, m1 = h * tangents[sheet, segment], h * tangents[sheet, segment + 1]
        point = (
            (2 * t**3 - 3 * t**2 + 1) * p0
            + (t**3 - 2 * t**2 + t) * m0
            + (3 * t**2 - 2 * t**3) * p1
            + (t**3 - t**2) * m1
        )
        slope = 6 * (t**2 - t) * (p0 - p1) + (3 * t**2 - 4 * t + 1) * m0 + (3 * t**2 - 2 * t) * m1
        tangent = slope / h
        return point + tangent.detach() * (v - inside)[..., None], tangent

    def solve(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return time, arc length, sheet and a mask of converged solutions, each `(...)`, without gradients."""
        with torch.no_grad():
            u, v, sheet = self._nearest_entry(points)
            for _ in range(_NEWTON_STEPS):
                change, speed, _ = self._newton(points, u, v, sheet)
                longest = torch.maximum(change[..., 0].abs() * speed, change[..., 1].abs())
                scale = (_LONGEST_STEP / longest.clamp_min(_LONGEST_STEP)).nan_to_num(0.0)
                change = (change * scale[..., None]).nan_to_num(0.0, 0.0, 0.0)
                u, v = u + change[..., 0], v + change[..., 1]
            _, _, residual = self._newton(points, u, v, sheet)
            tolerance = torch.finfo(points.dtype).eps ** 0.5
            solved = residual.abs().amax(-1) < tolerance
            if self.period is None:
                start, end, _ = self.bounds.to(v)[sheet].unbind(-1)
                solved &= (v > start - tolerance) & (v < end + tolerance)
            return u, v, sheet, solved

    def _newton(self, points: Tensor, u: Tensor, v: Tensor, sheet: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the Newton step of (u, v), the speed of the flow at the curve, and the residual of the equation."""
        moved = self.group.transform(-u, points)
        at, across = self.curve(v, sheet)
        residual = moved - at
        along = self.group.vector_field(moved.detach())
        across = across.detach()
        determinant = away_from_zero(along[..., 0] * across[..., 1] - along[..., 1] * across[..., 0])
        change = pair(
            (residual[..., 0] * across[..., 1] - residual[..., 1] * across[..., 0]) / determinant,
            (along[..., 0] * residual[..., 1] - along[..., 1] * residual[..., 0]) / determinant,
        )
        return change, along.norm(dim=-1), residual

    def _nearest_entry(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the table entry with the smallest residual among the four entries around each point."""
        place = (points / _TABLE_EDGE + 1) / 2 * (_TABLE_SIZE - 1)
        column, row = place.nan_to_num(0.0).floor().clamp(0, _TABLE_SIZE - 2).long().unbind(-1)
        right, below = (
            torch.tensor([0, 1, 0, 1], device=points.device),
            torch.tensor([0, 0, 1, 1], device=points.device),
        )
        entries = self.table.to(points)[row[..., None] + below, column[..., None] + right]  # (..., 4, 4)
        u, v, sheet, known = entries.unbind(-1)
        sheet = sheet.long()
        lacks = self._newton(points[..., None, :].expand(*u.shape, 2), u, v, sheet)[2].abs().amax(-1)
        lacks = lacks.nan_to_num(torch.inf, torch.inf) + torch.where(known > 0, 0.0, _FAR).to(lacks)
        best = lacks.argmin(-1, keepdim=True)
        u, v, sheet = (value.gather(-1, best)[..., 0] for value in (u, v, sheet))
        return u, v, sheet


@dataclass(frozen=True)
class ToCanonical:
    """Map from points `(..., 2)` to time and arc length, with the gradient of the implicit function."""

    section: Section

    def __call__(self, points: Tensor) -> Tensor:
        u, v, sheet, solved = self.section.solve(points)
        home, _ = self.section.curve(torch.zeros_like(v), sheet)
        safe_u, safe_v = torch.where(solved, u, 0.0), torch.where(solved, v, 0.0)
        safe_points = torch.where(solved[..., None], points, home)
        change, _, _ = self.section._newton(safe_points, safe_u, safe_v, sheet)
        result = pair(u, v) + torch.where(solved[..., None], change, 0.0)
        periods = (self.section.group.period, self.section.period)
        columns = [wrap(column, period) for column, period in zip(result.unbind(-1), periods, strict=True)]
        return pair(*columns)


@dataclass(frozen=True)
class ToPlane:
    """Map from time and arc length `(..., 2)` to points; a point that leaves the plane is placed far away."""

    section: Section

    def __call__(self, coordinates: Tensor, sheet: Tensor) -> Tensor:
        u, v = coordinates.unbind(-1)
        with torch.no_grad():
            start, _ = self.section.curve(v, sheet.expand(v.shape))
            within = u.abs() < self.section.longest_time
            stays = within & (self.section.group.transform(torch.where(within, u, 0.0), start).abs().amax(-1) < _FAR)
        start, _ = self.section.curve(torch.where(stays, v, 0.0), sheet.expand(v.shape))
        points = self.section.group.transform(torch.where(stays, u, 0.0), start)
        return torch.where(stays[..., None], points, _FAR)


@dataclass(frozen=True)
class SheetOf:
    """Map from `points` `(..., 2)` to the number of the curve that the orbit of the point meets."""

    section: Section

    def __call__(self, points: Tensor) -> Tensor:
        return self.section.solve(points)[2]


@dataclass(frozen=True)
class Distance:
    """Speed of the flow in units of the `usual` speed where coordinates were found, 0 elsewhere."""

    section: Section
    usual: float

    def __call__(self, points: Tensor) -> Tensor:
        speed = self.section.group.vector_field(points).norm(dim=-1) / self.usual
        return torch.where(self.section.solve(points)[3], speed, 0.0)


def derive(group: Group, name: str) -> Chart:
    """Return the chart of `group`, computed by following its orbits from curves across them."""
    curves = transversal.find_curves(group)
    if not curves:
        raise ValueError(
            f"no curve across the orbits of group {group.name!r} was found; check that it moves points of the image"
        )
    section = _section(group, curves)
    points = coverage.image_points(64)
    solved = section.solve(points)[3]
    if not solved.any():
        raise ValueError(
            f"the orbits of group {group.name!r} could not be followed over the image; check that its flow is smooth "
            "and finite there"
        )
    chart = Chart(
        name,
        (group,),
        coverage.ANY,
        ToCanonical(section),
        ToPlane(section),
        Distance(section, group.vector_field(points[solved]).norm(dim=-1).median().item()),
        sheet_of=SheetOf(section) if len(curves) > 1 else None,
        sheets=len(curves),
        periods=(group.period, section.period),
    )
    return coverage.fitted(chart, points)


def _section(group: Group, curves: list[transversal.Curve]) -> Section:
    longest = max(len(curve.nodes) for curve in curves)
    nodes, tangents = (
        torch.stack([torch.cat([part, part[-1:].expand(longest - len(part), 2)]) for part in parts])
        for parts in ([curve.nodes for curve in curves], [curve.tangents for curve in curves])
    )
    bounds = torch.tensor(
        [[c.start, c.start + (len(c.nodes) - 1) * c.step, c.step] for c in curves], dtype=torch.float64
    )
    period = float(bounds[0, 1]) if curves[0].closed else None
    return Section(group, nodes, tangents, bounds, _table(group, curves), period)


def _table(group: Group, curves: list[transversal.Curve]) -> Tensor:
    """Return the time and place at which the orbit of each point of a grid over the image first meets a curve."""
    ticks = torch.linspace(-_TABLE_EDGE, _TABLE_EDGE, _TABLE_SIZE, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    paths, times = transversal.Field(group).orbits(points.flatten(0, 1))
    size, length = _TABLE_SIZE, paths.shape[1]
    rows = zip(paths.reshape(size, size, length, 2), times.reshape(size, size, length), strict=True)
    return torch.stack([_first_meeting(*row, curves) for row in rows])


def _first_meeting(paths: Tensor, times: Tensor, curves: list[transversal.Curve]) -> Tensor:
    """Return the table rows `(n, 4)` where `paths` `(n, m, 2)` first meet one of `curves`, zero if they meet none."""
    found = torch.zeros(len(paths), 4, dtype=torch.float64)
    soonest = torch.full((len(paths),), torch.inf, dtype=torch.float64)
    for sheet, curve in enumerate(curves):
        path, time, segment, part = transversal.crossings(paths, times, curve.nodes)
        soonest = soonest.scatter_reduce(0, path, time.abs(), "amin")
        first = time.abs() == soonest[path]
        arc = curve.start + curve.step * (segment + part)
        entries = torch.stack([-time, arc, torch.full_like(arc, sheet), torch.ones_like(arc)], -1)
        found[path[first]] = entries[first]
    return found
