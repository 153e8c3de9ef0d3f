r"""Table of the paper's canonical coordinates: one chart per group, and one per pair of commuting groups."""

from __future__ import annotations

import math
from typing import Any

from equivariant_transformers.geometry import coordinates as at
from equivariant_transformers.geometry.charts import Chart, Map, Range, SheetMap
from equivariant_transformers.geometry.groups import GROUPS, Group, lookup

_TURN = (-math.pi, math.pi)
_TWO_PI = 2 * math.pi
_IMAGE = (-1.0, 1.0)
_CORNER = math.log(2) / 2  # log of the distance from the centre to a corner
_NEAR = -math.log(100)  # log of a distance well below the width of a pixel
_MIDDLE = -math.log(2)  # log of half the distance to the image's edge
_RAYS = (-0.99 * math.pi / 2, 0.99 * math.pi / 2)


def _row(
    name: str, maps: tuple[Map, SheetMap, Map], ranges: tuple[Range, Range], groups: str = "", **rest: Any
) -> Chart:
    members = tuple(GROUPS[member] for member in (groups or name).split())
    return Chart(name, members, ranges, *maps, **rest)


_ROWS = (
    _row("x_translation", (at.identity, at.identity, at.everywhere), (_IMAGE, _IMAGE)),
    _row("y_translation", (at.swapped, at.swapped, at.everywhere), (_IMAGE, _IMAGE)),
    _row("rotation", (at.polar, at.from_polar, at.from_origin), (_TURN, (0, math.sqrt(2))), periods=(_TWO_PI, None)),
    _row(
        "dilation",
        (at.radial, at.from_radial, at.from_origin),
        ((_NEAR, _CORNER), _TURN),
        origin=(_MIDDLE, 0),
        order=2,
        periods=(None, _TWO_PI),
    ),
    _row(
        "x_scale",
        (at.x_scale, at.from_x_scale, at.x_of),
        ((_NEAR, 0), _IMAGE),
        origin=(_MIDDLE, 0),
        order=2,
        sheets=2,
        sheet_of=at.left,
    ),
    _row(
        "y_scale",
        (at.y_scale, at.from_y_scale, at.y_of),
        ((_NEAR, 0), _IMAGE),
        origin=(_MIDDLE, 0),
        order=2,
        sheets=2,
        sheet_of=at.above,
    ),
    _row(
        "hyperbolic_rotation",
        (at.hyperbolic, at.from_hyperbolic, at.nearest_axis),
        ((-2.5, 2.5), _IMAGE),
        size=(128, 64),
        sheets=2,
        sheet_of=at.opposite_signs,
    ),
    _row("x_shear", (at.x_shear, at.from_x_shear, at.y_of), ((-5, 5), _IMAGE)),
    _row("y_shear", (at.y_shear, at.from_y_shear, at.x_of), ((-5, 5), _IMAGE)),
    _row(
        "x_perspective",
        (at.x_perspective, at.from_x_perspective, at.x_of),
        ((1, 15), _RAYS),
        sheets=2,
        sheet_of=at.left,
        mirrored=True,
    ),
    _row(
        "y_perspective",
        (at.y_perspective, at.from_y_perspective, at.y_of),
        ((1, 15), _RAYS),
        sheets=2,
        sheet_of=at.above,
        mirrored=True,
    ),
    _row(
        "cartesian", (at.identity, at.identity, at.everywhere), (_IMAGE, _IMAGE), groups="x_translation y_translation"
    ),
    _row(
        "log_polar",
        (at.log_polar, at.from_log_polar, at.from_origin),
        (_TURN, (-math.log(64), _CORNER)),
        groups="rotation dilation",
        origin=(0, _MIDDLE),
        order=2,
        periods=(_TWO_PI, None),
    ),
    _row(
        "log_log",
        (at.log_log, at.from_log_log, at.nearest_axis),
        ((_NEAR, 0), (_NEAR, 0)),
        groups="x_scale y_scale",
        origin=(_MIDDLE, _MIDDLE),
        order=2,
        sheets=4,
        sheet_of=at.quadrant,
    ),
)
CHARTS: dict[str, Chart] = {row.name: row for row in _ROWS}
"""Charts by name: one per group, and `cartesian`, `log_polar` and `log_log` for pairs of groups."""

_RADII = (-math.log(10), _CORNER)
_SCALES = (-math.log(10), 0.0)
PAPER_RANGES: dict[str, tuple[Range, Range]] = {
    "x_translation": (_IMAGE, _IMAGE),
    "y_translation": (_IMAGE, _IMAGE),
    "rotation": (_TURN, (0, math.sqrt(2))),
    "dilation": (_RADII, _TURN),
    "x_scale": (_SCALES, _IMAGE),
    "y_scale": (_SCALES, _IMAGE),
    "hyperbolic_rotation": ((-math.log(6), math.log(6)), (-math.sqrt(0.5), math.sqrt(0.5))),
    "x_shear": ((-5, 5), _IMAGE),
    "y_shear": ((-5, 5), _IMAGE),
    "x_perspective": ((1, 7), _RAYS),
    "y_perspective": ((1, 7), _RAYS),
    "cartesian": (_IMAGE, _IMAGE),
    "log_polar": (_TURN, _RADII),
    "log_log": (_SCALES, _SCALES),
}
"""Ranges of both coordinates in the paper's predictors, by chart."""


_INSIDE = (-math.log(8), 0.0)  # logs of radii up to the largest circle in a square image
PICTURE_RANGES: dict[str, tuple[Range, Range]] = PAPER_RANGES | {
    "rotation": (_TURN, (1 / 32, 1.0)),
    "dilation": (_INSIDE, _TURN),
    "log_polar": (_TURN, _INSIDE),
}
"""Ranges of both coordinates in the predictor for photographs, by chart. Circular charts end at the edge of a square
image."""


def chart(name: str | Chart) -> Chart:
    """Return the chart called `name`; a `Chart` is returned unchanged.

    >>> import torch
    >>> chart("x_perspective").to_canonical(torch.tensor([0.5, 0.5]))
    tensor([2.0000, 0.7854])
    """
    if isinstance(name, Group):
        made = f"et.chart({name.name!r})" if GROUPS.get(name.name) == name else "et.derive(group)"
        raise TypeError(f"a chart is needed, got the group {name.name!r}; {made} returns its chart")
    return name if isinstance(name, Chart) else lookup(CHARTS, name, "chart")


def paper_chart(name: str, size: tuple[int, int] = (64, 64)) -> Chart:
    """Return the chart called `name` with the ranges of the paper. A pose of 0 is the middle of its range.

    The height in `size` is divided among the sheets of the chart.

    >>> paper_chart("x_perspective").ranges[0]
    (1.0, 7.0)
    """
    found = chart(name)
    height, width = size
    ranges = lookup(PAPER_RANGES, name, "chart")
    return found.replace(ranges=ranges, origin=None, size=(height // found.sheets, width))


def picture_chart(name: str) -> Chart:
    """Return the chart called `name` for the predictor for photographs. A pose of 0 is the middle of its range.

    >>> picture_chart("rotation").size
    (32, 64)
    """
    found = chart(name)
    size = (32, 32) if name in ("cartesian", "log_log") else (32, 64)
    return found.replace(ranges=lookup(PICTURE_RANGES, name, "chart"), origin=None, size=size)


def classifier_chart(name: str, size: tuple[int, int]) -> Chart:
    """Return the chart in front of the paper's classifiers; the radii of `log_polar` start at 1 / width."""
    found = chart(name).replace(size=size)
    return found.replace(ranges=(_TURN, (-math.log(size[1]), _CORNER))) if name == "log_polar" else found
