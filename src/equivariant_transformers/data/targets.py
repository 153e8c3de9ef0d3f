"""Targets of images: a class number per image, or a row of numbers for multi-label classification and regression."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equivariant_transformers.limits import MOST_CLASSES
from equivariant_transformers.text import quote

Target = int | list[float]
"""Class number, or numbers of one image: 0 and 1 for absent and present labels, any numbers for regression."""


def read_target(label: Any) -> Target | None:
    """Return `label` as a class number if it is an integer, or as numbers if it is a float or a row of numbers.

    Return None for anything else. A boolean is not an integer here.

    >>> read_target(3), read_target(0.5), read_target([True, False]), read_target("cat")
    (3, [0.5], [1.0, 0.0], None)
    """
    if not (isinstance(label, (bool, np.bool_)) or getattr(label, "dtype", None) == torch.bool):
        try:
            return operator.index(label)
        except (TypeError, ValueError, RuntimeError):
            pass
    try:
        numbers = np.atleast_1d(np.asarray(label.cpu() if isinstance(label, Tensor) else label))
    except (TypeError, ValueError, RuntimeError):
        return None
    single = numbers.ndim == 1 and np.ndim(label) == 0
    if numbers.ndim != 1 or numbers.dtype.kind not in ("f" if single else "biuf") or not len(numbers):
        return None
    with np.errstate(over="ignore"):
        row: list[float] = numbers.astype(np.float32).tolist()
    return row


def fits(target: Target | None, first: Target | None, classes: int | None) -> bool:
    """Return whether a target is of the kind of the `first` one, and agrees with the number of classes if known."""
    if isinstance(target, int):
        return isinstance(first, int) and 0 <= target < (MOST_CLASSES if classes is None else classes)
    if target is None or not isinstance(first, list) or not np.isfinite(target).all():
        return False
    return len(target) == (len(first) if classes is None else classes) <= MOST_CLASSES


def wanted(first: Target | None, classes: int | None) -> str:
    """Return a description of the targets that `fits` accepts, for an error message."""
    if isinstance(first, list):
        return f"{len(first) if classes is None else classes} finite numbers are needed"
    return f"a class number from 0 to {(classes or MOST_CLASSES) - 1} is needed"


def stack(targets: Sequence[Target]) -> Tensor:
    """Return the targets of all images: class numbers `(N,)`, int64, or numbers `(N, K)`, float32.

    >>> stack([0, 2]).shape, stack([[0.5, 1.0], [0.0, 2.0], [1.0, 1.0]]).shape
    (torch.Size([2]), torch.Size([3, 2]))
    """
    rows = bool(targets) and isinstance(targets[0], list)
    return torch.tensor(targets, dtype=torch.float32 if rows else torch.long)


def count_classes(parts: Sequence[Tensor]) -> int:
    """Return the number of classes, or of columns, of the targets of the parts of a data set."""
    columns = [part.shape[1] for part in parts if part.ndim == 2]
    return columns[0] if columns else 1 + max(int(part.max()) for part in parts if len(part))


def strata(labels: Tensor) -> Tensor:
    """Return a number `(N,)` per image: images of the same number are split evenly. Rows of numbers have one stratum.

    >>> strata(torch.tensor([2, 0, 2])), strata(torch.rand(2, 5))
    (tensor([2, 0, 2]), tensor([0, 0]))
    """
    return labels if labels.ndim == 1 else torch.zeros(len(labels), dtype=torch.long, device=labels.device)


def check_labels(labels: Tensor, count: int, classes: Sequence[str]) -> None:
    """Raise a ValueError unless `labels` are targets of `count` images with these `classes`."""
    if labels.ndim == 2 and labels.is_floating_point():
        if labels.shape != (count, len(classes)):
            raise ValueError(
                f"{count} images with the targets {quote(classes)} need labels of shape ({count}, {len(classes)}), "
                f"got {tuple(labels.shape)}"
            )
        if not labels.isfinite().all():
            raise ValueError("labels of a floating-point type must be finite, but some are infinite or NaN")
        return
    if labels.shape != (count,):
        raise ValueError(
            f"{count} images need labels of shape ({count},), or floating-point labels of shape ({count}, K), got "
            f"{tuple(labels.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels (N,) must be class numbers of an integer type, got {labels.dtype}; targets of regression have the "
            "shape (N, K)"
        )
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        raise ValueError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, but must be from 0 to {len(classes) - 1} "
            f"for the classes {quote(classes)}"
        )
