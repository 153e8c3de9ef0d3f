"""Drawn houses with masks, boxes and keypoints, for `segmentation.py` and `detection.py`. They are not square."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import equivariant_transformers as et

SIZE = (48, 64)  # height and width
PARTS = ("roof", "door")


@dataclass(frozen=True)
class Houses:
    """Pictures with a house of any colours on a textured ground. Points and boxes are in pixels."""

    images: Tensor
    """Pictures `(N, 3, H, W)` from 0 to 1."""
    masks: Tensor
    """Masks `(N, 2, H, W)` of the roof and of the door, boolean."""
    boxes: Tensor
    """Boxes `(N, 2, 4)` of both, as (left, top, right, bottom)."""
    tops: Tensor
    """Keypoint `(N, 1, 2)`: the top of the roof."""

    def seen_through(self, warp: et.Warp) -> Houses:
        """Return the pictures warped by `warp`, with everything that belongs to them."""
        back = warp.inverse()
        images = warp.image(self.images, padding="reflection")
        boxes, tops = back.boxes(self.boxes, size=SIZE), back.points(self.tops, size=SIZE)
        return Houses(images, warp.mask(self.masks), boxes, tops)

    def take(self, indices: Tensor) -> Houses:
        """Return the houses at `indices`."""
        return Houses(self.images[indices], self.masks[indices], self.boxes[indices], self.tops[indices])


def draw(count: int, *, seed: int) -> Houses:
    """Draw upright houses at random places near the centre."""
    generator = torch.Generator().manual_seed(seed)
    height, width = SIZE
    y, x = torch.meshgrid(torch.arange(height) - (height - 1) / 2, torch.arange(width) - (width - 1) / 2, indexing="ij")

    def number(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    middle_x, middle_y = number(-3, 3), number(-3, 3)
    half, wall, rise, door = number(8, 10), number(5, 8), number(9, 12), number(-4, 4)
    x, y = x - middle_x, y - middle_y  # (N, H, W), in pixels from the middle of the house
    top, bottom, eaves = -rise, wall + 2, torch.full_like(rise, 2.0)
    walls = (x.abs() < half - 1) & (y >= eaves) & (y < bottom)
    roof = (y < eaves) & (y > top) & (x.abs() < half * (y - top) / (eaves - top))
    opening = ((x - door).abs() < 2) & (y > bottom - 5.5) & (y < bottom)
    ground = F.interpolate(torch.rand(count, 3, 6, 8, generator=generator), SIZE, mode="bilinear") * 0.4
    images = ground + 0.1 * torch.rand(count, 3, height, width, generator=generator)
    for part in (walls, roof, opening):
        colour = 0.3 + 0.7 * torch.rand(count, 3, 1, 1, generator=generator)
        images = torch.where(part[:, None], colour, images)
    across, down = middle_x + (width - 1) / 2, middle_y + (height - 1) / 2
    roofs = torch.cat((across - half, down + top, across + half, down + eaves), 2)
    doors = torch.cat((across + door - 2, down + bottom - 5.5, across + door + 2, down + bottom), 2)
    tops = torch.cat((across, down + top), 2)
    return Houses(images, torch.stack((roof, opening), 1), torch.cat((roofs, doors), 1), tops)


def turn(houses: Houses, largest: float, *, seed: int | None = None) -> Houses:
    """Return `houses` turned by random angles up to `largest`, in radians."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    angles = largest * (2 * torch.rand(len(houses.images), generator=generator) - 1)
    return houses.seen_through(et.Warp.projective(et.group("rotation").matrix(angles)))


class Dense(nn.Module):
    """Small network from pictures `(B, 3, H, W)` to maps `(B, out_channels, H, W)`."""

    def __init__(self, out_channels: int, channels: int = 16) -> None:
        super().__init__()
        self.fine = _block(3, channels)
        self.coarse = nn.Sequential(nn.MaxPool2d(2), _block(channels, 2 * channels))
        self.coarsest = nn.Sequential(nn.MaxPool2d(4), _block(2 * channels, 2 * channels))
        self.head = nn.Conv2d(5 * channels, out_channels, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images)
        coarse = self.coarse(fine)
        levels = [fine, coarse, self.coarsest(coarse)]
        return self.head(torch.cat([F.interpolate(level, images.shape[-2:], mode="bilinear") for level in levels], 1))


def _block(in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
    )  # fmt: skip


def train_network(
    channels: int, houses: Houses, loss: Callable[[Tensor, Houses], Tensor], steps: int, *, largest: float
) -> Dense:
    """Return a network that is trained on `houses`, turned by up to `largest` radians."""
    torch.manual_seed(0)
    network = Dense(channels)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(steps):
        batch = turn(houses.take(torch.randint(len(houses.images), (16,))), largest)
        optimizer.zero_grad()
        loss(network(batch.images), batch).backward()
        optimizer.step()
        schedule.step()
    return network.eval()


def train_canonicalizer(houses: Houses, steps: int) -> et.Canonicalizer:
    """Return a rotation layer that is trained without labels on the upright pictures."""
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3)
    augmentation = et.Augmentation({"rotation": math.radians(15), "dilation": 0.1})
    optimizer = torch.optim.AdamW(canonicalizer.parameters(), lr=2e-3)
    for _ in range(steps):
        images = houses.images[torch.randint(len(houses.images), (16,))]
        loss = et.alignment_loss(canonicalizer(images, augmentation.random(images)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return canonicalizer.eval()
