"""Quick test of a derived chart: coverage of the image, sampling of the pose, and whether pictures can be followed.

The test needs no network. Pictures of blobs are moved by the group, drawn on pixels and sampled on the chart. The
position of a picture is the centre of the derivative along the pose axis, as in `ConsistentPredictor`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.derivation.coverage import image_points
from equivariant_transformers.geometry.frame import pixel_centres
from equivariant_transformers.geometry.projective import wrap
from equivariant_transformers.geometry.warp import Warp

_PIXELS = 64
_ROWS, _SAMPLES = 16, 32  # of the chart and of its row weights: few, since some flows are slow
_PICTURES, _BLOBS = 4, 12
_REACH = 0.25  # distance by which the test moves fast content
_FAST = 0.9  # quantile of the speed over the image
_LEAST_COVERAGE = 0.5
_LONGEST_STRIDE = 0.5
_SLOPES = (0.5, 1.5)
_LARGEST_ERROR = 0.3


@dataclass(frozen=True)
class Usefulness:
    """Figures of a chart with one pose coordinate that decide whether a layer can use it."""

    coverage: float
    """Fraction of the image that the ranges of the chart cover."""
    stride: float
    """Distance by which fast content moves between two samples of the pose; the longer side of the image is 2."""
    slope: float
    """Slope of the position of moved pictures against theta; 1 is ideal."""
    error: float
    """Root mean square of the difference between this position and theta, relative to the range of theta."""


def usefulness(chart: Chart) -> Usefulness:
    """Return the figures of `chart`. The test takes about 0.1 seconds, longer if the flow of the group is slow.

    >>> import equivariant_transformers as et
    >>> figures = usefulness(et.chart("x_shear"))
    >>> abs(figures.slope - 1) < 0.05, figures.coverage > 0.8
    (True, True)
    """
    low, high = chart.ranges[0]
    fast = chart.groups[0].vector_field(image_points(48)).norm(dim=-1).quantile(_FAST).item()
    slope, error = _follows(chart.replace(size=(_ROWS, chart.size[1])), _REACH / max(fast, 1e-12))
    return Usefulness(chart.coverage(_SAMPLES), fast * (high - low) / chart.size[1], slope, error)


def warn_unless_useful(chart: Chart) -> None:
    """Warn with the figures and what to change if a layer with `chart` would be of little use."""
    found = usefulness(chart)
    (low, high), across = chart.ranges
    problems = []
    if found.coverage < _LEAST_COVERAGE:
        problems.append(
            f"it covers {found.coverage:.0%} of the image, and content elsewhere has no pose: widen its ranges with "
            "chart.replace(ranges=...), or move the fixed points of the group out of the image"
        )
    if found.stride > _LONGEST_STRIDE:
        half = 0.5 * (high - low) * _LONGEST_STRIDE / found.stride
        middle = chart.centre[0]
        problems.append(
            f"its pose runs from {low:.3g} to {high:.3g}, and content moves by {found.stride:.2g} between two of its "
            f"{chart.size[1]} samples (the image is 2 wide): use a group with the same orbits whose speed varies less, "
            f"or limit the pose with chart.replace(ranges=(({middle - half:.3g}, {middle + half:.3g}), "
            f"({across[0]:.3g}, {across[1]:.3g})))"
        )
    if not (_SLOPES[0] <= found.slope <= _SLOPES[1] and found.error <= _LARGEST_ERROR):
        problems.append(
            f"the position of test pictures follows theta with slope {found.slope:.2g}, ideally 1, and an error of "
            f"{found.error:.0%} of its range: content leaves the ranges of the chart, or its orbits are closed with "
            "different periods. Measure a layer with et.self_consistency before you use it, and try chart.replace with "
            "other ranges, size or order"
        )
    if problems:
        listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1))
        warnings.warn(f"the chart of {chart.name!r} is of little use to a layer: {listed}", stacklevel=3)


def _follows(chart: Chart, max_theta: float) -> tuple[float, float]:
    """Return the slope and the error of the positions of pictures that the group moves by up to `max_theta`."""
    x, y = pixel_centres((_PIXELS, _PIXELS), torch.float64, None)
    pixels = torch.stack(torch.broadcast_tensors(x, y), -1)[0]  # type: ignore[no-untyped-call]
    theta = torch.linspace(-max_theta, max_theta, 5, dtype=torch.float64)
    moved = chart.groups[0].transform(theta[:, None, None], pixels)  # (5, H, W, 2)
    pictures = _blobs(moved).float()
    seen = Warp.identity().sample(pictures.flatten(0, 1)[:, None], chart.grid(dtype=torch.float32))[:, 0]
    position = _positions(chart, seen).double().reshape(pictures.shape[:2])  # (5, pictures)
    low, high = chart.ranges[0]
    change = wrap(position[2] - position, high - low if chart.periodic[0] else None)
    slope = (change * theta[:, None]).sum() / (_PICTURES * theta.square().sum())
    error = (change - theta[:, None]).square().mean().sqrt() / (2 * max_theta)
    return float(slope), float(error)


def _blobs(points: Tensor) -> Tensor:
    """Return pictures `(n, pictures, H, W)` of Gaussian blobs at `points` `(n, H, W, 2)`."""
    random = torch.Generator().manual_seed(0)
    centre, width, height = (
        torch.rand(_PICTURES, _BLOBS, 1, 1, *more, generator=random, dtype=points.dtype) for more in ((2,), (), ())
    )
    from_centre = (points[:, None, None] - 1.2 * (centre - 0.5)).square().sum(-1)  # (n, pictures, blobs, H, W)
    return ((2 * height - 1) * torch.exp(-0.5 * from_centre / (0.04 + 0.08 * width).square())).sum(2)


def _positions(chart: Chart, seen: Tensor) -> Tensor:
    """Return the centre `(n,)` along the pose axis of the derivative of pictures on the chart, `(n, sheets, h, w)`."""
    smooth = torch.softmax(-torch.arange(-3.0, 4.0).square() / 2, 0)
    kernel = F.conv1d(F.pad(smooth, (2, 2))[None, None], torch.tensor([[[1.0, 0.0, -1.0]]]))
    for _ in range(chart.order):
        padded = F.pad(seen.flatten(0, 1), (4, 4), mode="circular" if chart.periodic[0] else "replicate")
        seen = F.conv1d(padded.reshape(-1, 1, padded.shape[-1]), kernel).reshape(seen.shape)
    evidence = (seen.abs().sum(1) * chart.row_weights(_SAMPLES)[:, None]).sum(1)  # (n, w)
    weights = evidence / evidence.sum(-1, keepdim=True).clamp_min(1e-12)
    places = chart.axes(dtype=weights.dtype)[0]
    if not chart.periodic[0]:
        return (weights * places).sum(-1)
    low, high = chart.ranges[0]
    angles = places * (2 * torch.pi / (high - low))
    angle = torch.atan2((weights * angles.sin()).sum(-1), (weights * angles.cos()).sum(-1))
    return angle * ((high - low) / (2 * torch.pi))
