"""Kernel that weighs the samples of a chart by their visibility and standardises them, one image per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from equivariant_transformers.geometry.kernels import on_device
from equivariant_transformers.nn.visibility import FADE, Window

MOST_CHANNELS = 8
MOST_SAMPLES = 8192  # per channel


@triton.jit
def _standardise(
    images,
    valid,
    radii,
    longest,
    result,
    valid_n,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    orbits: tl.constexpr,
    fade: tl.constexpr,
    compute: tl.constexpr,
):
    """Standardise samples `(channels, height, width)` of an image; rows of all sheets are rows of one picture."""
    batch = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, height)
    column = tl.arange(0, width)
    place = row[:, None] * width + column[None, :]
    shown = tl.load(valid + batch * valid_n + place).to(tl.int32)
    if orbits is None:
        weights = shown.to(compute)
    else:  # the radius of each row, or of each column
        along = row if orbits == 1 else column
        radius = tl.load(radii + along).to(compute)
        whole = tl.min(shown, orbits) == 1
        largest = tl.maximum(tl.min(tl.where(whole, tl.load(longest).to(compute), radius), 0), 1e-6)
        weight = tl.minimum(tl.maximum((1 - radius / largest) / fade, 0.0), 1.0)
        weights = tl.zeros((height, width), compute) + (weight[:, None] if orbits == 1 else weight[None, :])
    total = tl.maximum(tl.sum(weights), 1e-6)
    images += batch * channels * height * width
    result += batch * channels * height * width
    variance = total * 0
    for channel in tl.static_range(channels):
        values = tl.load(images + channel * height * width + place).to(compute)
        centred = values - tl.sum(values * weights) / total
        variance += tl.sum(centred * centred * weights)
    factor = 1 / tl.sqrt(variance / (channels * total) + 1e-6)
    for channel in tl.static_range(channels):
        values = tl.load(images + channel * height * width + place).to(compute)
        centred = values - tl.sum(values * weights) / total
        tl.store(result + channel * height * width + place, (centred * weights * factor).to(result.dtype.element_ty))


def fits(images: Tensor, window: Window) -> bool:
    """Return True if the kernel can standardise `images` `(B, C, sheets, H, W)` weighted by `window`."""
    _, channels, sheets, height, width = images.shape
    powers = all(side & (side - 1) == 0 for side in (sheets * height, width))
    small = channels <= MOST_CHANNELS and sheets * height * width <= MOST_SAMPLES
    return powers and small and images.numel() > 0 and (sheets == 1 or not window.circular)


def standardised(images: Tensor, valid: Tensor, window: Window) -> Tensor:
    """Return `images` `(B, C, sheets, H, W)` weighted and standardised, see `kernels.standardised`."""
    batch, channels, sheets, height, width = images.shape
    images, valid = images.contiguous(), valid.contiguous()
    result = torch.empty_like(images)
    orbits = None if not window.circular else 1 if window.around == -1 else 0
    compute = tl.float64 if images.dtype == torch.float64 else tl.float32
    with on_device(images):
        _standardise[(batch,)](
            images, valid, window.radii, window.longest, result, 0 if len(valid) == 1 else valid[0].numel(), channels,
            sheets * height, width, orbits, FADE, compute, num_warps=8,
        )  # fmt: skip
    return result
