"""Mistakes of a classifier by class: the confusion matrix as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from equivariant_transformers.cli import console
from equivariant_transformers.cli.evaluate import count_answers
from equivariant_transformers.data import ImageSet
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.training.job import evaluation_batch

_MOST_CLASSES = 1_000  # a confusion matrix of more classes is not made
_SHOWN = 20  # classes of the table


def report(classifier: Classifier, images: ImageSet, path: Path) -> Tensor | None:
    """Return the confusion matrix on `images` and draw it to `path`; None if there are too many classes."""
    if len(images.classes) > _MOST_CLASSES:
        return None
    from equivariant_transformers import viz

    batch_size = evaluation_batch(images.images.device, classifier.tta)
    with console.loading() as progress:
        answers = count_answers(classifier, images, progress, batch_size=batch_size).cpu()
    with atomic_write(path) as file:
        viz.confusion(answers, images.classes).savefig(file, format="png", dpi=120)
    return answers


def print_classes(answers: Tensor | None, classes: Sequence[str]) -> None:
    """Print the error of each class and the class that it is most often taken for, the worst classes first."""
    if answers is None:
        return
    wrong = answers.clone().fill_diagonal_(0)
    totals, mistakes = answers.sum(1), wrong.sum(1)
    order = (mistakes / totals.clamp_min(1)).argsort(descending=True, stable=True)
    rows = []
    for label in order[totals[order] > 0][:_SHOWN].tolist():
        other = int(wrong[label].argmax())
        confused = f"{classes[other]} ({wrong[label, other]})" if mistakes[label] else ""
        error = f"{100 * mistakes[label] / totals[label]:.2f} %"
        rows.append([classes[label], str(int(totals[label])), error, confused])
    console.table("class", ">test images", ">error", "most often taken for", rows=rows)
