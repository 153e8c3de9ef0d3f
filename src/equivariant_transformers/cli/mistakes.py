"""Mistakes of a classifier by class: the confusion matrix as figures, as a table and as a picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equivariant_transformers.cli import console
from equivariant_transformers.data import ImageSet
from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.data.stored import read_batches
from equivariant_transformers.hub.classifier import Classifier

MOST_CLASSES = 1_000
"""Largest number of classes for which `et train` makes a confusion matrix."""
_SHOWN = 20  # classes of the table


@dataclass(frozen=True, eq=False)
class Confusion:
    """Confusion matrix: a row per true class, a column per predicted class."""

    classes: tuple[str, ...]
    counts: Tensor
    """Numbers of images `(classes, classes)`."""

    @property
    def mistakes(self) -> int:
        """Number of images that are classified wrongly."""
        return int(self.counts.sum() - self.counts.trace())

    def headline(self, images: str) -> str:
        """Return the line of `et evaluate`. `images` describes the images: their number and their origin."""
        figures = self.to_dict()
        low, high = figures["interval"]
        error = f"{figures['test_error']:.2f} % (95 %: {low:.2f} to {high:.2f})"
        return f"test error {error}, {self.mistakes:,} of {images}"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as values of JSON."""
        images = int(self.counts.sum())
        return {
            "mistakes": self.mistakes,
            "test_error": 100 * self.mistakes / images,
            "interval": [100 * end for end in wilson_interval(self.mistakes, images)],
            "classes": self.classes,
            "confusion": self.counts.tolist(),
        }

    def draw(self, path: Path) -> None:
        """Draw the matrix to a PNG file."""
        from equivariant_transformers import viz

        with atomic_write(path) as file:
            viz.confusion(self.counts, self.classes).savefig(file, format="png", dpi=120)

    def print(self) -> None:
        """Print the error of each class and the class that it is most often taken for, the worst classes first."""
        wrong = self.counts.clone().fill_diagonal_(0)
        totals, mistakes = self.counts.sum(1), wrong.sum(1)
        order = (mistakes / totals.clamp_min(1)).argsort(descending=True, stable=True)
        rows = []
        for label in order[totals[order] > 0].tolist():
            other = int(wrong[label].argmax())
            confused = f"{self.classes[other]} ({wrong[label, other]})" if mistakes[label] else ""
            error = f"{100 * mistakes[label] / totals[label]:.2f} %"
            rows.append([self.classes[label], str(int(totals[label])), error, confused])
        console.table("class", ">test images", ">error", "most often taken for", rows=rows, most=_SHOWN)


@torch.no_grad()
def count(classifier: Classifier, images: ImageSet, progress: Report, *, batch_size: int) -> Confusion:
    """Return the confusion matrix of a classifier on `images`."""
    classes = len(images.classes)
    counts, seen = torch.zeros(classes * classes, dtype=torch.long, device=images.labels.device), 0
    rows = torch.split(torch.arange(len(images), device=images.labels.device), batch_size)
    for row, batch in zip(rows, read_batches(images.images, rows), strict=True):
        labels, found = images.labels[row], classifier(batch.to(images.labels.device)).argmax(1)
        counts += torch.bincount(classes * labels + found, minlength=len(counts))
        seen += len(labels)
        progress("classifying", seen / len(images))
    return Confusion(images.classes, counts.reshape(classes, classes).cpu())


def wilson_interval(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of a share. It is never empty and lies within 0 and 1.

    >>> [round(end, 3) for end in wilson_interval(0, 100)]
    [0.0, 0.037]
    """
    z = 1.96
    share, scale = count / total, 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)
