r"""Least-squares fit of one group to a data set: every image is a template of its class, moved by its own theta.

The model is $I_n = M_{c(n)}\circ T_{\theta_n}$. Theta is found by a search over a line, the templates are means of the
aligned images, and the generator makes a Gauss-Newton step in which theta and the templates are eliminated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equivariant_transformers.discovery.families import Family
from equivariant_transformers.discovery.images import derivatives

_COARSE, _FINE = 25, 7  # values of theta on the whole line, and around the current value
_KEPT = 0.8  # share of the images that the templates and the generator are fitted to
_LONGEST_STEP = 0.4  # of the generator, relative to its size
_REACH = 0.8  # longest motion on the line, in half widths of a translation along x


@dataclass(frozen=True)
class Fit:
    """Generator, theta of each image and the share of the variance within the classes that remains."""

    coefficients: Tensor
    theta: Tensor
    remaining: float
    kept: Tensor
    """Mask of the images that the model describes best."""


def start(coefficients: Tensor, count: int, metric: Tensor) -> Fit:
    """Return a fit at theta = 0."""
    zero = coefficients.new_zeros(count)
    return Fit(_normalised(coefficients, metric), zero, 1.0, torch.ones_like(zero, dtype=torch.bool))


def improve(fit: Fit, images: Tensor, labels: Tensor, family: Family, metric: Tensor, *, whole_line: bool) -> Fit:
    """Return `fit` after a search for theta and a Gauss-Newton step of the generator.

    Args:
        fit: the current fit.
        images: images `(B, C, H, W)`.
        labels: number of the template `(B,)` of each image.
        family: family of generators.
        metric: inner product `(k, k)` of generators; a translation by half a width has size 1.
        whole_line: search all of the line, or only around the current theta.
    """
    for _ in range(2):
        templates = _templates(fit, images, labels, family)[labels]
        if whole_line:
            fit = _search(fit, images, templates, family, _line(fit, family).to(images), absolute=True)
        spread = _REACH / (_COARSE - 1)
        near = torch.linspace(-spread, spread, _FINE).to(images)
        fit = _search(fit, images, templates, family, near, absolute=False)
        fit = replace(fit, theta=fit.theta - _medians(fit.theta, labels))
    templates = _templates(fit, images, labels, family)[labels]
    error = _errors(images, family.warp(fit.coefficients, fit.theta).image(templates))
    relative = error / _medians(error, labels).clamp_min(1e-12)
    fit = replace(fit, kept=relative <= relative.quantile(_KEPT))
    return _step(fit, images, labels, family, metric)


def aligned(fit: Fit, images: Tensor, family: Family) -> Tensor:
    """Return `images` with the theta of the fit removed."""
    return family.warp(fit.coefficients, -fit.theta).image(images)


def variance(images: Tensor, labels: Tensor) -> float:
    """Return the variance of `images` within the classes."""
    return float((images - _means(images, labels)[labels]).square().mean().clamp_min(1e-12))


def _templates(fit: Fit, images: Tensor, labels: Tensor, family: Family) -> Tensor:
    """Return the mean `(classes, C, H, W)` of the aligned images of each class, over the kept images."""
    return _means(aligned(fit, images, family), labels, fit.kept)


def _line(fit: Fit, family: Family) -> Tensor:
    """Return the values of theta of the search over the whole line, at most one period of the group."""
    period = family.group(fit.coefficients, "candidate").period
    reach = _REACH if period is None else min(_REACH, period / 2)
    return torch.linspace(-reach, reach, _COARSE)


def _search(fit: Fit, images: Tensor, templates: Tensor, family: Family, values: Tensor, *, absolute: bool) -> Fit:
    """Return `fit` with the theta of least error among `values`, or among theta plus `values`."""
    best, theta = fit.theta.new_full(fit.theta.shape, torch.inf), fit.theta
    for value in values:
        tried = value.expand_as(fit.theta) if absolute else fit.theta + value
        error = _errors(images, family.warp(fit.coefficients, tried).image(templates))
        theta = torch.where(error < best, tried, theta)
        best = torch.minimum(best, error)
    return replace(fit, theta=theta)


def _step(fit: Fit, images: Tensor, labels: Tensor, family: Family, metric: Tensor) -> Fit:
    """Return `fit` after a Gauss-Newton step of the generator at fixed size, with theta and templates eliminated."""
    kept = fit.kept
    images, labels, theta = images[kept], labels[kept], fit.theta[kept]
    templates = _means(family.warp(fit.coefficients, -theta).image(images), labels)
    warp = family.warp(fit.coefficients, theta)
    residual = (images - warp.image(templates[labels])).flatten(1)
    unmoved = (images - _means(images, labels)[labels]).flatten(1)
    remaining = float(residual.square().mean() / unmoved.square().mean().clamp_min(1e-12))
    moved = derivatives(templates[labels], family, fit.coefficients, -theta)
    along = torch.einsum("k,knp->np", fit.coefficients, moved)  # parallel to the derivative by theta
    along = along / along.norm(dim=1, keepdim=True).clamp_min(1e-9)
    of_templates = derivatives(images, family, fit.coefficients, theta)
    changes = torch.stack(
        [
            direct + warp.image(_means(indirect.view_as(images), labels)[labels]).flatten(1)
            for direct, indirect in zip(moved, of_templates, strict=True)
        ]
    )
    changes = (changes - (changes * along).sum(-1, keepdim=True) * along).flatten(1)
    normal = changes @ changes.T
    damping = 1e-4 * normal.diagonal().mean() / metric.diagonal().mean()
    step = torch.linalg.solve(normal + damping * metric, changes @ residual.flatten())
    step = step - (step @ metric @ fit.coefficients) * fit.coefficients
    size = (step @ metric @ step).sqrt()
    step = step * torch.clamp(_LONGEST_STEP / size.clamp_min(1e-9), max=1.0)
    return replace(fit, coefficients=_normalised(fit.coefficients + step, metric), remaining=remaining)


def _errors(images: Tensor, predicted: Tensor) -> Tensor:
    return (images - predicted).square().flatten(1).mean(1)


def _means(images: Tensor, labels: Tensor, kept: Tensor | None = None) -> Tensor:
    """Return the mean image of each class, over the kept images."""
    kept = torch.ones_like(labels, dtype=torch.bool) if kept is None else kept
    found = [images[(labels == c) & kept].mean(0) for c in range(int(labels.max()) + 1)]
    return torch.stack(found).nan_to_num(0.0)


def _medians(values: Tensor, labels: Tensor) -> Tensor:
    """Return for each image the median of `values` `(B,)` over the images of the same class."""
    result = torch.zeros_like(values)
    for c in range(int(labels.max()) + 1):
        if (labels == c).any():
            result[labels == c] = values[labels == c].median()
    return result


def _normalised(coefficients: Tensor, metric: Tensor) -> Tensor:
    return coefficients / (coefficients @ metric @ coefficients).sqrt()
