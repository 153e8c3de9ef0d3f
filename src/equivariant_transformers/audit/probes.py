"""Images and transformations for audits: content on a canvas or in a fixed frame, and typical ranges of theta."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from equivariant_transformers.audit.rendering import pixel_pitch
from equivariant_transformers.geometry.frame import pixel_centres
from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.motion import group_warp

THETA: dict[str, tuple[float, float]] = {
    "x_translation": (-0.5, 0.5),
    "y_translation": (-0.5, 0.5),
    "rotation": (-math.pi, math.pi),
    "dilation": (-math.log(2), 0.0),
    "x_scale": (-math.log(2), 0.0),
    "y_scale": (-math.log(2), 0.0),
    "hyperbolic_rotation": (-math.log(1.5), math.log(1.5)),
    "x_shear": (-1.5, 1.5),
    "y_shear": (-1.5, 1.5),
    "x_perspective": (-0.6, 0.6),
    "y_perspective": (-0.6, 0.6),
}
"""Range of theta for each group, as in the paper's table; dilation and scales only over the half that enlarges."""

MAX_THETA: dict[str, float] = {
    "x_translation": 0.4,
    "y_translation": 0.4,
    "rotation": math.pi,
    "dilation": 0.34,
    "x_scale": 0.34,
    "y_scale": 0.34,
    "hyperbolic_rotation": 0.34,
    "x_shear": 0.4,
    "y_shear": 0.4,
    "x_perspective": 0.29,
    "y_perspective": 0.29,
}
"""Largest theta of each group at which content fills a square frame with a crop of 1/sqrt(2).

The anti-aliasing filter needs a slightly smaller crop, see `filling_crop`."""

_MARGIN = 2  # pixels around a frame that the anti-aliasing filter reads

_SHARE = (28, 64)
"""Fraction of the canvas filled by the longer side of an image, as for a digit in Projective MNIST."""


def on_canvas(images: Tensor, pixels: int, fill: float = 0.0) -> Tensor:
    """Return `images` `(B, C, H, W)` resized and centred on a canvas `(B, C, pixels, pixels)`, with values from 0 to 1.

    Values are rescaled so that 0 becomes `fill` and 1 stays 1.

    >>> on_canvas(torch.ones(1, 1, 28, 28), 64).sum().item() == 28 * 28
    True
    """
    height, width = images.shape[-2:]
    inner = pixels * _SHARE[0] // _SHARE[1]
    size = (round(inner * height / max(height, width)), round(inner * width / max(height, width)))
    enlarged = F.interpolate(images, size, mode="bicubic").clamp(0, 1)
    top, left = (pixels - size[0]) // 2, (pixels - size[1]) // 2
    canvas = F.pad(enlarged, (left, pixels - size[1] - left, top, pixels - size[0] - top))
    return fill + (1 - fill) * canvas


def fills_frame(images: Tensor) -> bool:
    """Return whether content reaches the border of most `images` `(B, C, H, W)`, as in photographs.

    The standard deviation of the border pixels is then above a tenth of the standard deviation of the image.

    >>> fills_frame(torch.rand(4, 1, 28, 28)), fills_frame(on_canvas(torch.rand(4, 1, 28, 28), 64))
    (True, False)
    """
    sides = (images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1])
    border = torch.cat(sides, -1).std(-1, correction=0)  # (B, C)
    uneven = border > 0.1 * images.flatten(2).std(-1, correction=0)
    return bool(uneven.any(1).double().mean() > 0.5)


def filling_crop(acting: Group, theta: Tensor, size: tuple[int, int]) -> float:
    r"""Return the largest crop at which content fills a frame of `size` (H, W) under $T_\theta$, for all theta `(n,)`.

    Two pixels around the frame are filled as well, because anti-aliasing reads them.

    >>> from equivariant_transformers.geometry.groups import group
    >>> round(filling_crop(group("rotation"), torch.tensor([0.0, torch.pi / 4]), (401, 401)), 3)
    0.7
    """
    x, y = pixel_centres(size, theta.dtype, theta.device)
    grid = torch.stack(torch.broadcast_tensors(x, y), -1)  # type: ignore[no-untyped-call]
    border = torch.cat((grid[:, 0], grid[:, -1], grid[:, :, 0], grid[:, :, -1]), 1)  # (1, points, 2)
    half = torch.stack((x.abs().max(), y.abs().max())).clamp_min(1e-6)
    wide = border * (1 + _MARGIN * torch.tensor(pixel_pitch(size), dtype=theta.dtype, device=theta.device) / half)
    reach = (group_warp(acting, theta).points(wide).abs() / half).max()
    return 1 / max(1.0, float(reach))
