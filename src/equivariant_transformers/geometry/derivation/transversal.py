"""Curves across the orbits of a vector field, found by following it and its normal over the image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equivariant_transformers.geometry.flows import Flow
from equivariant_transformers.geometry.groups import Group, VectorField

STEP = 0.05
"""Distance between the nodes of a curve or an orbit."""

_EDGE = 1 + 2 * STEP
_FAR = 2.0  # bound up to which orbits are followed, since some return to the image
_LENGTH = 5.0  # along an orbit in each direction: more than half the circle through the corners
_STILL = 1e-3  # fraction of the largest speed below which the field counts as zero
_CLOSED = 1e-3
_ROUNDING = 1e-5  # of cross products in float32; those of two steps are up to 0.0025
_WORTHWHILE = 0.02  # smallest fraction of the image that another curve must add
_MOST_CURVES = 8
_AS_GOOD = 0.99  # fraction of the orbits of the best curve; curves above it are ranked by delay


@dataclass(frozen=True)
class Curve:
    """Nodes `(n, 2)` at equal arc lengths and unit tangents `(n, 2)`; the first node is at arc length `start`."""

    nodes: Tensor
    tangents: Tensor
    start: float
    step: float
    closed: bool = False


def find_curves(group: Group) -> list[Curve]:
    """Return curves that the orbits through most of the image cross, each orbit only once, most useful first.

    Among candidates that cross about as many orbits, the curve nearest to the image in time is chosen, because the
    delays of a distant curve differ widely between orbits.
    """
    field = Field(group)
    points = _grid(0.95, 12)
    speeds = field.speed(points)
    points = points[speeds > _STILL * field.fastest]
    paths, times = field.orbits(points)
    uncovered = torch.ones(len(points), dtype=torch.bool)
    curves: list[Curve] = []
    while len(curves) < _MOST_CURVES and uncovered.double().mean() > _WORTHWHILE:
        candidates = field.curves(_seeds(points[uncovered]))
        delays = torch.stack([_delays(paths, times, candidate.nodes)[uncovered] for candidate in candidates])
        gains = delays.isfinite().sum(1)
        delay = torch.where(delays.isfinite(), delays, 0.0).sum(1) / gains
        delay = torch.where(gains >= _AS_GOOD * gains.max(), delay, torch.inf)
        best = field.without_repetition(candidates[int(delay.argmin())], curves)
        met = _delays(paths, times, best.nodes).isfinite()
        if (met & uncovered).double().mean() < _WORTHWHILE:
            break
        uncovered &= ~met
        curves.append(best)
    if len(curves) > 1:  # a period applies to all sheets of a chart, so drop it
        curves = [Curve(c.nodes, c.tangents, c.start, c.step) for c in curves]
    return curves


def _quick_velocity(flow: Flow) -> VectorField:
    """Return the vector field of a flow, or a finite difference if it has none; both are accurate enough for curves."""

    def difference(points: Tensor) -> Tensor:
        h = torch.tensor(1e-5, dtype=points.dtype)
        return (flow(h, points) - flow(-h, points)) / (2 * h)

    return getattr(flow, "vector_field", difference)


class Field:
    """Vector field of a group over the image, integrated by Runge-Kutta steps of equal length in the plane."""

    def __init__(self, group: Group) -> None:
        self.velocity = group.vector_field if group.flow is None else _quick_velocity(group.flow)
        self.fastest = float(self.speed(_grid(1.0, 33)).max())

    def speed(self, points: Tensor) -> Tensor:
        speed: Tensor = self.velocity(points).norm(dim=-1)
        return speed

    def orbits(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Follow `points` `(n, 2)` in both directions; return nodes `(n, m, 2)` and their times `(n, m)`."""
        ahead, behind = (self._follow(points, sign, across=False, bound=_FAR, length=_LENGTH) for sign in (1.0, -1.0))
        nodes = torch.cat([behind[0].flip(1)[:, :-1], ahead[0]], 1)
        return nodes, torch.cat([behind[1].flip(1)[:, :-1], ahead[1]], 1)

    def curves(self, seeds: Tensor) -> list[Curve]:
        """Return the curve normal to the orbits through each of `seeds` `(n, 2)`, up to the edge or a fixed point."""
        ahead, behind = (
            self._follow(seeds, sign, across=True, bound=_EDGE, length=2 * _LENGTH)[0] for sign in (1.0, -1.0)
        )
        return [self._curve(_distinct(one), _distinct(other)) for one, other in zip(ahead, behind, strict=True)]

    def _curve(self, ahead: Tensor, behind: Tensor) -> Curve:
        closed = self._closing(ahead)
        if closed is not None:
            return closed
        nodes = torch.cat([behind.flip(0)[:-1], ahead])
        return Curve(nodes, self._normal(nodes), -STEP * (len(behind) - 1), STEP)

    def without_repetition(self, curve: Curve, others: list[Curve]) -> Curve:
        """Return the longest part of `curve` around its seed that meets no orbit twice and no orbit of `others`."""
        paths, times = self.orbits(curve.nodes)
        count = len(curve.nodes)
        taken = torch.zeros(count, dtype=torch.bool)
        for other in others:
            taken |= _delays(paths, times, other.nodes).isfinite()
        met = crossings(paths, times, curve.nodes)
        again = torch.zeros(count, count - 1, dtype=torch.bool)  # (node, segment)
        again[met.path, met.segment] = True
        index = torch.arange(count)
        apart = (index[:, None] - index[None, :-1] - 0.5).abs()
        if curve.closed:
            apart = torch.minimum(apart, count - 1 - apart)
        again &= apart > 3
        if not (taken.any() or again.any()):
            return curve
        seed = round(-curve.start / curve.step)
        low = high = seed
        grows = True
        while grows:
            grows = False
            for node, (new_low, new_high) in ((high + 1, (low, high + 1)), (low - 1, (low - 1, high))):
                if 0 <= node < count and not taken[node] and not again[new_low : new_high + 1, new_low:new_high].any():
                    low, high, grows = new_low, new_high, True
        kept = slice(low, high + 1)
        return Curve(curve.nodes[kept], curve.tangents[kept], curve.start + low * curve.step, curve.step)

    def _normal(self, points: Tensor) -> Tensor:
        along = self.velocity(points)
        normal: Tensor = _turned(along) / along.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        return normal

    def _follow(
        self, points: Tensor, sign: float, *, across: bool, bound: float, length: float
    ) -> tuple[Tensor, Tensor]:
        """Return nodes `(n, m, 2)` and times `(n, m)`; a path stops at `bound` or where the field vanishes."""

        def rate(at: Tensor) -> Tensor:  # derivative of x, y and time by arc length
            velocity = self.velocity(at)
            speed = velocity.norm(dim=-1, keepdim=True).clamp_min(1e-300)
            direction = sign * velocity / speed
            return torch.cat([_turned(direction) if across else direction, 1 / speed], -1)

        state = torch.cat([points, torch.zeros_like(points[:, :1])], -1)
        states = [state]
        moving = torch.ones(len(points), dtype=torch.bool)
        k1 = rate(points)
        for _ in range(math.ceil(length / STEP)):
            k2 = rate(state[:, :2] + STEP / 2 * k1[:, :2])
            k3 = rate(state[:, :2] + STEP / 2 * k2[:, :2])
            k4 = rate(state[:, :2] + STEP * k3[:, :2])
            new = state + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            straight = (new - state)[:, :2].norm(dim=-1) > 0.9 * STEP
            moving = moving & straight & (new[:, :2].abs().amax(-1) <= bound)
            state = torch.where(moving[:, None], new, state)
            k1 = rate(state[:, :2])
            moving &= k1[:, 2] < 1 / (_STILL * self.fastest)
            states.append(state)
            if not moving.any():
                break
        path = torch.stack(states, 1)
        return path[..., :2], sign * path[..., 2]

    def _closing(self, nodes: Tensor) -> Curve | None:
        """Return the closed curve that `nodes` start; None if they do not return to the first node."""
        offset = nodes - nodes[0]
        near = torch.nonzero((offset.norm(dim=-1) < STEP)[3:]).flatten()
        if len(near) == 0:
            return None
        last = int(near[0]) + 3
        tangent = self._normal(nodes[:1])[0]
        beyond = -(offset[last] @ tangent)
        if (offset[last] + beyond * tangent).norm() > _CLOSED or beyond.abs() > STEP:
            return None
        ring = torch.cat([nodes[:last], nodes[:1]])
        # The last step has a different length: distribute the difference evenly along the ring.
        length = STEP * last + float(beyond)
        excess = torch.arange(last + 1, dtype=ring.dtype) * (length / last - STEP)
        ring = ring + excess[:, None] * self._normal(ring)
        ring[-1] = ring[0]
        return Curve(ring, self._normal(ring), 0.0, length / last, closed=True)


def _turned(vector: Tensor) -> Tensor:
    return torch.stack((-vector[..., 1], vector[..., 0]), -1)


def _distinct(path: Tensor) -> Tensor:
    """Return the nodes of `path` `(n, 2)` up to where it stops."""
    return torch.cat([path[:1], path[1:][path.diff(dim=0).norm(dim=-1) > STEP / 2]])


def _grid(extent: float, count: int) -> Tensor:
    ticks = torch.linspace(-extent, extent, count, dtype=torch.float64)
    return torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1).flatten(0, 1)


def _seeds(points: Tensor) -> Tensor:
    """Return fewer than 48 of `points`, evenly spaced."""
    return points[:: max(1, len(points) // 24)]


class Crossings(NamedTuple):
    """Crossings of segments of paths with segments of a curve, `(n,)` each."""

    path: Tensor
    """Number of the path."""
    time: Tensor
    """Time on the path, between the times of its nodes."""
    segment: Tensor
    """Number of the segment of the curve."""
    part: Tensor
    """Position on this segment, in [0, 1)."""


def crossings(paths: Tensor, times: Tensor, curve: Tensor) -> Crossings:
    """Return where `paths` `(n, m, 2)`, whose nodes have `times` `(n, m)`, cross `curve` `(k, 2)`."""
    start, along = paths[:, :-1].flatten(0, 1), paths.diff(dim=1).flatten(0, 1)
    begin, duration = times[:, :-1].flatten(), times.diff(dim=1).flatten()
    origin, across = curve[:-1], curve.diff(dim=0)
    moving = along.any(-1).nonzero()[:, 0]  # a path that has stopped repeats its last node
    row, segment = _nearly_crossing(start[moving], along[moving], origin, across)
    row = moving[row]
    gap, along, across = origin[segment] - start[row], along[row], across[segment]
    determinant = _cross(along, across)
    safe = torch.where(determinant == 0, 1.0, determinant)
    on_path, on_curve = _cross(gap, across) / safe, _cross(gap, along) / safe
    hits = (determinant != 0) & (on_path >= 0) & (on_path < 1) & (on_curve >= 0) & (on_curve < 1)
    time = begin[row] + on_path * duration[row]
    return Crossings((row // (paths.shape[1] - 1))[hits], time[hits], segment[hits], on_curve[hits])


def _nearly_crossing(start: Tensor, along: Tensor, origin: Tensor, across: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pairs of segments that cross or almost do: the numbers of rows of `start` and of `origin`.

    Every pair is compared, by products of matrices in float32.
    """
    start, along, origin, across = (part.float() for part in (start, along, origin, across))
    turned = torch.stack((across[:, 1], -across[:, 0]))  # v @ turned is the cross product of v and each segment
    determinant = along @ turned
    sign = determinant.sign()
    length = determinant.abs_().add_(_ROUNDING)
    on_path = (_cross(origin, across) - start @ turned).mul_(sign)
    near = (on_path >= -_ROUNDING) & (on_path <= length)
    sideways = torch.stack((along[:, 1], -along[:, 0]), -1)
    on_curve = (sideways @ origin.mT - _cross(start, along)[:, None]).mul_(sign)
    near &= (on_curve >= -_ROUNDING) & (on_curve <= length)
    row, segment = near.nonzero().unbind(-1)
    return row, segment


def _delays(paths: Tensor, times: Tensor, curve: Tensor) -> Tensor:
    """Return the time `(n,)` from the point of each path to `curve`, in either direction; infinite if they miss."""
    found = crossings(paths, times, curve)
    delays = torch.full((len(paths),), torch.inf, dtype=times.dtype)
    return delays.scatter_reduce(0, found.path, found.time.abs(), "amin")


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
