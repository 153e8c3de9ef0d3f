"""Pictures of charts, groups and warps, drawn with matplotlib (in the `train` extra)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equivariant_transformers.charts import Chart
from equivariant_transformers.measurements import SelfConsistency
from equivariant_transformers.warp import Warp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSE_COLOUR = "#d1495b"
INVARIANT_COLOUR = "#2e86ab"


def coordinate_lines(chart: Chart, axes: Axes, *, lines: int = 15, samples: int = 400) -> None:
    """Draw the lines of equal first (red) and equal second coordinate (blue) of `chart` over the image's square."""
    for size, colour in (((samples, lines), POSE_COLOUR), ((lines, samples), INVARIANT_COLOUR)):
        curves = chart.replace(size=size).grid()  # (sheets, height, width, 2)
        if size == (samples, lines):
            curves = curves.transpose(1, 2)
        for curve in curves.flatten(0, 1):  # (samples, 2)
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


def pose_plot(result: SelfConsistency, axes: Axes, parameter: int = 0) -> None:
    """Draw predicted against true changes of a pose: a faint line an image, their median thick, the ideal dotted."""
    theta, order = result.theta.sort()
    predicted = result.predicted[parameter][order]  # (n, B)
    axes.plot(theta.numpy(), theta.numpy(), color="black", linestyle=":", linewidth=1.2, zorder=3)
    axes.plot(theta.numpy(), predicted.numpy(), color=INVARIANT_COLOUR, linewidth=0.8, alpha=0.3)
    axes.plot(theta.numpy(), predicted.quantile(0.5, dim=1).numpy(), color=POSE_COLOUR, linewidth=2.5)
    title = f"{result.names[parameter].replace('_', ' ')}: slope {result.slope[parameter]:.3f}"
    axes.set(xlabel="true change of pose", ylabel="predicted change", title=title)


def _to_picture(image: Tensor) -> Any:
    """`(C, H, W)` as the array that matplotlib shows: grey for one channel, colour for three."""
    return (image[0] if len(image) == 1 else image.permute(1, 2, 0)).detach().cpu().numpy()
