"""Sampling of images through the steps of a warp: in one kernel on a GPU, in torch operations elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from equivariant_transformers.geometry import kernels, projective
from equivariant_transformers.geometry.frame import Size, extent, pixel_centres
from equivariant_transformers.geometry.resampling import Sampling, resample
from equivariant_transformers.geometry.steps import Step, coordinate_dtype, follow_steps

SHOWN = 1 - 1e-3
"""Share of pixels inside a mask from which on a sample counts as inside."""


class Target(NamedTuple):
    """Points of the output frame at which images are sampled, and the frame that the images span."""

    points: Tensor | None
    """Points `(..., h, w, 2)`; None for the pixel centres of a picture of `size`."""
    size: Size
    """Height and width of the output; all rows of points together."""
    frame: Size
    """Size of a picture whose `extent` the images span."""
    wants_valid: bool = False
    """True to return the mask of samples inside the images."""
    mask: Tensor | None = None
    """Mask `(B, 1, H, W)` of the pixels that show the picture; None if all do."""


def sample(
    steps: Sequence[Step], images: Tensor, target: Target, **sampling: Unpack[Sampling]
) -> tuple[Tensor, Tensor | None]:
    """Sample `images` `(B, C, H, W)` at `target` moved by `steps`, as `(B, C, ..., h, w)`.

    Also return the mask `(B or 1, ..., h, w)` of the samples that are before the horizon, inside the images and inside
    `target.mask`, or None if it is not wanted. This function alone decides whether a kernel is used.
    """
    if sampling.keys() <= {"fill"} and _fits_kernel(steps, images, target):
        return _in_one_kernel(steps, images, target, sampling.get("fill", 0.0))
    return by_operations(steps, images, target, **sampling)


def by_operations(
    steps: Sequence[Step], images: Tensor, target: Target, **sampling: Unpack[Sampling]
) -> tuple[Tensor, Tensor | None]:
    """Sample as `sample` does, in torch operations, on any device."""
    dtype = coordinate_dtype(steps, images)
    if target.points is None:
        x, y = pixel_centres(target.size, dtype, images.device)
    else:
        x, y = target.points.to(dtype)[None].unbind(-1)
    places, visible = follow_steps(steps, x, y, finite=True)  # `resample` and `inside` place other points outside
    frame = extent(target.frame)
    result = resample(images, places, visible, frame=frame, **sampling)
    if target.points is None and target.size == images.shape[-2:]:
        # A pixel that maps exactly to itself keeps its exact value, with the gradient of the interpolation.
        fixed = (visible & (places[0] == x) & (places[1] == y))[:, None]
        if not projective.can_inspect(fixed) or fixed.any():
            exact = images.detach() + (result - result.detach()) if result.requires_grad else images
            result = torch.where(fixed, exact, result)
    if not target.wants_valid:
        return result, None
    valid = inside(places, visible, frame)
    if target.mask is not None:
        shown = resample(target.mask.to(dtype), places, visible, frame=frame)[:, 0]
        valid = valid & (shown > SHOWN)
    return result, valid


def inside(places: Tensor, visible: Tensor, frame: tuple[float, float]) -> Tensor:
    """Return the mask of the visible points `(2, ...)` inside `frame` (half width, half height), up to rounding."""
    limit = 1 + 16 * torch.finfo(places.dtype).eps
    right, bottom = frame
    distances = places.abs()
    return visible & (distances[0] <= limit * right) & (distances[1] <= limit * bottom)


def _fits_kernel(steps: Sequence[Step], images: Tensor, target: Target) -> bool:
    """Return True if one kernel can sample: one matrix per image, on the device of the images."""
    if len(steps) > 1 or not all(isinstance(step, Tensor) for step in steps):
        return False
    others = [part for part in (*steps, target.points, target.mask) if isinstance(part, Tensor)]
    if not kernels.can_take(images, *others) or any(part.device != images.device for part in others):
        return False
    if target.points is not None and target.points.requires_grad:
        return False
    if images.requires_grad and torch.are_deterministic_algorithms_enabled():
        return False  # the gradient of images has no fixed order of sums
    matrices = steps[0].shape[0] if steps and isinstance(steps[0], Tensor) and steps[0].ndim == 3 else 1
    if images.shape[0] != matrices and 1 not in (images.shape[0], matrices):
        return False  # `resample` raises the error
    return images.numel() > 0 and matrices > 0 and 0 not in target.size


def _in_one_kernel(
    steps: Sequence[Step], images: Tensor, target: Target, fill: float | Tensor
) -> tuple[Tensor, Tensor | None]:
    from equivariant_transformers.geometry.kernels import operator

    points, size, frame, wants_valid, mask = target
    (matrix,) = steps or (torch.eye(3, dtype=coordinate_dtype(steps, images), device=images.device),)
    assert isinstance(matrix, Tensor)
    batch = matrix.shape[0] if matrix.ndim == 3 and images.shape[0] == 1 else images.shape[0]
    if isinstance(fill, Tensor):
        fill = fill.to(images.device).reshape((1,) * (4 - fill.ndim) + fill.shape)[:, :, 0, 0]
    elif fill != 0:
        fill = images.new_full((1, 1), fill, dtype=coordinate_dtype(steps, images))
    result, valid = operator.sample(
        images if images.shape[0] == batch else images.expand(batch, -1, -1, -1),
        matrix if matrix.shape[0] == batch and matrix.ndim == 3 else matrix.expand(batch, 3, 3),
        None if points is None else points.reshape(-1, 2),
        fill.expand(batch, images.shape[1]) if isinstance(fill, Tensor) else None,
        mask,
        size,
        frame,
        wants_valid,
    )
    if points is None:
        return result, valid
    shape = points.shape[:-1]
    return result.reshape(*result.shape[:2], *shape), None if valid is None else valid.reshape(-1, *shape)
