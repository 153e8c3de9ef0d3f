"""Canonical images without corners, which a network behind a layer for rotations must be prepared for."""

from __future__ import annotations

import torch
from torch import Tensor

from equivariant_transformers.geometry.frame import extent, pixel_centres
from equivariant_transformers.geometry.projective import at_least_float32
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.nn.posterior import PosteriorPredictor

_SHARE = 0.5  # of the training images
_SPREAD = 0.5  # standard deviation of the colour of the corners, as a fraction of that of the image


def can_lose_corners(out: Canonicalization) -> bool:
    """Return True if a layer for photographs turned the images: a picture that was turned back lacks its corners."""
    return any(
        any(step.layer.chart.periodic) for step in out.steps if isinstance(step.layer.predictor, PosteriorPredictor)
    )


def cover_corners(images: Tensor, out: Canonicalization, points: Tensor | None) -> Tensor:
    """Return `images` `(B, C, ..., h, w)`, half of them with one random colour outside the largest circle in the frame.

    Args:
        images: canonical images of `out`.
        out: result of a canonicalizer.
        points: points `(..., h, w, 2)` at which the images are sampled; None for the pixels of a picture.
    """
    height, width = out.images.shape[-2:]
    if points is None:
        x, y = (ticks[0] for ticks in pixel_centres((images.shape[-2], images.shape[-1]), torch.float32, images.device))
    else:
        x, y = points.unbind(-1)
    axes = tuple(range(2, images.ndim))
    deviation, mean = torch.std_mean(at_least_float32(images), axes, correction=0, keepdim=True)
    colour = (mean + _SPREAD * deviation * torch.randn_like(mean)).to(images.dtype)
    covered = torch.rand_like(mean[:, :1]) < _SHARE
    return torch.where(covered & (torch.hypot(x, y) > min(extent((height, width)))), colour, images)
