"""One-parameter flows of points that are not given by a matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Flow = Callable[[Tensor, Tensor], Tensor]


def far(points: Tensor) -> float:
    """Return the coordinate of points that a flow moves out of the plane, representable in the dtype of `points`.

    The coordinate is half the longer side of the image times a million. No point of a flow at this distance is visible.
    """
    return min(1e6, torch.finfo(points.dtype).max)


def follow(flow: Flow, theta: Tensor, points: Tensor) -> Tensor:
    """Return `flow(theta, points)` for `points` `(..., 2)`; theta broadcasts against the points' leading shape.

    A coordinate that is not finite is placed at plus or minus `far`, with zero gradient. Gradients that overflow are
    zero too. A single such point therefore does not invalidate the image or the gradient of theta.

    >>> blow_up = lambda theta, points: points / (1 - theta[..., None] * points)
    >>> follow(blow_up, torch.tensor(1.0), torch.tensor([[0.5, 0.5], [1.0, 0.5]]))
    tensor([[1.0000e+00, 1.0000e+00],
            [1.0000e+06, 1.0000e+00]])
    """
    # One theta per point keeps the gradients of the points separate. So does one point per theta, and a flow may
    # then stack coordinates that depend on theta with others that do not.
    shape = torch.broadcast_shapes(theta.shape, points.shape[:-1])  # type: ignore[no-untyped-call]
    points = points.expand(*shape, 2)
    if theta.requires_grad:
        theta = _finite_gradient(theta.expand(shape))
    if points.requires_grad:
        points = _finite_gradient(points)
    moved = flow(theta, points)
    limit = far(moved)
    return moved.nan_to_num(limit, limit, -limit)


def _finite_gradient(tensor: Tensor) -> Tensor:
    guarded: Tensor = _FiniteGradient.apply(tensor)  # type: ignore[no-untyped-call]
    return guarded


class _FiniteGradient(torch.autograd.Function):
    """Identity whose infinite or NaN gradients are replaced by zeros."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.nan_to_num(0.0, 0.0, 0.0)
