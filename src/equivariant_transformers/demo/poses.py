"""Sliders of the demo: one per group of Projective MNIST, with the range of the data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from equivariant_transformers.data.projective_mnist_set import PERSPECTIVE, RANGES

Pose = Mapping[str, float]
"""Parameter of each group of Projective MNIST, by name."""


@dataclass(frozen=True)
class Slider:
    """Slider of a group, in readable units. `to_theta` converts its value to the group's parameter."""

    group: str
    label: str
    step: float
    thetas: tuple[float, float]
    """Least and greatest parameter."""
    to_theta: Callable[[float], float] = float
    from_theta: Callable[[float], float] = float

    @property
    def range(self) -> tuple[float, float]:
        """Least and greatest value."""
        first, last = map(self.from_theta, self.thetas)
        return min(first, last), max(first, last)

    @property
    def rest(self) -> float:
        """Value of the identity."""
        return self.from_theta(0.0)

    def nearest(self, number: float | None) -> float:
        """Return `number` clamped to the range, or the value at rest for None.

        >>> SLIDERS[1].nearest(1e9), SLIDERS[1].nearest(None)
        (1.5, 0.0)
        """
        low, high = self.range
        return self.rest if number is None else min(max(number, low), high)


def _sliders(ranges: Mapping[str, tuple[float, float]]) -> tuple[Slider, ...]:
    """Return the sliders of all groups, for parameters in these ranges."""
    return (
        Slider("rotation", "Rotation", 1, ranges["rotation"], math.radians, math.degrees),
        Slider("x_shear", "Shear", 0.01, ranges["x_shear"]),
        Slider(
            "dilation",
            "Scale",
            0.01,
            ranges["dilation"],
            lambda factor: -math.log(factor),
            lambda theta: math.exp(-theta),
        ),
        Slider("hyperbolic_rotation", "Aspect", 0.01, ranges["hyperbolic_rotation"]),
        Slider("x_perspective", "Perspective x", 0.01, ranges["x_perspective"]),
        Slider("y_perspective", "Perspective y", 0.01, ranges["y_perspective"]),
    )


SLIDERS = _sliders(RANGES)
"""Sliders of digits, with the ranges of Projective MNIST."""
PHOTOGRAPH_SLIDERS = _sliders(
    {**RANGES, "x_shear": (-0.6, 0.6), **dict.fromkeys(("x_perspective", "y_perspective"), (-0.4, 0.4))}
)
"""Sliders of photographs. A photograph fills its frame, so that the horizon crosses it from a perspective of 1."""


def increases(group: str) -> bool:
    """Return whether the parameter of `group` increases when its slider moves to the right.

    >>> increases("x_shear"), increases("dilation")  # a larger scale is a smaller parameter
    (True, False)
    """
    slider = next((slider for slider in SLIDERS if slider.group == group), None)
    return slider is None or slider.to_theta(slider.range[0]) < slider.to_theta(slider.range[1])


def room(group: str, pose: Pose) -> tuple[float, float]:
    """Return the least and the greatest parameter of `group` that `pose` leaves room for.

    Both perspectives share one range, as in Projective MNIST. Beyond it the horizon would cross the digit.

    >>> room("x_perspective", {"y_perspective": 1.8})
    (0.0, 0.0)
    """
    low, high = RANGES[group]
    if group.endswith("perspective"):
        other = "y_perspective" if group == "x_perspective" else "x_perspective"
        high = max(0.0, round(PERSPECTIVE - abs(pose[other]), 9))
        low = -high if high else 0.0
    return low, high


def possible(pose: Pose) -> Pose:
    """Return `pose` clamped to its ranges. If both perspectives together exceed theirs, the one along y is reduced."""
    inside = {name: min(max(pose[name], low), high) for name, (low, high) in RANGES.items()}
    low, high = room("y_perspective", inside)
    return {**inside, "y_perspective": min(max(inside["y_perspective"], low), high)}
