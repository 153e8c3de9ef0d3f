"""How a pair of coordinates lies over the image: the ranges that cover it, and how much it is distorted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Range = tuple[float, float]

_REGULAR = 0.3  # an end is regular if the last values before it take less than this share of the rest
_GIVEN_UP = (0.045, 0.025)  # of the image, at a singular end of the pose and of the invariant coordinate


def image_points(samples: int = 96) -> Tensor:
    """A float64 grid `(samples**2, 2)` over [-1, 1] x [-1, 1], corners included; an even count misses the axes."""
    ticks = torch.linspace(-1, 1, samples, dtype=torch.float64)
    return torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1).flatten(0, 1)


def ranges(coordinates: Tensor, periods: Sequence[float | None]) -> tuple[Range, Range]:
    """The interval of each coordinate that covers the image, from `coordinates` `(n, 2)` of points spread over it.

    A periodic coordinate gets its whole period. Otherwise the range reaches from the smallest to the largest value,
    but an end that runs off (to a singular set) stops where 4.5 % of the image lies beyond it (of the second
    coordinate, 2.5 %): the pose coordinate is sampled finely, and what is far out on it tells little.

    >>> ranges(image_points(), (None, 2.0))
    ((-1.0, 1.0), (-1.0, 1.0))
    """
    first, second = (
        _range(column, given_up) if period is None else (-period / 2, period / 2)
        for column, period, given_up in zip(coordinates.unbind(-1), periods, _GIVEN_UP, strict=True)
    )
    return first, second


def _range(values: Tensor, given_up: float) -> Range:
    cut = torch.tensor([0.0, given_up, 1 - given_up, 1.0], dtype=values.dtype)
    lowest, low, high, highest = torch.quantile(values, cut).tolist()
    margin = _REGULAR * (high - low)
    low = lowest if low - lowest <= margin else low
    high = highest if highest - high <= margin else high
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def distortion(coordinate: Callable[[Tensor], Tensor], points: Tensor) -> float:
    r"""How unevenly a coordinate's level lines are spaced: the standard deviation of $\log|\nabla v|$ over `points`.

    0 is even spacing, which loses nothing to resampling; infinity means that the gradient vanishes or breaks off.

    >>> points = image_points()
    >>> round(distortion(lambda p: 3 * p[..., 1], points), 6)
    0.0
    >>> radius, its_square = (distortion(f, points) for f in (lambda p: p.norm(dim=-1), lambda p: p.square().sum(-1)))
    >>> radius < its_square
    True
    """
    points = points.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(coordinate(points).sum(), points)
    spacing = torch.log(gradient.norm(dim=-1))
    return spacing.std().item() if bool(spacing.isfinite().all()) else math.inf
