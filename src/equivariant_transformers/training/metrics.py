"""Figures of predictions for each label or value: average precision, mean absolute error, explained variance."""

from __future__ import annotations

import torch
from torch import Tensor


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the average precision `(K,)` of scores `(N, K)` for labels `(N, K)` of 0 and 1; NaN without a positive.

    The average precision is the sum of (R_n - R_(n-1)) P_n over the distinct scores in descending order, with the
    precision P_n and the recall R_n of the images whose score is at least the n-th. The share of positive images is the
    expected value for random scores.

    >>> average_precision(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1.0], [0.0], [1.0]]))
    tensor([0.8333], dtype=torch.float64)
    """
    return torch.stack([_average_precision(*pair) for pair in zip(scores.unbind(1), labels.unbind(1), strict=True)])


def _average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    scores, order = scores.sort(descending=True)
    found = labels[order].double().cumsum(0)
    last = torch.ones_like(scores, dtype=torch.bool)  # of the images with the same score
    last[:-1] = scores[:-1] != scores[1:]
    found, rank = found[last], 1 + last.nonzero()[:, 0]
    gained = torch.diff(found, prepend=found.new_zeros(1))
    return (gained * found / rank).sum() / found[-1]


def mean_absolute_error(predictions: Tensor, values: Tensor) -> Tensor:
    """Return the mean absolute error `(K,)` of predictions `(N, K)`, in the units of the values."""
    return (predictions.double() - values.double()).abs().mean(0)


def r_squared(predictions: Tensor, values: Tensor) -> Tensor:
    """Return the coefficient of determination R^2 `(K,)` of predictions `(N, K)`; NaN for a constant value.

    >>> r_squared(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[1.0], [2.0], [4.0]]))
    tensor([0.7857], dtype=torch.float64)
    """
    predictions, values = predictions.double(), values.double()
    total = (values - values.mean(0)).square().sum(0)
    return torch.where(total > 0, 1 - (predictions - values).square().sum(0) / total, torch.nan)
