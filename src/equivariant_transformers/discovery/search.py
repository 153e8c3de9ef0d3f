"""`discover`: the one-parameter group that moves a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.discovery import alignment, invariance
from equivariant_transformers.discovery.alignment import Fit
from equivariant_transformers.discovery.clusters import k_means, numbered
from equivariant_transformers.discovery.families import Family, Polynomial, Projective
from equivariant_transformers.discovery.images import reduced, tangents
from equivariant_transformers.discovery.result import Discovery, Found
from equivariant_transformers.geometry.checks import check_dense
from equivariant_transformers.geometry.resampling import check_images
from equivariant_transformers.text import quote

FAMILIES: dict[str, Family] = {"projective": Projective(), "polynomial": Polynomial()}
Report = Callable[[str, float], None]

_COARSE, _FINE = (16, 1.0), (24, 1.0)  # side and blur of the images, in pixels
_COMPARED = (28, 0.9)  # of the images whose distribution is compared
_PAIRED = 800  # images whose distribution is compared
_TRIED = 300  # images that the starting points are tried on
_STARTS = 4
_CLUSTERS = 10
_FEWEST = 20


@torch.no_grad()
def discover(
    images: Tensor,
    labels: Tensor | None = None,
    *,
    family: Literal["projective", "polynomial"] = "projective",
    count: int = 1,
    examples: int = 1000,
    seed: int = 0,
    progress: Report | None = None,
) -> Discovery:
    r"""Find the one-parameter group $T_\theta$ that moves the images of a data set, each by an unknown theta.

    The model is $I_n = M_{c(n)}\circ T_{\theta_n}$ with a template $M_c$ per class. Starting points are the generators
    along which the distribution of the images changes least. The generator that explains most of the variance within
    the classes is returned. The unit of theta is chosen so that theta = 1 changes the images as much as a translation
    by half a width; its sign is arbitrary.

    Args:
        images: images `(B, C, H, W)`, at least 20, floating point.
        labels: classes `(B,)`, whole numbers. Without them, the images are grouped by k-means as they are aligned.
        family: "projective" for all 3x3 generators, "polynomial" for vector fields that are cubic polynomials.
        count: number of groups to find one after the other. Each is removed before the next is sought.
        examples: number of images to use, drawn at random.
        seed: random seed for the choice of the images and for k-means.
        progress: callback that receives the current task and its completed fraction.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator ...>
    >>> discover(torch.rand(40, 1, 8, 8)).group is None
    True
    """
    images, classes = _checked(images, labels)
    space = FAMILIES.get(family) if isinstance(family, str) else None
    if space is None:
        raise ValueError(f'family is "projective" or "polynomial", got {quote(family)}')
    count = whole_number("count", count, most=space.dimension)
    examples = whole_number("examples", examples, least=_FEWEST)
    generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))
    chosen = torch.randperm(len(images), generator=generator)[:examples].to(images.device)
    images, classes = images[chosen], None if classes is None else classes[chosen]
    found: list[Found] = []
    for number in range(count):

        def report(share: float, number: int = number) -> None:
            if progress:
                progress("looking for a group", (number + share) / count)

        fit, ratio = _search(images, classes, space, generator, report)
        group = space.group(fit.coefficients.double(), "discovered" if count == 1 else f"discovered-{number + 1}")
        theta = fit.theta[fit.kept].quantile(torch.tensor([0.01, 0.99]).to(fit.theta))
        entry = Found(group, (float(theta[0]), float(theta[1])), 1 - fit.remaining, ratio)
        if not entry.significant:
            return Discovery(tuple(found), entry)
        found.append(entry)
        images = space.warp(fit.coefficients, -fit.theta).image(images, padding="border")
    return Discovery(tuple(found), None)


def _search(
    images: Tensor, labels: Tensor | None, family: Family, generator: torch.Generator, report: Callable[[float], None]
) -> tuple[Fit, float]:
    """Return the best fit, and the change of the distribution along its starting point relative to the next."""
    compared, coarse, fine = (reduced(images, *level) for level in (_COMPARED, _COARSE, _FINE))
    slopes = tangents(compared, family)
    metric = invariance.metric(slopes)
    metric = metric / metric[0, 0]
    paired = torch.zeros(len(images), dtype=torch.long, device=images.device) if labels is None else labels
    values, starts = invariance.directions(compared.flatten(1)[:_PAIRED], slopes[:, :_PAIRED], paired[:_PAIRED])
    del slopes
    classes = k_means(coarse, _CLUSTERS, generator) if labels is None else labels
    trials = []
    for number, direction in enumerate(starts[:_STARTS]):
        fit = alignment.start(direction, len(coarse[:_TRIED]), metric)
        own = classes[:_TRIED]
        for _ in range(3):
            fit = alignment.improve(fit, coarse[:_TRIED], own, family, metric, whole_line=True)
            if labels is None:
                own = k_means(alignment.aligned(fit, coarse[:_TRIED], family), _CLUSTERS, generator)
        trials.append(fit)
        report(0.5 * (number + 1) / _STARTS)
    best = min(trials, key=lambda fit: fit.remaining)
    fit = alignment.start(best.coefficients, len(images), metric)
    schedule = ((coarse, True), (coarse, True), (fine, False), (fine, False), (fine, False))
    for number, (level, whole_line) in enumerate(schedule):
        fit = alignment.improve(fit, level, classes, family, metric, whole_line=whole_line)
        if labels is None:
            classes = k_means(alignment.aligned(fit, coarse, family), _CLUSTERS, generator)
        report(0.5 + 0.5 * (number + 1) / len(schedule))
    final = alignment.improve(fit, coarse, classes, family, metric, whole_line=False)
    ratio = float(values[0].abs() / values[1].clamp_min(1e-12))  # unbiased values; those of noise are of both signs
    return alignment.Fit(fit.coefficients, fit.theta, final.remaining, fit.kept), ratio


def _checked(images: Any, labels: Any) -> tuple[Tensor, Tensor | None]:
    """Return the images in floating point and the classes as numbers from 0; raise an error if they are unusable."""
    check_dense(images, "images")
    check_images(images)
    if not images.is_floating_point():
        raise TypeError(f"images must be floating point, got {images.dtype}; convert with images.float() / 255")
    if len(images) < _FEWEST:
        raise ValueError(f"discover compares images with each other and needs at least {_FEWEST}, got {len(images)}")
    if min(images.shape[-2:]) < 8:
        raise ValueError(f"images must be at least 8 x 8 pixels, got {images.shape[-2]} x {images.shape[-1]}")
    images = images.float()
    if not images.isfinite().all():
        raise ValueError("images contain NaN or infinite values; remove these images")
    if not (images.flatten(2).std(-1).amax(1) > 0).any():
        raise ValueError("every image is constant: no motion is visible in images of one colour")
    if (images - images[:1]).abs().amax() == 0:
        raise ValueError("all images are equal: a group is found from images that differ by their pose")
    if labels is None:
        return images, None
    check_dense(labels, "labels")
    if labels.shape != (len(images),) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels are whole numbers of shape ({len(images)},), one per image, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
    return images, numbered(labels.to(images.device))
