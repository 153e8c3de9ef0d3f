"""Maps between the plane and canonical coordinates, one pair per chart of the paper's table.

All maps and their gradients are finite everywhere, including on singular sets. `points` are `(..., 2)` as (x, y), `u`
are canonical coordinates `(..., 2)` and `sheet` are integers `(...)`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equivariant_transformers.geometry.projective import away_from_zero


def pair(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), -1)


def flip(points: Tensor) -> Tensor:
    return points.flip(-1)


def everywhere(points: Tensor) -> Tensor:
    return torch.ones_like(points[..., 0])


def sign(bit: Tensor, like: Tensor) -> Tensor:
    """Return +1 where the integer `bit` is 0 and -1 where it is 1, in the dtype of `like`."""
    return (1 - 2 * bit).to(like.dtype)


def radius(points: Tensor) -> Tensor:
    """Return the distance of `points` `(..., 2)` from the origin, with a finite gradient there and without overflow."""
    eps = torch.finfo(points.dtype).eps
    size = points.detach().abs().amax(-1).clamp_min(eps)
    return size * torch.sqrt((points / size[..., None]).square().sum(-1).clamp_min(eps))


def angle(points: Tensor) -> Tensor:
    """Return the angle of `points` `(..., 2)` from the x axis towards the y axis.

    The angle is 0 at the origin, with a finite gradient.
    """
    x, y = points.unbind(-1)
    at_origin = points.abs().amax(-1) < torch.finfo(x.dtype).eps
    return torch.atan2(y, torch.where(at_origin, torch.ones_like(x), x))


def exp(value: Tensor) -> Tensor:
    """Return the exponential, bounded so that its products with small factors stay finite."""
    return torch.exp(value.clamp(max=0.9 * math.log(torch.finfo(value.dtype).max)))


def log_magnitude(value: Tensor) -> Tensor:
    """Return log|value|, finite at 0."""
    return torch.log(away_from_zero(value).abs())


def identity(points: Tensor, sheet: Tensor | None = None) -> Tensor:
    return points


def swapped(points: Tensor, sheet: Tensor | None = None) -> Tensor:
    return flip(points)


def polar(points: Tensor) -> Tensor:
    return pair(angle(points), radius(points))


def from_polar(u: Tensor, sheet: Tensor) -> Tensor:
    phi, r = u.unbind(-1)
    return pair(r * torch.cos(phi), r * torch.sin(phi))


def log_polar(points: Tensor) -> Tensor:
    return pair(angle(points), torch.log(radius(points)))


def from_log_polar(u: Tensor, sheet: Tensor) -> Tensor:
    phi, log_r = u.unbind(-1)
    return from_polar(pair(phi, exp(log_r)), sheet)


def radial(points: Tensor) -> Tensor:
    return flip(log_polar(points))


def from_radial(u: Tensor, sheet: Tensor) -> Tensor:
    return from_log_polar(flip(u), sheet)


def x_scale(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return pair(log_magnitude(x), y)


def from_x_scale(u: Tensor, sheet: Tensor) -> Tensor:
    log_x, y = u.unbind(-1)
    return pair(sign(sheet, u) * exp(log_x), y)


def y_scale(points: Tensor) -> Tensor:
    return x_scale(flip(points))


def from_y_scale(u: Tensor, sheet: Tensor) -> Tensor:
    return flip(from_x_scale(u, sheet))


def log_log(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return pair(log_magnitude(x), log_magnitude(y))


def from_log_log(u: Tensor, sheet: Tensor) -> Tensor:
    log_x, log_y = u.unbind(-1)
    return pair(sign(sheet % 2, u) * exp(log_x), sign(sheet // 2, u) * exp(log_y))


def hyperbolic(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    width, height = away_from_zero(x).abs(), away_from_zero(y).abs()
    side = torch.where(y < 0, -1.0, 1.0).to(y.dtype)
    return pair((torch.log(width) - torch.log(height)) / 2, side * torch.sqrt(width) * torch.sqrt(height))


def from_hyperbolic(u: Tensor, sheet: Tensor) -> Tensor:
    squeeze, v = u.unbind(-1)
    return pair(sign(sheet, u) * v * exp(squeeze), v * exp(-squeeze))


def x_shear(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return pair(-x / away_from_zero(y), y)


def from_x_shear(u: Tensor, sheet: Tensor) -> Tensor:
    slope, y = u.unbind(-1)
    return pair(-slope * y, y)


def y_shear(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return pair(y / away_from_zero(x), x)


def from_y_shear(u: Tensor, sheet: Tensor) -> Tensor:
    slope, x = u.unbind(-1)
    return pair(x, slope * x)


def x_perspective(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    x = away_from_zero(x)
    return pair(1 / x, torch.atan(y / x))


def from_x_perspective(u: Tensor, sheet: Tensor) -> Tensor:
    reciprocal, ray = u.unbind(-1)
    x = 1 / away_from_zero(reciprocal)
    return pair(x, x * torch.tan(ray))


def y_perspective(points: Tensor) -> Tensor:
    return x_perspective(flip(points))


def from_y_perspective(u: Tensor, sheet: Tensor) -> Tensor:
    return flip(from_x_perspective(u, sheet))


def x_of(points: Tensor) -> Tensor:
    return points[..., 0]


def y_of(points: Tensor) -> Tensor:
    return points[..., 1]


def nearest_axis(points: Tensor) -> Tensor:
    return points.abs().amin(-1)


def from_origin(points: Tensor) -> Tensor:
    return points.abs().amax(-1)


def left(points: Tensor) -> Tensor:
    return (points[..., 0] < 0).long()


def above(points: Tensor) -> Tensor:
    return (points[..., 1] < 0).long()


def opposite_signs(points: Tensor) -> Tensor:
    return ((points[..., 0] < 0) != (points[..., 1] < 0)).long()


def quadrant(points: Tensor) -> Tensor:
    return left(points) + 2 * above(points)
