"""Classes of images without labels: k-means, repeated on aligned images."""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 10


def k_means(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the number of the cluster `(B,)` of each of `images` `(B, ...)`, for at most `count` clusters."""
    points = images.flatten(1)
    chosen = torch.randperm(len(points), generator=generator)[:count].to(points.device)
    centres = points[chosen]
    for _ in range(_ROUNDS):
        labels = torch.cdist(points, centres).argmin(1)
        members = torch.nn.functional.one_hot(labels, len(centres)).to(points.dtype)  # (B, count)
        sizes = members.sum(0)[:, None]
        centres = torch.where(sizes > 0, members.T @ points / sizes.clamp_min(1), centres)
    return numbered(labels)


def numbered(labels: Tensor) -> Tensor:
    """Return `labels` `(B,)` as numbers from 0 without gaps."""
    numbers: Tensor = torch.unique(labels, return_inverse=True)[1]
    return numbers
