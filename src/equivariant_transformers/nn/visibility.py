"""Weights of chart samples that keep the frame of an image from contributing to its pose."""

from __future__ import annotations

import torch
from torch import Tensor

from equivariant_transformers.geometry.charts import Chart

_FADE = 0.2  # fraction of the largest whole circle in the image over which a circular chart fades out


def window(chart: Chart, radii: Tensor, valid: Tensor) -> Tensor:
    """Return the weight `(B or 1, sheets, H, W)` of each sample of `chart`.

    The weight is 0 outside the image. A chart with a periodic axis, whose orbits or rays surround a centre, fades out
    towards the largest circle that lies inside the image: beyond, content enters and leaves when the image is rotated.

    Args:
        chart: the sampled chart.
        radii: distances `(sheets, H, W)` of the samples from the origin.
        valid: mask `(B or 1, sheets, H, W)` of the samples inside the image.
    """
    if not any(chart.periodic):
        return valid.to(radii.dtype)
    around, across = (-1, -2) if chart.periodic[0] else (-2, -1)
    radii = radii.amax(around, keepdim=True)  # of each closed orbit, or circle of rays
    cut = ~valid.to(radii.dtype).amin(around, keepdim=True).bool()
    largest = torch.where(cut, radii, radii.amax(across, keepdim=True)).amin(across, keepdim=True).clamp_min(1e-6)
    return ((1 - radii / largest) / _FADE).clamp(0, 1).expand_as(valid)


def distances(chart: Chart, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Return the distances `(sheets, H, W)` of the samples of `chart` from the origin."""
    x, y = chart.grid(dtype=dtype, device=device).unbind(-1)
    return torch.hypot(x, y)
