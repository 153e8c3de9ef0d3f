"""Detect roofs and doors, and the top of each roof, in turned pictures: predict upright, and map boxes and points back.

python examples/detection.py [--out out] [--steps 200]

Trained on upright pictures of houses that are not square, in about a minute on a CPU. The table compares the boxes and
the keypoint with those of a network without the layer, on upright and on turned pictures.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from houses import PARTS, SIZE, Dense, Houses, draw, train_canonicalizer, train_network, turn
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

import equivariant_transformers as et

Detect = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function from pictures `(B, 3, H, W)` to boxes `(B, 2, 4)` and keypoints `(B, 1, 2)` in pixels."""
CHANNELS = 3 + 4  # heatmaps of the centres of the boxes and of the keypoint; widths and heights of the boxes
COLOURS = ("white", "yellow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder to write the picture to")
    parser.add_argument("--steps", type=int, default=200, help="steps of each training")
    given = parser.parse_args()
    houses, upright = draw(256, seed=0), draw(64, seed=1)
    turned = turn(upright, math.pi, seed=2)

    network = train_network(CHANNELS, houses, loss, given.steps, largest=math.radians(15))
    everywhere = train_network(CHANNELS, houses, loss, given.steps, largest=math.pi)
    canonicalizer = train_canonicalizer(houses, given.steps)
    ways: dict[str, Detect] = {
        "network": lambda images: read(network(images)),
        "network, trained on all angles": lambda images: read(everywhere(images)),
        "network behind a layer": lambda images: detect(network, canonicalizer, images),
    }

    print(f"{'':32}  IoU of the boxes    keypoint within 3 pixels")
    print(f"{'':32}  upright   turned    upright   turned")
    for name, way in ways.items():
        (box, key), (turned_box, turned_key) = (score(way, part) for part in (upright, turned))
        print(f"{name:32} {box:8.3f} {turned_box:8.3f} {key:9.1%} {turned_key:8.1%}")
    given.out.mkdir(parents=True, exist_ok=True)
    picture = given.out / "detection.png"
    show(ways, turned.take(torch.arange(6))).savefig(picture, dpi=120)
    print(picture)


def detect(network: Dense, canonicalizer: et.Canonicalizer, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return boxes and keypoints in the frame of the pictures."""
    out = canonicalizer(images)
    boxes, points = read(network(out.image))  # in the frame of the canonical images
    return out.warp.boxes(boxes, size=SIZE), out.warp.points(points, size=SIZE)


def read(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the boxes and the keypoints with the highest scores in maps `(B, 7, H, W)`."""
    places = maps[:, :3].flatten(2).argmax(2)  # (B, 3)
    points = torch.stack((places % SIZE[1], places // SIZE[1]), 2).float()
    sizes = maps[:, 3:].reshape(len(maps), 2, 2, -1)  # (B, box, width or height, H W)
    half = sizes.gather(3, places[:, :2, None, None].expand(-1, -1, 2, -1))[..., 0].exp() / 2
    return torch.cat((points[:, :2] - half, points[:, :2] + half), 2), points[:, 2:]


def loss(maps: Tensor, houses: Houses) -> Tensor:
    """Return the loss of the scores of all pixels, and of the logarithmic sizes at the true centres."""
    low, high = houses.boxes.split(2, 2)
    points = torch.cat(((low + high) / 2, houses.tops), 1).round().long()  # (B, 3, 2)
    limits = torch.tensor((SIZE[1] - 1, SIZE[0] - 1))
    places = (points.clamp_min(0).minimum(limits) * torch.tensor((1, SIZE[1]))).sum(2)
    scores = F.cross_entropy(maps[:, :3].flatten(2).flatten(0, 1), places.flatten())
    sizes = maps[:, 3:].reshape(len(maps), 2, 2, -1)
    found = sizes.gather(3, places[:, :2, None, None].expand(-1, -1, 2, -1))[..., 0]
    return scores + 3 * F.smooth_l1_loss(found, (high - low).log(), beta=0.1)


@torch.no_grad()
def score(way: Detect, houses: Houses) -> tuple[float, float]:
    """Return the mean intersection over union of the boxes, and the share of keypoints within 3 pixels."""
    boxes, points = way(houses.images)
    near = (points - houses.tops).norm(dim=-1) < 3
    return iou(boxes, houses.boxes).mean().item(), near.float().mean().item()


def iou(one: Tensor, other: Tensor) -> Tensor:
    """Return the intersection over union of boxes `(..., 4)`."""
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    both = (high - low).clamp_min(0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (one, other)]
    return both / (areas[0] + areas[1] - both)


@torch.no_grad()
def show(ways: dict[str, Detect], houses: Houses) -> Figure:
    """Draw the pictures with boxes and keypoints: a row per way."""
    figure = Figure(figsize=(2 * len(houses.images), 1.8 * len(ways)), layout="constrained")
    axes = figure.subplots(len(ways), len(houses.images), squeeze=False)
    for row, (name, way) in zip(axes, ways.items(), strict=True):
        for cell, image, boxes, points in zip(row, houses.images, *way(houses.images), strict=True):
            cell.imshow(image.permute(1, 2, 0))
            for (left, top, right, bottom), colour in zip(boxes.tolist(), COLOURS, strict=True):
                box = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=1.5)
                cell.add_patch(box)
            cell.plot(*points[0].tolist(), "o", color="red", markersize=4)
            cell.set_axis_off()
        row[0].set_title(name, fontsize=9, loc="left")
    legend = ", ".join(f"{part} {colour}" for part, colour in zip(PARTS, COLOURS, strict=True))
    figure.supxlabel(f"{legend}, top of the roof red", fontsize=9)
    return figure


if __name__ == "__main__":
    main()
