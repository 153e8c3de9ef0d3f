"""Plots of charts, groups, warps and layers with matplotlib (in the `train` extra)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.audit.results import SelfConsistency
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.frame import extent
from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.canonicalizer import Canonicalized

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POSE_COLOUR = "#d1495b"
INVARIANT_COLOUR = "#2e86ab"


def coordinate_lines(chart: Chart, axes: Axes, *, lines: int = 15, samples: int = 400) -> None:
    """Draw the lines of equal first (red) and equal second coordinate (blue) of `chart` over a square image."""
    for size, colour in (((samples, lines), POSE_COLOUR), ((lines, samples), INVARIANT_COLOUR)):
        curves = chart.replace(size=size).grid()  # (sheets, height, width, 2)
        if size == (samples, lines):
            curves = curves.transpose(1, 2)
        for curve in curves.flatten(0, 1):  # (samples, 2)
            visible = torch.where((curve.abs() <= 1).all(-1, keepdim=True), curve, torch.nan)
            axes.plot(*visible.T.numpy(), color=colour, linewidth=0.9)
    axes.set(xlim=(-1, 1), ylim=(1, -1), aspect="equal", xticks=(-1, 0, 1), yticks=(-1, 0, 1))


def flow_lines(group: Group, axes: Axes, *, samples: int = 41) -> None:
    """Draw the flow lines of `group` over a square image, with arrows in the direction of increasing theta."""
    line = torch.linspace(-1, 1, samples)
    x, y = torch.meshgrid(line, line, indexing="xy")
    velocity = group.vector_field(torch.stack((x, y), -1)).numpy()
    style: dict[str, Any] = {"color": POSE_COLOUR, "density": 0.6, "linewidth": 1.0, "arrowsize": 0.7}
    axes.streamplot(x.numpy(), y.numpy(), velocity[..., 0], velocity[..., 1], **style)
    axes.set(xlim=(-1, 1), ylim=(1, -1), aspect="equal")


def in_chart(chart: Chart, image: Tensor, axes: Axes, **style: Any) -> None:
    """Draw an image `(C, H, W)` in the coordinates of `chart`: the pose to the right, the sheets below each other."""
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
    """Draw an image `(C, H, W)` over its frame: the longer side spans [-1, 1]."""
    right, bottom = extent((image.shape[-2], image.shape[-1]))
    axes.imshow(_to_picture(image), extent=(-right, right, bottom, -bottom), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=(), yticks=(), title=_drawable(title))


def pose_plot(result: SelfConsistency, axes: Axes, parameter: int = 0) -> None:
    """Plot predicted against true changes of a pose: a faint line per image, a thick median, a dotted ideal."""
    theta, order = result.theta.sort()
    predicted = result.predicted[parameter][order]  # (n, B)
    axes.plot(theta.numpy(), theta.numpy(), color="black", linestyle=":", linewidth=1.2, zorder=3)
    axes.plot(theta.numpy(), predicted.numpy(), color=INVARIANT_COLOUR, linewidth=0.8, alpha=0.3)
    axes.plot(theta.numpy(), predicted.quantile(0.5, dim=1).numpy(), color=POSE_COLOUR, linewidth=2.5)
    title = f"{_words(result.names[parameter])}: slope {result.slope[parameter]:.3f}"
    axes.set(xlabel="true change of pose", ylabel="predicted change", title=title)


def layers(model: Canonicalized, images: Tensor, *, copies: int = 1) -> Figure:
    """Return a figure of the outputs of the layers of `model` for `images` `(B, C, H, W)`, with a column per image.

    The rows are the input, the image after each layer, and the input of the backbone if it is sampled in a chart. The
    columns are in groups of `copies`, for images that show the same object in several poses.
    """
    from matplotlib.figure import Figure

    copies = whole_number("copies", copies)
    rows = _rows(model, images)
    if not len(images):
        raise ValueError("a figure of layers needs at least one image, got none")
    gaps = (len(images) - 1) // copies
    columns = [place + place // copies for place in range(len(images))]  # the other columns are gaps
    widths = [1.0 if column in columns else 0.15 for column in range(len(images) + gaps)]
    size = (1.1 * sum(widths) + 1.8, 1.1 * len(rows) + 0.1)
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(len(rows), len(widths), width_ratios=widths, squeeze=False)
    low, high = images.amin(), images.amax()
    for row, (title, pictures) in zip(axes, rows, strict=True):
        for column, axis in enumerate(row):
            axis.set_axis_off() if column not in columns else None
        for column, picture in zip(columns, pictures, strict=True):
            show(((picture - low) / (high - low)).clamp(0, 1), row[column])
        row[0].set_ylabel(title, rotation=0, ha="right", va="center", labelpad=8)
    return figure


def confusion(counts: Tensor, classes: Sequence[str]) -> Figure:
    """Return a figure of a confusion matrix `(classes, classes)`: a row per true class, a column per predicted class.

    The colour is the share of the row. Up to 30 classes have their names at the axes, and up to 15 classes have the
    numbers of images in the cells.
    """
    from matplotlib.figure import Figure

    count = len(classes)
    side = 2.2 + min(6.0, 0.45 * count)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted class", ylabel="true class")
    if count <= 30:
        names = [_words(name if len(name) <= 20 else f"{name[:18]}...") for name in classes]
        axes.set_xticks(range(count), names, rotation=90)
        axes.set_yticks(range(count), names)
    if count <= 15:
        for row, column in counts.nonzero().tolist():
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(int(counts[row, column])), ha="center", va="center", color=colour)
    return figure


@torch.no_grad()
def _rows(model: Canonicalized, images: Tensor) -> list[tuple[str, Tensor]]:
    """Return the title of each row and its pictures `(B, C, h, w)`."""
    out = model.canonicalizer(images)
    found = [("input", images)]
    for number, step in enumerate(out.steps, 1):
        title = " and\n".join(_words(group.name) for group in step.layer.chart.groups) + "\nremoved"
        found.append((title, out.after(number).image))
    if model.chart is not None:
        seen = out.on(model.chart.grid)  # (B, C, sheets, h, w)
        found.append((f"what the\nclassifier sees\n({_words(model.chart.sampled.name)})", seen.flatten(2, 3)))
    return found


def _words(name: str) -> str:
    """`name` as text of a figure; a dollar sign in it does not begin a formula."""
    return _drawable(name.replace("_", " ").replace("$", r"\$"))


def _drawable(text: str) -> str:
    """`text` with a question mark for each character that the fonts of the figure lack."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in FontProperties().get_family()]
    known = {"\n", *(letter for letter in text if any(font.get_char_index(ord(letter)) for font in fonts))}
    return "".join(letter if letter in known else "?" for letter in text)


def _to_picture(image: Tensor) -> Any:
    """Convert an image `(C, H, W)` to an array for matplotlib: grey for one channel, colour for three."""
    if len(image) not in (1, 3, 4):
        raise ValueError(f"a picture has 1, 3 or 4 channels, got shape {tuple(image.shape)}; choose some of them")
    values = image.float() if image.is_floating_point() else image  # NumPy has no bfloat16
    return (values[0] if len(values) == 1 else values.permute(1, 2, 0)).detach().cpu().numpy()
