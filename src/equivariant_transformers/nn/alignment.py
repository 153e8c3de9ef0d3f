"""Label-free training of canonicalizers on upright images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.candidates import middle_points, undone_points
from equivariant_transformers.nn.canonicalization import Canonicalization, Step

TOLERANCE = 0.2
"""Largest `frame_distance` of a right canonical frame. It is that of a rotation by 15 degrees."""
_SPREAD = 0.08  # distance of points, in half widths of the image, at which a pose counts as nearly right
_BETA = 0.1  # distance of points at which the loss of a warp changes from quadratic to linear
_LATER = 0.2  # weight of displacements along the groups of later layers, which can undo them
_WEIGHT = 3.0  # weight of the distance of points against a cross-entropy


def alignment_loss(out: Canonicalization) -> Tensor:
    r"""Return how far `out.warp` is from the identity, averaged over the batch: the label-free loss of a canonicalizer.

    The images are upright, and a canonicalizer sees each through a known random warp, `out.start`. Its canonical frame
    should be the frame of the original image. Two terms measure this:

    - For each step whose predictor returns evidence over poses, the cross-entropy between the evidence and the poses
      that undo the warp before the step. Displacements that later steps can undo count less. The cross-entropy also
      trains poses far from the present one.
    - If any other step exists, three times the smooth L1 distance between `out.warp.points(grid)` and `grid`.

    >>> import equivariant_transformers as et
    >>> canonicalizer = et.Canonicalizer(["rotation"], in_channels=3)
    >>> turn = et.Warp.projective(et.group("rotation").matrix(torch.tensor([0.3, -0.2])))
    >>> alignment_loss(canonicalizer(torch.rand(2, 3, 32, 32), turn)) > 0
    tensor(True)
    """
    if not isinstance(out, Canonicalization):
        raise TypeError(f"alignment_loss takes the output of a canonicalizer, got a {type(out).__name__}")
    grid = middle_points(device=out.images.device)
    loss = torch.zeros((), device=out.images.device)
    before = out.start
    for number, step in enumerate(out.steps):
        if step.evidence is not None:
            loss = loss + _cross_entropy(step, before, step.evidence, grid, _later(out.steps, number))
        before = step.warp
    if any(step.evidence is None for step in out.steps):
        moved = out.warp.points(grid.expand(out.images.shape[0], -1, -1))
        loss = loss + _WEIGHT * F.smooth_l1_loss(moved, grid.expand_as(moved), beta=_BETA)
    return loss


def frame_distance(warp: Warp, images: Tensor) -> Tensor:
    """Return the root mean square distance `(B,)` by which `warp` moves points in the middle of `images` `(B, ...)`.

    The unit is half the width of the image. A rotation by 15 degrees has a distance of 0.19.
    """
    grid = middle_points(device=images.device).expand(images.shape[0], -1, -1)
    return _mean_square(_bounded(warp.points(grid) - grid)).sqrt()


class Aligned(nn.Module):
    """Network that also returns the alignment loss of its canonicalizer, for training.

    Args:
        network: a `Canonicalized`, or any module with its `canonicalizer` and `read`.

    >>> import equivariant_transformers as et
    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> network = et.Canonicalized(backbone, et.Canonicalizer(["rotation"]))
    >>> logits, loss = Aligned(network)(torch.rand(2, 1, 32, 32))
    >>> logits.shape, loss.shape
    (torch.Size([2, 10]), torch.Size([]))
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        if not hasattr(network, "canonicalizer"):
            raise TypeError(f"the alignment loss needs a Canonicalized network, got a {type(network).__name__}")
        self.network = network

    def forward(self, images: Tensor, start: Warp | None = None) -> tuple[Tensor, Tensor]:
        """Return the network's output for images `(B, C, H, W)` warped by `start`, and the alignment loss."""
        network: Any = self.network
        out = network.canonicalizer(images, start)
        return network.read(out), alignment_loss(out)


def _later(steps: Sequence[Step], number: int) -> list[Group]:
    """Return the groups of the layers after `steps[number]`, except those of its own layer."""
    own = steps[number].layer.chart.groups
    return [group for step in steps[number + 1 :] for group in step.layer.chart.groups if group not in own]


def _cross_entropy(step: Step, before: Warp, evidence: Tensor, grid: Tensor, later: Sequence[Group]) -> Tensor:
    """Return the cross-entropy of `evidence` and the positions whose poses undo the warp `before` the step.

    Displacements along the `later` groups count less. The rotation that is nearest to undoing a rotation and a shear
    differs from the rotation, and what it leaves cannot be undone by a layer for shears.
    """
    undone = getattr(step.layer.predictor, "undone", None)  # (K, points, 2)
    if undone is None:
        undone = undone_points(step.layer.chart, dtype=grid.dtype, device=grid.device)
    with torch.no_grad():
        moved = before.points(undone.reshape(1, -1, 2)).reshape(-1, *undone.shape)  # (B, K, points, 2)
        rest = _discounted(_bounded(moved - grid), [group.vector_field(grid) for group in later])
        target = torch.softmax(_mean_square(rest) / (-2 * _SPREAD**2), -1).expand(len(evidence), -1)
    return F.cross_entropy(evidence.flatten(1), target)


def _discounted(differences: Tensor, fields: Sequence[Tensor]) -> Tensor:
    """Return `differences` `(..., points, 2)` with their part along vector fields `(1, points, 2)` scaled down."""
    basis: list[Tensor] = []
    for field in fields:
        for unit in basis:
            field = field - (field * unit).sum() * unit
        length = torch.linalg.vector_norm(field)
        basis.append(torch.where(length > 1e-3, field / length.clamp_min(1e-3), 0.0))  # 0 if the others span the field
    rest = differences
    for unit in basis:
        rest = torch.addcmul(rest, (rest * unit).sum((-2, -1), keepdim=True), unit, value=_LATER - 1)
    return rest


def _mean_square(differences: Tensor) -> Tensor:
    """Return the mean squared length `(...)` of `differences` `(..., points, 2)`."""
    return differences.square().sum((-2, -1)) / differences.shape[-2]


def _bounded(differences: Tensor) -> Tensor:
    """Return `differences`, finite beyond the horizon too."""
    return differences.nan_to_num(1e3).clamp(-1e3, 1e3)
