"""Blurred copies of a data set, and its change along the generators of a family."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from equivariant_transformers.discovery.families import Family
from equivariant_transformers.geometry.warp import Warp

STEP = 0.02
"""Size of the central differences, in half widths of the image."""


def reduced(images: Tensor, side: int, blur: float) -> Tensor:
    """Return `images` `(B, C, H, W)` at `side` pixels along the longer side, blurred by `blur` of these pixels."""
    scale = max(images.shape[-2:]) / side
    smooth = blurred(images, blur * scale)
    size = tuple(max(2, round(count / scale)) for count in images.shape[-2:])
    return Warp.identity().image(smooth, size=(size[0], size[1]), padding="border")


def tangents(images: Tensor, family: Family) -> Tensor:
    """Return the derivatives `(dimension, B, C H W)` of `images` along the basis of `family`, at the identity."""
    found = []
    for basis in _basis(family, images):
        ahead, behind = (
            family.warp(basis, images.new_full((1,), sign * STEP)).image(images, padding="border").flatten(1)
            for sign in (1, -1)
        )
        found.append((ahead - behind) / (2 * STEP))
    return torch.stack(found)


def derivatives(images: Tensor, family: Family, coefficients: Tensor, theta: Tensor) -> Tensor:
    """Return the derivatives `(dimension, B, C H W)` of the images moved by -theta, along the basis of `family`."""
    found = []
    for basis in _basis(family, images):
        ahead, behind = (
            family.warp(coefficients + sign * STEP * basis, -theta).image(images).flatten(1) for sign in (1, -1)
        )
        found.append((ahead - behind) / (2 * STEP))
    return torch.stack(found)


def _basis(family: Family, like: Tensor) -> Tensor:
    return torch.eye(family.dimension, dtype=like.dtype, device=like.device)


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Return `images` after a Gaussian blur of `sigma` pixels."""
    reach = max(1, round(3 * sigma))
    places = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    kernel = torch.exp(-(places**2) / (2 * max(sigma, 1e-3) ** 2))
    kernel = (kernel / kernel.sum()).expand(images.shape[1], 1, 1, -1)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    rows = F.conv2d(padded, kernel, groups=images.shape[1])
    return F.conv2d(rows, kernel.transpose(2, 3), groups=images.shape[1])
