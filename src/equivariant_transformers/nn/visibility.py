"""Weights of chart samples that keep the frame of an image from contributing to its pose."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.nn.buffers import Exact

FADE = 0.2
"""Fraction of the largest whole circle in the image over which a circular chart fades out."""


class Window(Exact):
    """Weights of the samples of `chart`.

    The weight is 0 outside the image. A chart with a periodic axis, whose orbits or rays surround a centre, fades out
    towards the largest circle that lies inside the image: beyond, content enters and leaves when the image is rotated.
    """

    radii: Tensor
    longest: Tensor

    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self.circular = any(chart.periodic)
        self.around, self.across = (-1, -2) if chart.periodic[0] else (-2, -1)
        self.keep_exact("radii", partial(self._radii, chart))  # of each closed orbit, or circle of rays
        self.keep_exact("longest", partial(self._longest, chart))  # of each sheet

    def forward(self, valid: Tensor) -> Tensor:
        """Return weights `(B or 1, sheets, H, W)` for a mask of this shape of the samples inside the image."""
        if not self.circular:
            return valid.to(self.radii.dtype)
        whole = valid.all(self.around, keepdim=True)
        largest = torch.where(whole, self.longest, self.radii).amin(self.across, keepdim=True).clamp_min(1e-6)
        return ((1 - self.radii / largest) / FADE).clamp(0, 1).expand_as(valid)

    def _radii(self, chart: Chart, *, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return distances(chart, dtype=dtype, device=device).amax(self.around, keepdim=True)

    def _longest(self, chart: Chart, *, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        return self._radii(chart, dtype=dtype, device=device).amax(self.across, keepdim=True)


def distances(chart: Chart, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Return the distances `(sheets, H, W)` of the samples of `chart` from the origin."""
    x, y = chart.grid(dtype=dtype, device=device).unbind(-1)
    return torch.hypot(x, y)
