"""Figures of the paper, drawn from result files, data sets and charts with matplotlib (in the `train` extra)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from equivariant_transformers import data, viz
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.experiments import results, rotation
from equivariant_transformers.experiments.field import EXPERIMENTS
from equivariant_transformers.experiments.report import cell_records
from equivariant_transformers.geometry import atlas
from equivariant_transformers.geometry.groups import group
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.hub.zoo import find, pretrained
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from equivariant_transformers.hub.classifier import Classifier

COLOURS = {"ET": viz.POSE_COLOUR, "ST": viz.INVARIANT_COLOUR}
CHARTS = ("rotation", "dilation", "x_shear", "hyperbolic_rotation", "x_perspective")
"""Charts in the paper's figure of coordinates."""
_DASHES = {1: ":", 2: "--", 4: "-"}  # line style by the number of dashes in a row's name, which grows with its layers
SHOWN, COPIES = (0, 1, 4, 15), 3
"""Test digits in the figure of predicted transformations, and the number of copies of each."""
HOUSES = range(12)
"""Test images of SVHN in the figure of its layers."""
PHOTOGRAPHS, ANGLES = range(1, 6), (0.0, 75.0, -160.0)
"""Test images of CIFAR-10 in the figure of a canonicalizer, and the angles by which each is turned, in degrees."""


Cells = dict[tuple[str, str], list[results.Record]]


class NothingToDraw(Exception):  # noqa: N818 (it is not a failure)
    """Raised if there are no result files for a figure."""


def learning_rates(root: Path, path: Path) -> None:
    """Plot the lowest, mean and highest of the best validation errors against the learning rate."""
    found, settings = _found("learning-rates", root)
    if max(Counter(row for row, _ in found).values()) < 2:
        raise NothingToDraw(f"the results of learning-rates in {root} have one learning rate per row")
    with _picture(path) as (axes,):
        for row in dict.fromkeys(row for row, _ in found):
            points = sorted(
                (records[0].config.learning_rate, [record.validation_error for record in records])
                for (name, _), records in found.items()
                if name == row
            )
            rates = [rate for rate, _ in points]
            low, mean, high = ([pick(values) for _, values in points] for pick in (min, fmean, max))
            seeds = sorted({len(values) for _, values in points})
            label = f"{row} ({' to '.join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1])))} runs per point)"
            axes.fill_between(rates, low, high, color=COLOURS[row], alpha=0.2, linewidth=0)
            axes.plot(rates, mean, color=COLOURS[row], marker="o", label=label)
        axes.set(xscale="log", xlabel="learning rate", ylabel="best validation error, %", title=settings)
        axes.legend()


def validation_curves(root: Path, path: Path) -> None:
    """Plot validation error against the epoch for the rows of table 1 with one copy, mean over seeds."""
    found, settings = _found("table1", root, "1 copy")
    with _picture(path) as (axes,):
        for (row, _), records in found.items():
            epochs = min(len(record.validation_errors) for record in records)
            mean = [fmean(record.validation_errors[epoch] for record in records) for epoch in range(epochs)]
            colour = COLOURS.get(row[:2], "grey")
            dashes = _DASHES[row.count("-")] if row[:2] in COLOURS else ("-" if row == "Log-polar" else ":")
            label = f"{row} (n = {len(records)})"
            axes.plot(range(1, epochs + 1), mean, color=colour, linestyle=dashes, linewidth=1, label=label)
        axes.set(xlabel="epoch", ylabel="validation error, %", yscale="log", title=settings)
        axes.set_yticks(ticks := [3, 4, 5, 7, 10, 15, 20, 30, 50, 80], [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.legend()


def rotations(root: Path, path: Path) -> None:
    """Plot predicted against true rotation: one faint line per digit, the first digit bold, the ideal dotted."""
    entries = rotation.load(root)
    if not entries:
        raise NothingToDraw(f"there are no results in {root / rotation.NAME}")
    with _picture(path, len(entries)) as panels:
        for axes, entry in zip(panels, entries, strict=True):
            true, predicted = (torch.tensor(entry[name]) for name in ("true", "predicted"))  # (n,) and (digits, n)
            axes.plot(true, true, color="black", linestyle=":", zorder=3)
            axes.plot(true, predicted.T, color=viz.INVARIANT_COLOUR, linewidth=0.8, alpha=0.3)
            axes.plot(true, predicted[0], color=viz.POSE_COLOUR, linewidth=2)
            axes.set(title=str(entry["title"]).replace(", ", "\n"), xlabel="true rotation", ylim=(-6.4, 6.4))
        panels[0].set_ylabel("predicted change of pose")


def coordinates(root: Path, path: Path) -> None:
    """Draw lines of equal pose (red) and of equal invariant (blue) for five charts."""
    with _picture(path, len(CHARTS)) as panels:
        for axes, name in zip(panels, CHARTS, strict=True):
            viz.coordinate_lines(atlas.chart(name), axes)
            axes.set_title(name.replace("_", " "))


def dataset(root: Path, path: Path) -> None:
    """Draw images of every class of Projective MNIST."""
    from equivariant_transformers.data.sheet import contact_sheet

    sheet = contact_sheet(data.load("projective-mnist", test_copies=1).train)
    with atomic_write(path) as file:
        sheet.save(file, "PNG")


def transformations(root: Path, path: Path) -> None:
    """Draw the output of each layer of the pretrained network for test digits in three poses each."""
    classifier = find("projective-mnist")
    test = data.projective_mnist(examples=1, test_copies=COPIES).test
    apart = len(test) // COPIES  # offset from one copy of a digit to the next
    images = test.images[[digit + copy * apart for digit in SHOWN for copy in range(COPIES)]]
    _draw_layers(classifier, images, COPIES, path)


def house_numbers(root: Path, path: Path) -> None:
    """Draw the output of each layer of the pretrained network for test images of SVHN, official files or not."""
    test = data.svhn(1, accept_other_files=True).test
    _draw_layers(find("svhn"), test.images[list(HOUSES)], 1, path)


def photographs(root: Path, path: Path) -> None:
    """Draw test photographs of CIFAR-10 at several angles, before and after the pretrained canonicalizer."""
    test = data.cifar10(1).test
    model = Canonicalized(nn.Identity(), cast(Canonicalizer, pretrained("upright")))
    images = test.images[list(PHOTOGRAPHS)].repeat_interleave(len(ANGLES), 0) / 255
    turn = Warp.projective(group("rotation").matrix(torch.tensor(ANGLES).deg2rad().repeat(len(PHOTOGRAPHS))))
    _save_layers(model, turn.image(images), len(ANGLES), path)


def _draw_layers(classifier: Classifier, images: Tensor, copies: int, path: Path) -> None:
    _save_layers(classifier.module, classifier.normalise(images), copies, path)


def _save_layers(model: Canonicalized, images: Tensor, copies: int, path: Path) -> None:
    figure = viz.layers(model, images, copies=copies)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=110, format="png")


FIGURES: dict[str, Callable[[Path, Path], None]] = {
    "figure-learning-rates": learning_rates,
    "figure-validation": validation_curves,
    "figure-rotation": rotations,
    "figure-coordinates": coordinates,
    "figure-data": dataset,
    "figure-transformations": transformations,
    "figure-svhn": house_numbers,
    "figure-photographs": photographs,
}
"""Functions that draw each figure from the folder of results into a PNG file, by name."""


def _found(name: str, root: Path, column: str | None = None) -> tuple[Cells, str]:
    """Return the finished runs of an experiment by (row, column), restricted to the most common settings."""
    found: Cells = {
        (cell.row, cell.column): [record for record in records if record.failure is None]
        for cell, records in cell_records(EXPERIMENTS[name], results.load_all(root).values()).items()
        if column in (None, cell.column)
    }
    counts = Counter(record.settings for records in found.values() for record in records)
    if not counts:
        raise NothingToDraw(f"there are no results of {name} in {root}")
    settings = counts.most_common(1)[0][0]
    alike = {at: [record for record in records if record.settings == settings] for at, records in found.items()}
    return {at: records for at, records in alike.items() if records}, settings


@contextmanager
def _picture(path: Path, panels: int = 1) -> Iterator[list[Axes]]:
    """Yield axes side by side, and save them as a PNG file at the end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * panels, 3.4) if panels > 1 else (7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    made: Any = figure.subplots(1, panels, squeeze=False)
    yield list(made[0])
    with atomic_write(path) as file:
        figure.savefig(file, dpi=110, format="png")
