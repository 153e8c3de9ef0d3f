"""The sliders of the demo: one for each group of Projective MNIST, over the range that it has there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from equivariant_transformers.data.projective_mnist_set import PERSPECTIVE, RANGES

Pose = Mapping[str, float]
"""The parameter of each group of Projective MNIST."""


@dataclass(frozen=True)
class Slider:
    """One group in numbers that people like: `to_theta` makes them the group's parameter."""

    group: str
    label: str
    step: float
    to_theta: Callable[[float], float] = float
    from_theta: Callable[[float], float] = float

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest number, over which Projective MNIST runs."""
        first, last = (self.from_theta(theta) for theta in RANGES[self.group])
        return min(first, last), max(first, last)

    @property
    def rest(self) -> float:
        """The number that changes nothing."""
        return self.from_theta(0.0)

    def nearest(self, number: float | None) -> float:
        """Return the number in the range that is nearest to `number`, or the one at rest if there is none.

        >>> SLIDERS[1].nearest(1e9), SLIDERS[1].nearest(None)
        (1.5, 0.0)
        """
        low, high = self.range
        return self.rest if number is None else min(max(number, low), high)


SLIDERS = (
    Slider("rotation", "Rotation", 1, math.radians, math.degrees),
    Slider("x_shear", "Shear", 0.01),
    Slider("dilation", "Scale", 0.01, lambda factor: -math.log(factor), lambda theta: math.exp(-theta)),
    Slider("hyperbolic_rotation", "Aspect", 0.01),
    Slider("x_perspective", "Perspective x", 0.01),
    Slider("y_perspective", "Perspective y", 0.01),
)


def room(group: str, pose: Pose) -> tuple[float, float]:
    """The least and the greatest parameter of `group` beside the others in `pose`.

    Both perspectives share their range, as in Projective MNIST: with more, the horizon would cross the digit.

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
    """`pose` within its ranges; of two perspectives that are too strong together, the one along y gives way."""
    inside = {name: min(max(pose[name], low), high) for name, (low, high) in RANGES.items()}
    low, high = room("y_perspective", inside)
    return {**inside, "y_perspective": min(max(inside["y_perspective"], low), high)}
