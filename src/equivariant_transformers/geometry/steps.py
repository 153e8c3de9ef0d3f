"""Steps of a warp, and the map of points that they define together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equivariant_transformers.geometry import projective
from equivariant_transformers.geometry.flows import Flow, far, follow


@dataclass(frozen=True, eq=False)
class FlowStep:
    """Step of a warp that is not a matrix: `flow(theta, points)` with theta `(B,)` or `()`."""

    flow: Flow
    theta: Tensor

    def inverse(self) -> FlowStep:
        return FlowStep(self.flow, -self.theta)


Step = Tensor | FlowStep
"""A matrix `(B, 3, 3)` or `(3, 3)`, or a flow."""


def numbers(step: Step) -> Tensor:
    """Return the tensor of numbers that defines `step`: a matrix, or the theta of a flow."""
    return step.theta if isinstance(step, FlowStep) else step


def coordinate_dtype(steps: Sequence[Step], images: Tensor | None = None) -> torch.dtype:
    """Return the dtype of coordinates: float64 if the steps or the images are float64, else float32."""
    tensors = [numbers(step) for step in steps] + ([] if images is None else [images])
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def batch_size(step: Step) -> int:
    """Return the number of warps in `step`; 1 for a step that is the same for any batch."""
    if isinstance(step, FlowStep):
        return step.theta.shape[0] if step.theta.ndim else 1
    return step.shape[0] if step.ndim == 3 else 1


def check_batches(left: Step, right: Step) -> None:
    """Raise a ValueError unless the batches of two steps can be composed."""
    many, more = batch_size(left), batch_size(right)
    if many != more and 1 not in (many, more):
        raise ValueError(f"cannot compose {many} warps with {more}: the counts must be equal, or one of them 1")


def follow_steps(steps: Sequence[Step], x: Tensor, y: Tensor, *, finite: bool = False) -> tuple[Tensor, Tensor]:
    """Map points (x, y), batch first, by `steps` from last to first.

    Return the mapped points `(2, B, ...)` and the mask of the points before the horizon: `(B, ...)`, or `()` if it is
    known that all are. No point that is `finite` lies beyond the horizon of an affine matrix.
    """
    dimensions = max(x.ndim, y.ndim)
    places, visible = None, None
    for step in reversed(steps):
        given = numbers(step)
        if given.is_meta != x.is_meta and (given.is_meta or given.ndim in (1, 3)):
            raise TypeError("either the warp or what it maps is on the meta device, where it has no values")
        if isinstance(step, FlowStep):
            theta = step.theta.reshape(-1, *[1] * (dimensions - 1)) if step.theta.ndim else step.theta
            before = stacked(x, y) if places is None else places
            moved = follow(step.flow, theta, before.movedim(0, -1)).movedim(-1, 0)
            stays = moved.abs().amax(0) < far(moved)
            visible = stays if visible is None else visible & stays
            places = torch.where(stays, moved, before)
        else:
            matrix = step.reshape(-1, *[1] * (dimensions - 1), 3, 3) if step.ndim == 3 else step
            if finite and _is_affine(matrix):
                places = projective.homogeneous(matrix[..., :2, :], x, y)
            else:
                places, (w,) = projective.homogeneous(matrix, x, y).split_with_sizes((2, 1))
                in_front = w > torch.finfo(w.dtype).eps * matrix[..., 2, :].abs().sum(-1)
                if not (projective.can_inspect(in_front) and in_front.all()):
                    visible = in_front if visible is None else visible & in_front
                    w = torch.where(in_front, w, 1)
                places = places / w
        x, y = places[0], places[1]
    if places is None:
        places = stacked(x, y)
    if visible is None:
        visible = torch.ones((), dtype=torch.bool, device=x.device)
    return places, visible


def _is_affine(matrix: Tensor) -> bool:
    """Return True if it is known that no point needs a division. A gradient for the last row needs the division."""
    if matrix.requires_grad or not projective.can_inspect(matrix):
        return False
    return all(row == [0, 0, 1] for row in matrix[..., 2, :].reshape(-1, 3).tolist())


def stacked(x: Tensor, y: Tensor) -> Tensor:
    """Return the points (x, y), which broadcast, as one tensor `(2, ...)`."""
    return torch.stack(torch.broadcast_tensors(x, y))  # type: ignore[no-untyped-call]
