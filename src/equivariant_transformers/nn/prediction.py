"""Prediction of a pose from heat maps along the pose axes of a chart."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.projective import wrap

MOST_CHANNELS = 4096
"""Largest number of image channels, and of features of a predictor. Two layers of 4096 have 1.2 GB of weights."""


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


def read(maps: list[Tensor], chart: Chart, bias: Tensor, stride: int = 1, pull: Tensor | None = None) -> Prediction:
    """Return a prediction from `maps`, one `(B, samples)` per pose axis of `chart`. The poses are their centres."""
    found = [centre(heatmap, chart, axis, stride, pull) for axis, heatmap in enumerate(maps)]
    pose, confidence = (torch.stack(column, -1) for column in zip(*found, strict=True))
    seen = torch.stack([heatmap.sum(-1) for heatmap in maps], -1)  # 0 for an empty image, whose pose is 0
    pose = pose + bias * seen
    wrapped = [
        wrap(column, high - low if periodic else None)
        for column, (low, high), periodic in zip(pose.unbind(-1), chart.ranges, chart.periodic, strict=False)
    ]
    return Prediction(torch.stack(wrapped, -1), confidence, tuple(maps))


def centre(heatmap: Tensor, chart: Chart, axis: int, stride: int, pull: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the pose `(B,)` and confidence `(B,)` of a `heatmap` `(B, samples)` along a pose axis of `chart`.

    `pull` is a weight that is added at pose 0 on a periodic axis.
    """
    low, high = chart.ranges[axis]
    positions = chart.axes(dtype=heatmap.dtype, device=heatmap.device)[axis][::stride] - chart.centre[axis]
    if chart.periodic[axis]:
        turn = 2 * math.pi / (high - low)
        x = (heatmap * torch.cos(turn * positions)).sum(-1)
        y = (heatmap * torch.sin(turn * positions)).sum(-1)
        nowhere = x.square() + y.square() < 1e-10
        x, y = torch.where(nowhere, 1.0, x), torch.where(nowhere, 0.0, y)
        ahead = x if pull is None else x + pull
        return -torch.atan2(y, ahead) / turn, torch.where(nowhere, 0.0, torch.sqrt(x.square() + y.square()))
    mean = (heatmap * positions).sum(-1)
    variance = (heatmap * (positions - mean[:, None]).square()).sum(-1)
    spread = torch.sqrt(variance + 1e-12) / ((high - low) / math.sqrt(12))  # 1 for a flat map
    return -mean, heatmap.sum(-1) * (1 - spread).clamp(0, 1)
