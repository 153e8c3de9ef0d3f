"""Scores of a model on test images, and the words for its predictions, for each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from equivariant_transformers.cli import console, mistakes
from equivariant_transformers.data import ImageSet
from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.stored import read_batches
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.training.job import evaluation_batch
from equivariant_transformers.training.metrics import average_precision, mean_absolute_error, r_squared

_SHOWN = 20  # labels or values of a table, and columns of predictions


class Scores(Protocol):
    """Scores of a model on labelled images."""

    def headline(self, images: str) -> str:
        """Return the line of `et evaluate`. `images` describes the images: their number and their origin."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as values of JSON."""

    def print(self) -> None:
        """Print a table with a row per class, label or value."""


def measure(classifier: Classifier, images: ImageSet, progress: Report) -> Scores:
    """Return the scores of a model on `images`, which are on its device."""
    task = classifier.card.config.task
    batch_size = evaluation_batch(images.images.device, classifier.tta)
    if task == "classification":
        return mistakes.count(classifier, images, progress, batch_size=batch_size)
    outputs, seen = [], 0
    with torch.no_grad():
        rows = torch.split(torch.arange(len(images), device=images.labels.device), batch_size)
        for batch in read_batches(images.images, rows):
            outputs.append(classifier.predict(batch.to(images.labels.device)).float().cpu())
            seen += len(batch)
            progress("predicting", seen / len(images))
    found = (images.classes, torch.cat(outputs), images.labels.cpu())
    return LabelScores(*found) if task == "multilabel" else ValueScores(*found, classifier.target_std.cpu())


@dataclass(frozen=True, eq=False)
class LabelScores:
    """Scores of probabilities `(N, K)` for labels `(N, K)` of 0 and 1."""

    names: tuple[str, ...]
    predictions: Tensor
    labels: Tensor

    @property
    def errors(self) -> Tensor:
        """Share `(K,)` of images for which a label is wrong, in per cent."""
        return 100 * ((self.predictions > 0.5) != (self.labels > 0.5)).double().mean(0)

    def headline(self, images: str) -> str:
        precision = 100 * average_precision(self.predictions, self.labels).nanmean()
        return (
            f"test error {self.errors.mean():.2f} % of the labels, mean average precision {precision:.2f} %, {images}"
        )

    def to_dict(self) -> dict[str, Any]:
        found = average_precision(self.predictions, self.labels)
        return {
            "test_error": self.errors.mean().item(),
            "mean_average_precision": _or_none(100 * found.nanmean().item()),
            "labels": {
                name: {"images": int(count), "error": error, "average_precision": _or_none(100 * precision)}
                for name, count, error, precision in zip(
                    self.names, self.labels.sum(0).tolist(), self.errors.tolist(), found.tolist(), strict=True
                )
            },
        }

    def print(self) -> None:
        rows = [
            [name, str(figures["images"]), _per_cent(figures["error"]), _per_cent(figures["average_precision"])]
            for name, figures in self.to_dict()["labels"].items()
        ]
        console.table("label", ">test images", ">error", ">average precision", rows=rows, most=_SHOWN)


@dataclass(frozen=True, eq=False)
class ValueScores:
    """Scores of predicted values `(N, K)` for values `(N, K)`, both in the units of the values."""

    names: tuple[str, ...]
    predictions: Tensor
    labels: Tensor
    target_std: Tensor

    @property
    def error(self) -> float:
        """Mean squared error in per cent of the variance of the training images, as during training."""
        return 100 * ((self.predictions - self.labels) / self.target_std).double().square().mean().item()

    def headline(self, images: str) -> str:
        explained = r_squared(self.predictions, self.labels).nanmean()
        return f"test error {self.error:.2f} % of the variance, mean R2 {explained:.4f}, {images}"

    def to_dict(self) -> dict[str, Any]:
        absolute, explained = (f(self.predictions, self.labels).tolist() for f in (mean_absolute_error, r_squared))
        return {
            "test_error": self.error,
            "values": {
                name: {"mean_absolute_error": error, "r2": _or_none(share)}
                for name, error, share in zip(self.names, absolute, explained, strict=True)
            },
        }

    def print(self) -> None:
        rows = [
            [name, f"{figures['mean_absolute_error']:.4g}", "" if figures["r2"] is None else f"{figures['r2']:.4f}"]
            for name, figures in self.to_dict()["values"].items()
        ]
        console.table("value", ">mean absolute error", ">R2", rows=rows, most=_SHOWN)


def describe(classifier: Classifier, prediction: Tensor) -> dict[str, Any]:
    """Return a prediction `(K,)`, probabilities or values, as values of JSON."""
    names, task = classifier.card.classes, classifier.card.config.task
    if task == "classification":
        best = int(prediction.argmax())
        return {"class": names[best], "confidence": float(prediction[best])}
    return {classifier.task.columns: dict(zip(names, prediction.tolist(), strict=True))}


def columns(classifier: Classifier) -> list[str]:
    """Return the columns of a table of predictions."""
    names = [f">{name}" for name in classifier.card.classes[:_SHOWN]]
    return {"classification": ["class", ">confidence"], "multilabel": ["labels"], "regression": names}[
        classifier.card.config.task
    ]


def cells(entry: dict[str, Any]) -> list[str]:
    """Return the cells of a row for the result of `describe`."""
    if "class" in entry:
        return [entry["class"], f"{entry['confidence']:.1%}"]
    if "values" in entry:
        return [f"{value:.4g}" for value in list(entry["values"].values())[:_SHOWN]]
    present = [f"{name} {share:.1%}" for name, share in entry["labels"].items() if share > 0.5]
    return [", ".join(present) or "none"]


def _or_none(number: float) -> float | None:
    return None if number != number else number


def _per_cent(number: float | None) -> str:
    return "" if number is None else f"{number:.2f} %"
