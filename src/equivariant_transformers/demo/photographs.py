"""Photographs that the layer `upright` turns back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from equivariant_transformers.data import pictures
from equivariant_transformers.data.projective_mnist_set import POSE_NAMES
from equivariant_transformers.data.synthesis import pose_matrix
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.hub.zoo import pretrained
from equivariant_transformers.nn.canonicalizer import Canonicalizer

SIDE = 192
"""Side of a photograph in pixels."""
NAMES = ("Rocket", "Camera", "Officer", "Coffee", "Cat")
"""Names of the samples."""
_REDUCTION = 3  # the layer reads 64 x 64 pixels


class Uprighting(nn.Module):
    """Photographs in a pose, and the same photographs after a rotation layer, each sampled once from the original.

    Args:
        canonicalizer: rotation layer for photographs, such as `et.pretrained("upright")`.
    """

    def __init__(self, canonicalizer: Canonicalizer) -> None:
        super().__init__()
        self.canonicalizer = canonicalizer

    def forward(self, source: Tensor, pose: Tensor) -> dict[str, Tensor]:
        """Return the images before and after the layer as bytes, and the predicted rotation `(B, 1)`.

        Args:
            source: photographs `(B, 3, SIDE, SIDE)` of bytes.
            pose: parameters `(B, 6)` of the groups of Projective MNIST.
        """
        photographs = source / 255
        view = Warp.projective(pose_matrix(pose, POSE_NAMES))
        distorted = view.image(photographs, padding="border")
        out = self.canonicalizer(avg_pool2d(distorted, _REDUCTION))
        canonical = (view @ out.warp).image(photographs, padding="border")
        return {"distorted": _bytes(distorted), "canonical": _bytes(canonical), "predicted": out.pose}


def uprighting() -> Uprighting:
    """Return the network for photographs, with the pretrained layer `upright`."""
    canonicalizer = pretrained("upright")
    assert isinstance(canonicalizer, Canonicalizer)
    return Uprighting(canonicalizer).eval()


def samples() -> Tensor:
    """Return the sample photographs `(5, 3, SIDE, SIDE)` of bytes; `photographs.txt` names their authors."""
    with Image.open(Path(__file__).with_name("photographs.jpg")) as strip:
        return torch.tensor(np.asarray(strip)).permute(2, 0, 1).unfold(2, SIDE, SIDE).permute(2, 0, 1, 3).contiguous()


def to_photograph(picture: Image.Image) -> Tensor:
    """Return the centre of a picture as a photograph `(3, SIDE, SIDE)` of bytes, transparent pixels on black.

    A rotation layer reads the largest circle in an image, which the central square contains.
    """
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = pictures.opaque(pictures.eight_bits(picture.crop((left, top, left + side, top + side)))).convert("RGB")
    return torch.tensor(np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BOX))).permute(2, 0, 1).contiguous()


def _bytes(images: Tensor) -> Tensor:
    return (255 * images).round().clamp(0, 255).to(torch.uint8)
