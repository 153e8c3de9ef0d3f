"""Closed-form operations on homogeneous 3x3 matrices and points of the plane."""

from __future__ import annotations

import torch
from torch import Tensor


def away_from_zero(value: Tensor) -> Tensor:
    """Raise magnitudes below the dtype's epsilon to epsilon, keeping the sign; the gradient is zero there."""
    eps = torch.finfo(value.dtype).eps
    floor = torch.where(value < 0, -eps, eps).to(value.dtype)
    return torch.where(value.abs() < eps, floor, value)


def can_inspect(tensor: Tensor) -> bool:
    """Return True if control flow may depend on the values of `tensor`.

    The tensor must be on the CPU, since reading a value of another device waits for all its work, and must not be
    traced or transformed.
    """
    if torch.compiler.is_compiling() or type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    return tensor.device.type == "cpu" and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert `tensor` to float32 if its precision is lower."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of `(..., 3, 3)` matrices, in full precision even under autocast."""
    return (left[..., :, :, None] * right[..., None, :, :]).sum(-2)


def wrap(value: Tensor, period: float | None) -> Tensor:
    """Wrap `value` to within half a `period` of 0; return it unchanged if `period` is None."""
    return value if period is None else value - period * torch.round(value / period)


def homogeneous(matrix: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the homogeneous coordinates `(3, ...)`, as (X, Y, W), of `matrix` `(..., 3, 3)` applied to points (x, y).

    For the first rows of the matrix alone, the result is the first coordinates alone.

    All leading shapes broadcast. The terms in y are summed first: on a pixel grid with x `(1, W)` and y `(H, 1)`, the
    result needs only one addition at full size.
    """
    matrix = matrix[(None,) * (max(x.ndim, y.ndim) + 2 - matrix.ndim)]
    first, second, third = matrix.movedim((-1, -2), (0, 1)).unbind()  # columns (3, ...)
    return first * x + (second * y + third)


def apply(matrix: Tensor, points: Tensor) -> Tensor:
    """Apply `matrix` `(..., 3, 3)` to `points` `(..., 2)`.

    The result is always finite: a point mapped to infinity is placed very far away.

    >>> apply(torch.tensor([[1.0, 0, 0.5], [0, 1, 0], [0, 0, 1]]), torch.tensor([1.0, 2.0]))
    tensor([1.5000, 2.0000])
    """
    moved = homogeneous(matrix, *points.unbind(-1))
    return torch.stack((moved[0], moved[1]), -1) / away_from_zero(moved[2])[..., None]


def adjugate(matrix: Tensor) -> Tensor:
    """Return the adjugate (transposed cofactors) of `matrix` `(..., 3, 3)`: the inverse times the determinant."""
    a, b, c, d, e, f, g, h, i = matrix.flatten(-2).unbind(-1)
    cofactors = (
        *(e * i - f * h, c * h - b * i, b * f - c * e),
        *(f * g - d * i, a * i - c * g, c * d - a * f),
        *(d * h - e * g, b * g - a * h, a * e - b * d),
    )
    return torch.stack(cofactors, -1).reshape(matrix.shape)


def determinant(matrix: Tensor) -> Tensor:
    """Return the determinant of `matrix` `(..., 3, 3)`."""
    a, b, c, d, e, f, g, h, i = matrix.flatten(-2).unbind(-1)
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def inverse(matrix: Tensor) -> Tensor:
    """Return the inverse of `matrix` `(..., 3, 3)` as adjugate over determinant, without a factorisation.

    >>> inverse(torch.tensor([[2.0, 0, 0], [0, 4, 0], [0, 0, 1]])).diagonal()
    tensor([0.5000, 0.2500, 1.0000])
    """
    size = matrix.detach().abs().amax((-2, -1), keepdim=True)
    scaled = matrix / size
    return adjugate(scaled) / (determinant(scaled)[..., None, None] * size)
