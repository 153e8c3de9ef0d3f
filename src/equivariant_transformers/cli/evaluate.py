"""`et evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

from equivariant_transformers.cli import console, models
from equivariant_transformers.cli.data import AcceptOtherFiles
from equivariant_transformers.cli.scores import measure
from equivariant_transformers.data import ImageSet
from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.registry import find_data, is_own
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.training import memory
from equivariant_transformers.training.job import (
    find_device,
    hash_labels,
    load_data,
    place,
)
from equivariant_transformers.training.tasks import check_targets


def evaluate_model(
    model: Annotated[str, typer.Argument(help=models.HELP)],
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Data set, folder of images or CSV file; the model's own by default."),
    ] = None,
    accept_other_files: AcceptOtherFiles = False,
    tta: Annotated[int | None, typer.Option(metavar="N", help=models.TTA)] = None,
    poses: Annotated[int, typer.Option(metavar="N", help=models.POSES)] = 1,
    network: models.NetworkFlag = None,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures as JSON, with the confusion matrix of a classifier.")
    ] = False,
) -> None:
    """Measure the error of a model on test images, with its 95 % confidence interval.

    For several labels per image, the error of each label and its average precision are printed. For regression, the
    mean absolute error and R2 of each value are printed.
    """
    with console.usage():
        where = find_device(device)
        if dataset is not None:
            find_data(dataset)
    classifier = models.load(model, tta, poses=poses, network=network)
    place(classifier, where)
    memory.keep()
    times = classifier.tta
    with console.loading() as progress:
        images = load_test_images(classifier, dataset, progress, accept_other_files=accept_other_files)
        scores = measure(classifier, images, progress)
    if as_json:
        about = {"model": model, "dataset": images.name, "origin": images.origin, "images": len(images)}
        about |= {"tta": times, "poses": poses}
        console.print_json(about | scores.to_dict())
        return
    each = f", test-time augmentation {times}" if times > 1 else ""
    each += f", {poses} poses" if poses > 1 else ""
    console.say(scores.headline(f"{len(images):,} images of {images.name}, {images.origin}{each}"))
    if classifier.card.config.task != "classification":
        scores.print()


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
    check_targets(config.task, images)
    if images.classes != card.classes:
        columns = classifier.task.columns
        raise ValueError(
            f"the model has the {columns} {_list(card.classes)}, but {images.name} has {_list(images.classes)}; "
            f"choose a data set with the {columns} of the model"
        )
    if folder and images.name == card.data and card.labels not in (None, hash_labels(splits)):
        console.warn(
            f"the images in {config.dataset} have changed since training; some test images may be training images, "
            "and the error may be too low"
        )
    return images


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
