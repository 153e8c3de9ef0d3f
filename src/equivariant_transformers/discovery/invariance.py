r"""Directions along which the distribution of a data set changes least.

If images are moved by $T_\theta$ with theta spread over a wide range, then moving each of them a little further along
the same group hardly changes their distribution. The change is measured by the maximum mean discrepancy between the
images and the images moved by $\epsilon v$: to second order in epsilon it is the quadratic form
$\sum_{i\ne j}\partial_v\partial_v' k(x_i, x_j)$ of $v$ for a Gaussian kernel $k$. It is normalised by the mean
square of the change of the images themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

_QUANTILE = 0.1  # of the squared distances: the square of the width of the kernel


def directions(images: Tensor, tangents: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the stationary values `(k,)` of the normalised change, least first, and their directions `(k, k)`.

    Args:
        images: images `(B, P)`.
        tangents: derivatives `(k, B, P)` of the images along the basis of a family.
        labels: classes `(B,)`; only images of the same class are compared.
    """
    classes = range(int(labels.max()) + 1)
    change = torch.stack([_change(images[labels == c], tangents[:, labels == c]) for c in classes]).sum(0)
    whiten = torch.linalg.inv(torch.linalg.cholesky(metric(tangents)))
    values, vectors = torch.linalg.eigh(whiten @ change @ whiten.T)
    return values, (whiten.T @ vectors).T


def ratio(coefficients: Tensor, values: Tensor, directions: Tensor) -> float:
    """Return the normalised change along a generator, relative to the second of the stationary `values`.

    The ratio is small only if the generator is close to the first of `directions`, and the change along it is small.
    """
    weights = torch.linalg.solve(directions.T, coefficients).square()
    change = weights @ values / weights.sum()
    return float(change.abs() / values[1].clamp_min(1e-12))  # unbiased values; those of noise are of both signs


def metric(tangents: Tensor) -> Tensor:
    """Return the matrix `(k, k)` of the mean square change of the images per unit of the generator."""
    flat = tangents.flatten(1)
    gram = flat @ flat.T / tangents.shape[1]
    return gram + 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)


def _change(images: Tensor, tangents: Tensor) -> Tensor:
    """Return the matrix of the discrepancy, as a mean over pairs of different images, times the squared width."""
    if len(images) < 3:
        return tangents.new_zeros(len(tangents), len(tangents))
    squares = torch.cdist(images, images).square()
    others = ~torch.eye(len(images), dtype=torch.bool, device=images.device)
    width = torch.quantile(squares[others][:: max(1, squares.numel() // 1_000_000)], _QUANTILE).clamp_min(1e-12)
    kernel = torch.where(others, torch.exp(-squares / (2 * width)), 0.0)
    # <tangent of i, image i - image j>
    towards = (tangents * images).sum(-1)[:, :, None] - tangents @ images.T
    curvature = (towards * kernel).flatten(1) @ towards.transpose(1, 2).flatten(1).T / width
    change = torch.einsum("kmp,lmp->kl", torch.einsum("knp,nm->kmp", tangents, kernel), tangents) + curvature
    return (change + change.T) / (2 * kernel.sum()) * len(images)
