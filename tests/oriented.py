"""Upright arrows on a textured ground, and the error of a canonicalizer on rotated copies of them."""

import math

import torch
import torch.nn.functional as F  # noqa: N812

import equivariant_transformers as et
from equivariant_transformers.data import ImageSet


def arrows(count, seed, side=32):
    """Return colour images of arrows that point up, long (class 1) or short (class 0), of any colour and place."""
    generator = torch.Generator().manual_seed(seed)
    ground = torch.rand(count, 3, side // 4, side // 4, generator=generator)
    images = 80 + 60 * F.interpolate(ground, (side, side), mode="bilinear")
    labels = torch.randint(2, (count,), generator=generator)
    shift = 0.12 * (2 * torch.rand(count, 2, generator=generator) - 1)
    colour = 40 + 60 * torch.rand(count, 3, generator=generator)
    ticks = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    for image, label, (dx, dy), shade in zip(images, labels, shift, colour, strict=True):
        u, v = (x - dx).abs(), y - dy
        reach = 0.5 + 0.15 * label
        shaft = (u < 0.1) & (v > -reach) & (v < reach)
        head = (v > -reach) & (v < -reach + 0.45) & (u < 0.9 * (v + reach))
        image[:, shaft | head] += shade[:, None]
    images = images.clamp(0, 255).to(torch.uint8)
    return ImageSet(images=images, labels=labels, name="arrows", mean=(120.0,), std=(50.0,), classes=("short", "long"))


@torch.no_grad()
def median_error(canonicalizer, images):
    """Return the median angle in degrees between an image and the canonical image of its rotated copy."""
    canonicalizer.eval()
    angles = torch.linspace(-math.pi, math.pi, len(images) + 1)[:-1]
    turned = et.Warp.projective(et.group("rotation").matrix(angles)).image(images.normalise(images.images), fill=0.0)
    wrong = canonicalizer(turned).pose[:, 0] - angles
    return torch.rad2deg(torch.atan2(wrong.sin(), wrong.cos()).abs()).median().item()
