"""`et evaluate`."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import typer
from torch import Tensor

from equivariant_transformers.cli import console, models
from equivariant_transformers.cli.data import AcceptOtherFiles
from equivariant_transformers.data import ImageSet
from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.registry import find_data, is_own
from equivariant_transformers.data.stored import read_batches
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.training import memory
from equivariant_transformers.training.job import (
    evaluation_batch,
    find_device,
    hash_labels,
    load_data,
    place,
)


def evaluate_model(
    model: Annotated[str, typer.Argument(help=models.HELP)],
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Data set, folder of images or CSV file; the model's own by default."),
    ] = None,
    accept_other_files: AcceptOtherFiles = False,
    tta: Annotated[int | None, typer.Option(metavar="N", help=models.TTA)] = None,
    network: models.NetworkFlag = None,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures and the confusion matrix as JSON.")
    ] = False,
) -> None:
    """Measure the error of a model on test images, with its 95 % confidence interval."""
    with console.usage():
        where = find_device(device)
        if dataset is not None:
            find_data(dataset)
    classifier = models.load(model, tta, network=network)
    place(classifier, where)
    memory.keep()
    times = classifier.tta
    with console.loading() as progress:
        images = load_test_images(classifier, dataset, progress, accept_other_files=accept_other_files)
        answers = count_answers(classifier, images, progress, batch_size=evaluation_batch(where, times))
    mistakes = int(answers.sum() - answers.trace())
    low, high = wilson_interval(mistakes, len(images))
    if as_json:
        console.print_json(
            {
                "model": model,
                "dataset": images.name,
                "origin": images.origin,
                "images": len(images),
                "tta": times,
                "mistakes": mistakes,
                "test_error": 100 * mistakes / len(images),
                "interval": [100 * low, 100 * high],
                "classes": images.classes,
                "answers": answers.tolist(),
            }
        )
        return
    error = f"{100 * mistakes / len(images):.2f} % (95 %: {100 * low:.2f} to {100 * high:.2f})"
    each = f", test-time augmentation {times}" if times > 1 else ""
    console.say(f"test error {error}, {mistakes:,} of {len(images):,} images of {images.name}, {images.origin}{each}")


def load_test_images(
    classifier: Classifier, dataset: str | None, progress: Report, *, accept_other_files: bool
) -> ImageSet:
    """Return the test images of `dataset`, or of the classifier's own data set, on the device of the classifier."""
    card = classifier.card
    config = card.config.replace(dataset=dataset or card.config.dataset, copies=1, size=None)  # the card has the size
    if dataset not in (None, card.config.dataset):
        config = config.replace(examples=None)
    folder = is_own(config.dataset)
    shape = {"size": card.size, "channels": card.in_channels} if folder else {}
    splits = load_data(
        config, classifier.scale.device, accept_other_files=accept_other_files, progress=progress, **shape
    )
    images = splits.test
    if images.classes != card.classes:
        raise ValueError(
            f"the model has the classes {_list(card.classes)}, but {images.name} has {_list(images.classes)}; "
            "choose a data set with the classes of the model"
        )
    if folder and images.name == card.data and card.labels not in (None, hash_labels(splits)):
        console.warn(
            f"the images in {config.dataset} have changed since training; some test images may be training images, "
            "and the error may be too low"
        )
    return images


@torch.no_grad()
def count_answers(classifier: Classifier, images: ImageSet, progress: Report, *, batch_size: int) -> Tensor:
    """Return the confusion matrix: a row per true class, a column per predicted class."""
    classes = len(images.classes)
    answers, seen = torch.zeros(classes * classes, dtype=torch.long, device=images.labels.device), 0
    rows = torch.split(torch.arange(len(images), device=images.labels.device), batch_size)
    for row, batch in zip(rows, read_batches(images.images, rows), strict=True):
        labels, found = images.labels[row], classifier(batch.to(images.labels.device)).argmax(1)
        answers += torch.bincount(classes * labels + found, minlength=len(answers))
        seen += len(labels)
        progress("classifying", seen / len(images))
    return answers.reshape(classes, classes)


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


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
