"""Coordinate systems of the authors' 2019 code, see `legacy`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equivariant_transformers.geometry.groups import GROUPS, Group

Range = tuple[float, float]
Sheets = list[tuple[Tensor, Tensor]]
ToPlane = Callable[[Tensor, Tensor], Sheets]


@dataclass(frozen=True)
class Chart2019:
    """Grid of a coordinate system. `to_plane` maps u and v, both `(h, w)`, to (x, y) on each sheet."""

    to_plane: ToPlane
    u: Range = (-1, 1)
    """Range of u. An infinite lower end stands for the logarithm of about one pixel."""
    v: Range = (-1, 1)
    sheets: int = 1
    periodic_v: bool = False

    def grid(self, size: tuple[int, int], device: torch.device) -> Tensor:
        """Return points `(H, W, 2)` of the plane. With two sheets, an odd height repeats the last row of the first."""
        height, width = size
        low, high = self.u
        low = -math.log(width / self.sheets) if math.isinf(low) else low
        v = torch.linspace(*self.v, height // self.sheets, device=device)
        u = torch.linspace(low, high, width, device=device)
        v, u = torch.meshgrid(v, u, indexing="ij")
        sheets = [torch.stack(points, -1) for points in self.to_plane(u, v)]
        if height % self.sheets:
            sheets.insert(1, sheets[0][-1:])
        return torch.cat(sheets)

    def transposed(self) -> Chart2019:
        """Return the chart with x and y exchanged."""
        return replace(self, to_plane=lambda u, v: [(x, y) for y, x in self.to_plane(u, v)])


def _hyperbolic(u: Tensor, v: Tensor) -> Sheets:
    x, y = u * v.exp(), u / v.exp()
    return [(x, y), (x, -y)]


def _perspective(u: Tensor, v: Tensor) -> Sheets:
    x, y = 1 / u, v.tan() / u
    return [(-x.flip(1), y.flip(1)), (x, y)]  # left, flipped so that 1 / x increases; right


_TURN = (-math.pi, math.pi)
_HALF_TURN = (-0.99 * math.pi / 2, 0.99 * math.pi / 2)
_CARTESIAN = Chart2019(lambda u, v: [(u, v)])
_POLAR = Chart2019(lambda u, v: [(u * v.cos(), u * v.sin())], u=(0, math.sqrt(2)), v=_TURN, periodic_v=True)
_LOG_POLAR = replace(_POLAR, to_plane=lambda u, v: _POLAR.to_plane(u.exp(), v), u=(-math.log(10), math.log(2) / 2))
_SHEAR = Chart2019(lambda u, v: [(u * v, u)], v=(-5, 5))
_SCALE = Chart2019(lambda u, v: [(u.exp(), v), (-u.exp(), v)], u=(-math.log(10), 0), sheets=2)
_HYPERBOLIC = Chart2019(_hyperbolic, u=(-math.sqrt(0.5), math.sqrt(0.5)), v=(-math.log(6), math.log(6)), sheets=2)
_PERSPECTIVE = Chart2019(_perspective, u=(1, 7), v=_HALF_TURN, sheets=2)

COORDS = {
    "identity_grid": _CARTESIAN,
    "polar_grid": _POLAR,
    "logpolar_grid": replace(_LOG_POLAR, u=(-math.inf, math.log(2) / 2)),
    "shearx_grid": _SHEAR,
    "sheary_grid": _SHEAR.transposed(),
    "scalex_grid": replace(_SCALE, u=(-math.inf, 0)),
    "scaley_grid": replace(_SCALE, u=(-math.inf, 0)).transposed(),
    "hyperbolic_grid": _HYPERBOLIC,
    "perspectivex_grid": replace(_PERSPECTIVE, u=(1, 8)),
    "perspectivey_grid": replace(_PERSPECTIVE, u=(1, 8)).transposed(),
}


TRANSFORMATIONS: dict[str, tuple[Chart2019, dict[str, Group]]] = {
    "Translation": (_CARTESIAN, {"u": GROUPS["x_translation"], "v": GROUPS["y_translation"]}),
    "Rotation": (_POLAR, {"v": GROUPS["rotation"]}),
    "Scale": (_LOG_POLAR, {"u": GROUPS["dilation"]}),
    "RotationScale": (_LOG_POLAR, {"u": GROUPS["dilation"], "v": GROUPS["rotation"]}),
    "ShearX": (_SHEAR, {"v": Group.from_generator([[0, 1, 0], [0, 0, 0], [0, 0, 0]], name="ShearX")}),
    "ShearY": (_SHEAR.transposed(), {"v": GROUPS["y_shear"]}),
    "ScaleX": (_SCALE, {"u": GROUPS["x_scale"]}),
    "ScaleY": (_SCALE, {"u": GROUPS["y_scale"]}),
    "HyperbolicRotation": (_HYPERBOLIC, {"v": GROUPS["hyperbolic_rotation"]}),
    "PerspectiveX": (_PERSPECTIVE, {"u": GROUPS["x_perspective"]}),
    "PerspectiveY": (_PERSPECTIVE.transposed(), {"u": GROUPS["y_perspective"]}),
}
"""Chart of each transformation, and the groups whose parameters are read from the chart's axes."""
