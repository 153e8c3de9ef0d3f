"""Pictures of charts, groups and warps, drawn with matplotlib (in the `train` extra)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equivariant_transformers.charts import Chart
from equivariant_transformers.warp import Warp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSE_COLOUR = "#d1495b"
INVARIANT_COLOUR = "#2e86ab"


def coordinate_lines(chart: Chart, axes: Axes, *, lines: int = 15, samples: int = 400) -> None:
    """Draw the lines of equal first (red) and equal second coordinate (blue) of `chart` over the image's square."""
    for moving, colour in ((1, POSE_COLOUR), (0, INVARIANT_COLOUR)):
        counts = [samples, samples]
        counts[1 - moving] = lines
        u, v = (torch.linspace(*bounds, count) for bounds, count in zip(chart.ranges, counts, strict=True))
        curves = torch.stack(torch.meshgrid(u, v, indexing="ij"), -1)
        if moving == 0:
            curves = curves.transpose(0, 1)
        for sheet in range(chart.sheets):
            for curve in chart.to_plane(curves, sheet):  # (samples, 2)
                visible = torch.where((curve.abs() <= 1).all(-1, keepdim=True), curve, torch.nan)
                axes.plot(*visible.T.numpy(), color=colour, linewidth=0.9)
    axes.set(xlim=(-1, 1), ylim=(1, -1), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))


def in_chart(chart: Chart, image: Tensor, axes: Axes, **style: Any) -> None:
    """Draw one image `(C, H, W)` in the coordinates of `chart`, its sheets below each other, the pose to the right."""
    sheets = Warp.identity().sample(image[None], chart.grid())[0]  # (C, sheets, height, width)
    (left, right), (top, bottom) = chart.ranges
    picture = _to_picture(sheets.flatten(1, 2))
    axes.imshow(picture, extent=(left, right, chart.sheets, 0), aspect="auto", **{"cmap": "gray", **style})
    for sheet in range(1, chart.sheets):
        axes.axhline(sheet, color="white", linewidth=0.8)
    axes.set(yticks=(0, 1) if chart.sheets == 1 else ())
    if chart.sheets == 1:
        axes.set_yticklabels([f"{top:.2g}", f"{bottom:.2g}"])


def show(image: Tensor, axes: Axes, title: str = "") -> None:
    """Draw one image `(C, H, W)` over the plane's square."""
    axes.imshow(_to_picture(image), extent=(-1, 1, 1, -1), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=(), yticks=(), title=title)


def _to_picture(image: Tensor) -> Any:
    """`(C, H, W)` as the array that matplotlib shows: grey for one channel, colour for three."""
    return (image[0] if len(image) == 1 else image.permute(1, 2, 0)).detach().cpu().numpy()
