"""Smooth random colour pictures that fill their frame and have no preferred direction: stand-ins for photographs."""

import torch
import torch.nn.functional as F  # noqa: N812


def textures(count=4, size=(96, 96), seed=0):
    """`(count, 3, *size)`, with detail of about six pixels."""
    noise = torch.randn(count, 3, size[0] // 6, size[1] // 6, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, size, mode="bicubic", align_corners=True)
