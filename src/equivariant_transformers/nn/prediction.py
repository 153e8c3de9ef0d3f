"""Prediction of a pose from heat maps along the pose axes of a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.projective import wrap
from equivariant_transformers.nn.buffers import Exact

MOST_CHANNELS = 4096
"""Largest number of image channels, and of features of a predictor. Two layers of 4096 have 1.2 GB of weights."""

_FLOOR = 1e-4  # of relative evidence: keeps the gradient of its powers finite


class Prediction(NamedTuple):
    """Prediction for a batch of `B` images and the `k` parameters of a chart."""

    pose: Tensor
    """Pose `(B, k)`."""
    confidence: Tensor
    """Confidence `(B, k)`, from 0 (heat map empty, or spread over the whole range) to 1 (one sharp peak)."""
    heatmaps: tuple[Tensor, ...]
    """Weights `(B, samples)` of each parameter, whose centre is the pose. They sum to 1, or to 0 for an empty image."""
    evidence: Tensor | None = None
    """Logits `(B, samples)`, or `(B, height, width)` for two parameters, of content at each position of the pose axes
    of the chart, before any prior; None for predictors without such logits. `alignment_loss` trains them."""


def check_channels(**channels: int) -> None:
    """Raise an error unless each value is a valid number of channels. The keywords name the arguments."""
    for name, count in channels.items():
        whole_number(name, count, most=MOST_CHANNELS)


def columns(parts: Sequence[Tensor]) -> Tensor:
    """Return `parts` `(...)` as the columns `(..., k)` of one tensor; of a single part, this is a view."""
    return torch.stack(tuple(parts), -1) if len(parts) > 1 else parts[0][..., None]


def weights_of(evidence: Tensor, exponent: Tensor) -> Tensor:
    r"""Return weights $|h|^p$ of evidence h `(B, samples)`, scaled to sum to 1, or all 0 without evidence."""
    power = evidence.square()
    relative = power / (power.mean(-1, keepdim=True) + 1e-12)
    weights = (relative + _FLOOR) ** (exponent / 2) - _FLOOR ** (exponent / 2)
    return weights / (weights.sum(-1, keepdim=True) + 1e-6)


class PoseReader(Exact):
    """Centres of heat maps along the pose axes of `chart`, of which the maps sample every `stride`-th position."""

    def __init__(self, chart: Chart, stride: int = 1) -> None:
        super().__init__()
        self.chart = chart
        for axis in range(len(chart.groups)):
            self.keep_exact(f"places{axis}", partial(_places, chart, axis, stride))

    def forward(self, maps: Sequence[Tensor], bias: Tensor | None = None, pull: Tensor | None = None) -> Prediction:
        """Return a prediction from `maps`, one `(..., samples)` per pose axis. The poses `(..., k)` are their centres.

        Args:
            maps: heat maps, each with sum 1, or 0 for an empty image.
            bias: term `(k,)` added to the poses of images that are not empty.
            pull: weight that is added at pose 0 on a periodic axis.
        """
        found = [self._centre(heatmap, axis, pull) for axis, heatmap in enumerate(maps)]
        pose, confidence = (columns(parts) for parts in zip(*found, strict=True))
        if bias is not None:
            pose = pose + bias * columns([heatmap.sum(-1) for heatmap in maps])
            periods = [
                high - low if wraps else None
                for (low, high), wraps in zip(self.chart.ranges, self.chart.periodic, strict=True)
            ]
            pose = columns([wrap(column, period) for column, period in zip(pose.unbind(-1), periods, strict=False)])
        return Prediction(pose, confidence, tuple(maps))

    def _centre(self, heatmap: Tensor, axis: int, pull: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the pose `(...)` and confidence `(...)` of a `heatmap` `(..., samples)` along a pose axis."""
        low, high = self.chart.ranges[axis]
        places = getattr(self, f"places{axis}").to(heatmap.dtype)
        if self.chart.periodic[axis]:
            centre = (heatmap[..., None, :] * places).sum(-1)  # (..., 2)
            length = torch.linalg.vector_norm(centre, dim=-1)  # its gradient is 0 at the origin
            nowhere = length < 1e-5
            x, y = torch.where(nowhere, 1.0, centre[..., 0]), torch.where(nowhere, 0.0, centre[..., 1])
            pose = torch.atan2(y, x if pull is None else x + pull) / -_turn(low, high)
            return pose, torch.where(nowhere, 0.0, length)
        mean = (heatmap * places).sum(-1)
        variance = (heatmap * (places - mean[..., None]).square()).sum(-1)
        spread = torch.sqrt(variance + 1e-12) / ((high - low) / math.sqrt(12))  # 1 for a flat map
        return -mean, heatmap.sum(-1) * (1 - spread).clamp(0, 1)


def _places(
    chart: Chart, axis: int, stride: int, *, dtype: torch.dtype | None, device: torch.device | str | None
) -> Tensor:
    """Return the positions `(samples,)` along a pose axis, or their cosines and sines `(2, samples)` if it wraps."""
    positions = chart.axes(dtype=dtype, device=device)[axis][::stride] - chart.centre[axis]
    if not chart.periodic[axis]:
        return positions
    angles = _turn(*chart.ranges[axis]) * positions
    return torch.stack((torch.cos(angles), torch.sin(angles)))


def _turn(low: float, high: float) -> float:
    """Return the angle per unit of an axis with this period."""
    return 2 * math.pi / (high - low)
