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


def follow_steps(steps: Sequence[Step], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Map points (x, y), batch first, by `steps` from last to first, with the mask of points before the horizon."""
    dimensions = max(x.ndim, y.ndim)
    visible = None
    for step in reversed(steps):
        given = numbers(step)
        if given.is_meta != x.is_meta and (given.is_meta or given.ndim in (1, 3)):
            raise TypeError("either the warp or what it maps is on the meta device, where it has no values")
        if isinstance(step, FlowStep):
            theta = step.theta.reshape(-1, *[1] * (dimensions - 1)) if step.theta.ndim else step.theta
            points = torch.stack(torch.broadcast_tensors(x, y), -1)  # type: ignore[no-untyped-call]
            moved_x, moved_y = follow(step.flow, theta, points).unbind(-1)
            stays = torch.maximum(moved_x.abs(), moved_y.abs()) < far(moved_x)
            visible = stays if visible is None else visible & stays
            x, y = torch.where(stays, moved_x, x), torch.where(stays, moved_y, y)
        else:
            matrix = step.reshape(-1, *[1] * (dimensions - 1), 3, 3) if step.ndim == 3 else step
            x, y, w = projective.homogeneous(matrix, x, y)
            in_front = w > torch.finfo(w.dtype).eps * matrix[..., 2, :].abs().sum(-1)
            visible = in_front if visible is None else visible & in_front
            w = torch.where(in_front, w, 1)
            x, y = x / w, y / w
    if visible is None:
        visible = torch.ones((), dtype=torch.bool, device=x.device)
    return x, y, visible
