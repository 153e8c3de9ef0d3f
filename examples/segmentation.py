"""Segment roofs in turned pictures: canonicalize, predict a mask, and restore the mask with `out.warp`.

python examples/segmentation.py [--out out] [--steps 200]

Trained on upright pictures of houses that are not square, in about a minute on a CPU. The table compares the
intersection over union (IoU) of the masks with that of a network without the layer, on upright and on turned pictures.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from houses import Dense, Houses, draw, train_canonicalizer, train_network, turn
from matplotlib.figure import Figure
from torch import Tensor

import equivariant_transformers as et

Segment = Callable[[Tensor], Tensor]
"""Function from pictures `(B, 3, H, W)` to masks `(B, 1, H, W)`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder to write the picture to")
    parser.add_argument("--steps", type=int, default=200, help="steps of each training")
    given = parser.parse_args()
    houses, upright = draw(256, seed=0), draw(64, seed=1)
    turned = turn(upright, math.pi, seed=2)

    network = train_network(1, houses, loss, given.steps, largest=math.radians(15))
    everywhere = train_network(1, houses, loss, given.steps, largest=math.pi)
    canonicalizer = train_canonicalizer(houses, given.steps)
    ways: dict[str, Segment] = {
        "network": lambda images: network(images) > 0,
        "network, trained on all angles": lambda images: everywhere(images) > 0,
        "network behind a layer": lambda images: segment(network, canonicalizer, images),
    }

    print(f"{'IoU of the roofs':32}  upright  turned")
    for name, way in ways.items():
        print(f"{name:32} {iou(way, upright):8.3f} {iou(way, turned):7.3f}")
    given.out.mkdir(parents=True, exist_ok=True)
    picture = given.out / "segmentation.png"
    show(ways, turned.take(torch.arange(6))).savefig(picture, dpi=120)
    print(picture)


def loss(logits: Tensor, houses: Houses) -> Tensor:
    """Return the loss of logits `(B, 1, H, W)` of the roofs."""
    return F.binary_cross_entropy_with_logits(logits, houses.masks[:, :1].float())


def segment(network: Dense, canonicalizer: et.Canonicalizer, images: Tensor) -> Tensor:
    """Return the masks in the frame of the pictures."""
    out = canonicalizer(images)
    logits = network(out.image)  # in the frame of the canonical images
    return out.warp.restore(logits, fill=-10.0) > 0  # outside of the canonical image there is no roof


@torch.no_grad()
def iou(way: Segment, houses: Houses) -> float:
    """Return the mean intersection over union of the masks of the roofs."""
    found, true = way(houses.images), houses.masks[:, :1]
    both, either = ((found & true).sum((1, 2, 3)), (found | true).sum((1, 2, 3)))
    return (both / either.clamp_min(1)).mean().item()


@torch.no_grad()
def show(ways: dict[str, Segment], houses: Houses) -> Figure:
    """Draw the pictures with the outlines of the masks: a row per way."""
    figure = Figure(figsize=(2 * len(houses.images), 1.8 * len(ways)), layout="constrained")
    axes = figure.subplots(len(ways), len(houses.images), squeeze=False)
    for row, (name, way) in zip(axes, ways.items(), strict=True):
        for cell, image, mask in zip(row, houses.images, way(houses.images)[:, 0], strict=True):
            cell.imshow(image.permute(1, 2, 0))
            if mask.any():
                cell.contour(mask.float(), levels=[0.5], colors="white", linewidths=2)
                cell.contour(mask.float(), levels=[0.5], colors="black", linewidths=1)
            cell.set_axis_off()
        row[0].set_title(name, fontsize=9, loc="left")
    return figure


if __name__ == "__main__":
    main()
