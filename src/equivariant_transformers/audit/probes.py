"""Images and transformations for audits: content in the centre of a canvas, and typical ranges of theta."""

from __future__ import annotations

import math

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

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

_SHARE = (28, 64)
"""Fraction of the canvas filled by the longer side of an image, as for a digit in Projective MNIST."""


def on_canvas(images: Tensor, pixels: int, fill: float = 0.0) -> Tensor:
    """Return `images` `(B, C, H, W)` resized and centred on a canvas `(B, C, pixels, pixels)`, with values from 0 to 1.

    Values are rescaled so that 0 becomes `fill` and 1 stays 1.

    >>> import torch
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
