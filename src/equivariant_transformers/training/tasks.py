"""Tasks of a network: the loss, the error and the predictions of classification, multi-label and regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from equivariant_transformers.data import ImageSet, Splits
from equivariant_transformers.models import margin_loss
from equivariant_transformers.nn.augment import mean_of_probabilities
from equivariant_transformers.text import quote
from equivariant_transformers.training.config import Config

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function from outputs `(B, K)` and targets `(B,)` or `(B, K)` to the loss."""
_LARGEST = 1e6  # squared error of a value, in units of its variance


@dataclass(frozen=True, kw_only=True)
class Task:
    """Functions of the outputs `(B, K)` of a network and of its targets, and the words for both.

    The targets of regression are standardised: each column has mean 0 and standard deviation 1 on the training images.
    """

    loss: Loss
    errors: Callable[[Tensor, Tensor], Tensor]
    """Error `(B,)` of each image. The error of a run is its mean over the images, in per cent."""
    predict: Callable[[Tensor], Tensor]
    """Probabilities, or values, `(B, K)` for outputs."""
    average: Callable[[Tensor], Tensor]
    """Outputs `(B, K)` whose predictions are the mean of those of outputs `(n, B, K)`, for test-time augmentation."""
    unit: str
    """Unit of the error."""
    columns: str
    """Name of what the K columns stand for."""
    output: str = "logits"
    most: float = 100.0
    """Largest possible error."""
    standardised: bool = False
    """True if targets are standardised for training."""


def _logit_of_mean(logits: Tensor) -> Tensor:
    """Return the logits `(B, K)` of the mean probabilities of independent labels with logits `(n, B, K)`."""
    yes, no = (F.logsigmoid(sign * logits).logsumexp(0) for sign in (1, -1))
    return yes - no


def _limited(errors: Tensor) -> Tensor:
    """Return `errors` as finite numbers, which files of results can hold."""
    return errors.nan_to_num(nan=_LARGEST).clamp_max(_LARGEST)


TASKS: dict[str, Task] = {
    "classification": Task(
        loss=F.cross_entropy,
        errors=lambda logits, labels: (logits.argmax(1) != labels).double(),
        predict=lambda logits: logits.softmax(1),
        average=mean_of_probabilities,
        unit="%",
        columns="classes",
    ),
    "multilabel": Task(
        loss=F.binary_cross_entropy_with_logits,
        errors=lambda logits, labels: ((logits > 0) != (labels > 0.5)).double().mean(1),
        predict=torch.sigmoid,
        average=_logit_of_mean,
        unit="% of the labels",
        columns="labels",
    ),
    "regression": Task(
        loss=F.mse_loss,
        errors=lambda outputs, values: _limited((outputs - values).double().square().mean(1)),
        predict=lambda values: values,
        average=lambda values: values.mean(0),
        unit="% of the variance",
        columns="values",
        output="values",
        most=100 * _LARGEST,
        standardised=True,
    ),
}
"""Tasks by the name in `Config.task`."""


def check_targets(name: str, images: ImageSet) -> None:
    """Raise a ValueError unless `images` have targets for the task `name`."""
    labels = images.labels
    if name == "classification" and labels.ndim != 1:
        raise ValueError(
            f"the task classification needs a class number per image, but {images.name} has the numbers "
            f"{quote(images.classes)}; choose the task multilabel or regression"
        )
    if name != "classification" and labels.ndim != 2:
        raise ValueError(
            f"the task {name} needs a row of numbers per image, but {images.name} has classes. In a CSV file, give "
            "each number a column of its own in place of label; in Python, pass labels (N, K) of type float32"
        )
    if name == "multilabel" and not ((labels == 0) | (labels == 1)).all():
        raise ValueError(f"the task multilabel needs targets 0 and 1, but {images.name} has other numbers")


def target_statistics(config: Config, images: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each target of the training images; () if not standardised.

    The standard deviation of a constant target is returned as 1, because it is a divisor.
    """
    if not TASKS[config.task].standardised:
        return (), ()
    values = images.labels.double()
    mean, std = values.mean(0), values.std(0, correction=0)
    return tuple(mean.tolist()), tuple(torch.where(std > 1e-12 * (1 + mean.abs()), std, 1.0).tolist())


def standardise(config: Config, splits: Splits) -> Splits:
    """Check the targets of all images for the task of `config`, and return the images with targets for its loss."""
    for part in splits:
        check_targets(config.task, part)
    statistics = target_statistics(config, splits.train)
    if not statistics[0]:
        return splits
    mean, std = (torch.tensor(values, dtype=torch.float64, device=splits.train.labels.device) for values in statistics)
    return Splits(*(replace(part, labels=((part.labels - mean) / std).float()) for part in splits))


def make_loss(config: Config, images: ImageSet) -> Loss:
    """Return the loss of the config's task and network.

    Balanced classes have weights `N / (classes * N_class)`. A balanced label weights its positive images by their odds,
    `negative images / positive images`.
    """
    task = TASKS[config.task]
    if config.network == "capsule":
        for name, only in (("class_weights", "equal"), ("task", "classification")):
            if getattr(config, name) != only:
                raise ValueError(f"{name} must be {only} for the network capsule, which has its own loss")
        return margin_loss
    if config.class_weights == "equal":
        return task.loss
    if config.task == "regression":
        raise ValueError("class_weights must be equal for the task regression, which has no classes")
    if config.task == "multilabel":
        positive = images.labels.sum(0)
        return partial(
            F.binary_cross_entropy_with_logits, pos_weight=(len(images) - positive).clamp_min(1) / positive.clamp_min(1)
        )
    counts = images.labels.bincount(minlength=len(images.classes))
    return partial(F.cross_entropy, weight=len(images) / (len(counts) * counts.clamp_min(1).float()))
