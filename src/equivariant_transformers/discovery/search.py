"""`discover`: the one-parameter group that moves a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.discovery import alignment, invariance
from equivariant_transformers.discovery.alignment import Fit
from equivariant_transformers.discovery.families import Family, Polynomial, Projective
from equivariant_transformers.discovery.images import reduced, tangents
from equivariant_transformers.discovery.result import Discovery, Found, cosine
from equivariant_transformers.discovery.steps import Steps
from equivariant_transformers.discovery.visibility import Visibility
from equivariant_transformers.geometry.checks import check_dense
from equivariant_transformers.geometry.resampling import check_images
from equivariant_transformers.text import quote

FAMILIES: dict[str, Family] = {"projective": Projective(), "polynomial": Polynomial()}
Report = Callable[[str, float], None]
EXAMPLES = (10_000, 1000)  # images to use by default without labels, and with them

_COARSE, _FINE = (16, 1.0), (24, 1.0)  # side and blur of the images, in pixels
_COMPARED = (28, 0.9)  # of the images whose distribution is compared
_PAIRED = 800  # images whose distribution is compared
_TRIED = 300  # images that the starting points are tried on
_STARTS = 4
_FEWEST = 20
_TASK = "looking for a group"


@torch.no_grad()
def discover(
    images: Tensor,
    labels: Tensor | None = None,
    *,
    family: Literal["projective", "polynomial"] = "projective",
    count: int = 1,
    examples: int | None = None,
    seed: int = 0,
    progress: Report | None = None,
    state: Path | None = None,
) -> Discovery:
    r"""Find the one-parameter group $T_\theta$ that moves the images of a data set, each by an unknown theta.

    Without labels, a network learns to predict small random motions of the images, and the group is the motion that it
    cannot predict: images that are moved by a wide range of theta look alike after a further motion along the group.

    With labels, the model is $I_n = M_{c(n)}\circ T_{\theta_n}$ with a template $M_c$ per class. Starting points are
    the generators along which the distribution of the images changes least. The generator that explains most of the
    variance within the classes is chosen.

    The group is returned if two halves of the images, searched independently, agree on it. The unit of theta is chosen
    so that theta = 1 changes the images as much as a translation by half a width; its sign is arbitrary.

    Args:
        images: images `(B, C, H, W)`, at least 20, floating point.
        labels: classes `(B,)`, whole numbers, of images that show the same content within a class.
        family: "projective" for all 3x3 generators, "polynomial" for vector fields that are cubic polynomials.
        count: number of groups to find at most. With labels, each is removed before the next is sought.
        examples: number of images to use, drawn at random; by default 1,000 with labels and 10,000 without.
        seed: random seed for the choice of the images, the networks and the motions.
        progress: callback that receives the current task and its completed fraction.
        state: file for the finished steps of the search. An interrupted search with the same arguments resumes from it,
            and returns the same result. The file is removed at the end.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator ...>
    >>> discover(torch.rand(40, 1, 8, 8)).group is None
    True
    """
    images, classes = _checked(images, labels)
    space = FAMILIES.get(family) if isinstance(family, str) else None
    if space is None:
        raise ValueError(f'family is "projective" or "polynomial", got {quote(family)}')
    count = whole_number("count", count, most=space.dimension - 1)
    default = EXAMPLES[labels is not None]
    examples = default if examples is None else whole_number("examples", examples, least=_FEWEST)
    generator = torch.Generator().manual_seed(whole_number("seed", seed, least=0))
    chosen = torch.randperm(len(images), generator=generator)[:examples].to(images.device)
    images, classes = images[chosen], None if classes is None else classes[chosen]
    steps = Steps(state, (images, classes, family, count, seed), generator)
    if classes is None:
        result = _without_labels(images, space, count, generator, steps, progress)
    else:
        result = _with_labels(images, classes, space, count, steps, progress)
    steps.finish()
    return result


def _with_labels(
    images: Tensor, classes: Tensor, family: Family, count: int, steps: Steps, progress: Report | None
) -> Discovery:
    """Return up to `count` groups. Each is removed from the images before the next is sought."""
    found: list[Found] = []
    for number in range(count):

        def report(share: float, number: int = number) -> None:
            if progress:
                progress(_TASK, (number + share) / count)

        fit, ratio, agreement = _search(images, classes, family, number, steps, report)
        group = family.group(fit.coefficients.double(), "discovered" if count == 1 else f"discovered-{number + 1}")
        theta = fit.theta[fit.kept].quantile(torch.tensor([0.01, 0.99]).to(fit.theta))
        entry = Found(group, (float(theta[0]), float(theta[1])), 1 - fit.remaining, ratio, agreement)
        if not entry.significant:
            return Discovery(tuple(found), entry)
        found.append(entry)
        images = family.warp(fit.coefficients, -fit.theta).image(images, padding="border")
    return Discovery(tuple(found), None)


def _without_labels(
    images: Tensor,
    family: Family,
    count: int,
    generator: torch.Generator,
    steps: Steps,
    progress: Report | None,
) -> Discovery:
    """Return the least visible directions of motion: as many, up to `count`, as are set apart best from the others."""

    def report(share: float) -> None:
        if progress:
            progress(_TASK, share)

    visibility = Visibility(images, family, generator, steps, report)
    candidates = [visibility.least(number) for number in range(1, count + 1)]
    directions, ratio = min(candidates, key=lambda candidate: candidate[1])
    several = len(directions)
    agreement = visibility.agreement(several)
    names = ["discovered"] if count == 1 else [f"discovered-{number + 1}" for number in range(several)]
    entries = tuple(
        Found(family.group(direction.double(), name), None, None, ratio, agreement)
        for name, direction in zip(names, directions, strict=True)
    )
    return Discovery(entries, None) if entries[0].significant else Discovery((), entries[0])


def _search(
    images: Tensor, labels: Tensor, family: Family, number: int, steps: Steps, report: Callable[[float], None]
) -> tuple[Fit, float, float]:
    """Return the fit to all images, the change of their distribution along it, and the agreement of two halves.

    Each half of the images is searched on its own. The fit to the half that leaves less variance is then refined on
    all images.
    """
    halves = []
    for half in range(2):

        def fitted(half: int = half) -> tuple[Any, ...]:
            part, own = images[half::2], labels[half::2]
            metric, _, directions = _spectrum(part, own, family)
            start = _best(part, own, family, metric, directions[:_STARTS])
            report((2 * half + 1) / 5)
            return astuple(_refined(start, part, own, family, metric))

        halves.append(Fit(*steps.run(f"group {number}, half {half}", fitted)))
        report((2 * half + 2) / 5)
    first, second = (family.group(fit.coefficients.double(), "half") for fit in halves)
    metric, values, directions = _spectrum(images, labels, family)
    start = min(halves, key=lambda fit: fit.remaining).coefficients
    fit = Fit(*steps.run(f"group {number}", lambda: astuple(_refined(start, images, labels, family, metric))))
    report(1.0)
    return fit, invariance.ratio(fit.coefficients, values, directions), abs(cosine(first, second))


def _spectrum(images: Tensor, labels: Tensor, family: Family) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inner product of generators, and the stationary values and directions of the change."""
    compared = reduced(images, *_COMPARED)
    slopes = tangents(compared, family)
    metric = invariance.metric(slopes)
    values, directions = invariance.directions(compared.flatten(1)[:_PAIRED], slopes[:, :_PAIRED], labels[:_PAIRED])
    return metric / metric[0, 0], values, directions


def _best(images: Tensor, labels: Tensor, family: Family, metric: Tensor, starts: Tensor) -> Tensor:
    """Return the coefficients that leave the least variance after a few steps from each of `starts`."""
    coarse, classes = reduced(images[:_TRIED], *_COARSE), labels[:_TRIED]
    trials = []
    for direction in starts:
        fit = alignment.start(direction, len(coarse), metric)
        for _ in range(3):
            fit = alignment.improve(fit, coarse, classes, family, metric, whole_line=True)
        trials.append(fit)
    return min(trials, key=lambda fit: fit.remaining).coefficients


def _refined(start: Tensor, images: Tensor, labels: Tensor, family: Family, metric: Tensor) -> Fit:
    """Return the fit to `images` from the coefficients `start`."""
    coarse, fine = (reduced(images, *level) for level in (_COARSE, _FINE))
    fit = alignment.start(start, len(images), metric)
    for level, whole_line in ((coarse, True), (coarse, True), (fine, False), (fine, False), (fine, False)):
        fit = alignment.improve(fit, level, labels, family, metric, whole_line=whole_line)
    remaining = alignment.improve(fit, coarse, labels, family, metric, whole_line=False).remaining
    return replace(fit, remaining=remaining)


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
    classes: Tensor = torch.unique(labels.to(images.device), return_inverse=True)[1]
    return images, classes
