"""Poses at the samples of a chart, and the points to which the warps that remove them move the middle of the plane."""

from __future__ import annotations

import torch
from torch import Tensor

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.motion import remove_pose

_HALF_WIDTH = 0.7  # of the grid of points


def middle_points(*, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Return 4 x 4 points `(1, 16, 2)` in the middle of the plane."""
    line = torch.linspace(-_HALF_WIDTH, _HALF_WIDTH, 4, dtype=dtype, device=device)
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(1, -1, 2)


def sample_poses(chart: Chart, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Return the pose `(K, k)` of content at each sample of the pose axes."""
    count = len(chart.groups)
    axes = chart.axes(dtype=dtype, device=device)[:count]
    poses = [middle - axis for axis, middle in zip(axes, chart.centre, strict=False)]
    return torch.stack(torch.meshgrid(*poses, indexing="xy"), -1).reshape(-1, count)


def undone_points(
    chart: Chart, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Return the middle points `(K, 16, 2)` moved by the warps that remove the pose at each sample of the pose axes."""
    candidates = sample_poses(chart, dtype=dtype, device=device)
    points = middle_points(dtype=dtype, device=device)
    return remove_pose(chart.groups, candidates).points(points.expand(len(candidates), -1, -1))
