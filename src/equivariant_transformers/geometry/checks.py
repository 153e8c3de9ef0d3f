"""Checks of the parts of a warp and of the points that it maps, with errors that name the remedy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equivariant_transformers.geometry import projective
from equivariant_transformers.text import quote

_MOST_PIXELS = 2**30


def check_dense(tensor: Any, what: str) -> None:
    """Raise a TypeError unless `tensor` is a dense tensor of real numbers."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor, got {type(tensor).__name__}; convert with torch.as_tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{what} must be dense, got a tensor of layout {tensor.layout}; convert with .to_dense()")
    if tensor.is_complex():
        raise TypeError(f"{what} must be real numbers, got {tensor.dtype}; use the real and the imaginary part")


def check_points(points: Any, columns: int) -> None:
    """Raise an error unless `points` are dense floating-point points `(..., 2)` or boxes `(..., 4)`."""
    what, names = ("boxes", "left, top, right, bottom") if columns == 4 else ("points", "x, y")
    check_dense(points, what)
    if points.ndim == 0 or points.shape[-1] != columns:
        raise ValueError(f"{what} have shape (B, ..., {columns}), as ({names}), got {tuple(points.shape)}")
    if not points.is_floating_point():
        raise TypeError(f"{what} must be floating point, got {points.dtype}; convert with .float()")


def checked_size(size: Any) -> tuple[int, int]:
    """Return `size` as a tuple (height, width); raise a ValueError if it is not a valid size."""
    try:
        # A compiler's symbolic numbers have no index.
        height, width = size if torch.compiler.is_compiling() else (count.__index__() for count in size)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise ValueError(f"a size is (height, width), two whole numbers, got {quote(size)}") from None
    if height < 0 or width < 0 or height * width > _MOST_PIXELS:
        raise ValueError(f"a size is (height, width), neither below 0, of at most 2**30 pixels, got {quote(size)}")
    return height, width


def as_geometry(tensor: Tensor) -> Tensor:
    """Return the numbers of a warp in float32 or wider."""
    check_dense(tensor, "matrices and theta")
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        raise TypeError(f"a warp needs floating-point numbers, got {tensor.dtype}; convert with .float()")
    return projective.at_least_float32(tensor)


def check_invertible(matrix: Tensor) -> None:
    """Raise a ValueError unless every one of `matrix` `(..., 3, 3)` is finite and invertible."""
    finite = matrix.isfinite().flatten(-2).all(-1)
    scaled = matrix / matrix.abs().amax((-2, -1), keepdim=True)
    volume = torch.linalg.vector_norm(scaled, dim=-1).prod(-1)
    singular = ~(projective.determinant(scaled).abs() > 8 * torch.finfo(matrix.dtype).eps * volume)
    for problem, where in (
        ("NaN or infinite entries", ~finite),
        ("a zero determinant, so it cannot be inverted", singular),
    ):
        if where.any():
            index = where.nonzero()[0].tolist()
            raise ValueError(
                f"warp matrix{f' {index[0]}' if index else ''} has {problem}: {matrix[tuple(index)].tolist()}"
            )
