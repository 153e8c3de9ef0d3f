"""Rotated MNIST, MNIST-RTS and SIM2MNIST, generated from MNIST by their published recipes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.imageset import Splits
from equivariant_transformers.data.mnist_set import Digits, digits
from equivariant_transformers.data.synthesis import TRANSLATIONS, image_set, placed, uniform


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Recipe for the rotation, scale and position of the digits of a data set."""

    name: str
    size: int
    """Side of the canvas in pixels."""
    counts: tuple[int, int, int]
    """Number of images for training, validation and test."""
    pooled: bool
    """True to draw all parts from all digits of MNIST, False to use MNIST's test digits for the test only."""
    turn: float
    """Largest angle in either direction, in radians."""
    scales: tuple[float, float] | None = None
    """Range of scales. If given, the digits are also placed at random positions on the canvas."""

    @property
    def pose_names(self) -> tuple[str, ...]:
        return ("rotation",) if self.scales is None else ("dilation", "rotation", *TRANSLATIONS)


ROTATED = Recipe(name="Rotated MNIST", size=28, counts=(10_000, 2_000, 50_000), pooled=True, turn=math.pi)
RTS = Recipe(
    name="MNIST-RTS", size=42, counts=(55_000, 5_000, 10_000), pooled=False, turn=math.pi / 4, scales=(0.7, 1.2)
)
SIM2 = Recipe(
    name="SIM2MNIST without clutter",
    size=96,
    counts=(10_000, 5_000, 50_000),
    pooled=True,
    turn=math.pi,
    scales=(1.0, 2.4),
)


def by_recipe(
    recipe: Recipe,
    root: str | Path | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> Splits:
    """Generate the data set of a `recipe`, with poses. `root` is the `root` of `mnist_set.digits`."""
    generator = torch.Generator().manual_seed(seed)
    base = _choose(recipe, digits(root, progress=progress), generator)
    poses = _draw_poses(recipe, base, generator)
    make = partial(
        image_set,
        pose_names=recipe.pose_names,
        size=recipe.size,
        name=recipe.name,
        origin="regenerated from MNIST by the published recipe",
        device=device,
        progress=progress,
    )
    first, second, last = accumulate(recipe.counts)
    train = make(base.take(slice(first)), poses[:first])
    validation, test = (
        make(base.take(part), poses[part], normalisation=(train.mean, train.std))
        for part in (slice(first, second), slice(second, last))
    )
    return Splits(train, validation, test)


rotated_mnist = partial(by_recipe, ROTATED)
"""Digits rotated by any angle, on 28 x 28 pixels: 12,000 for training and validation, 50,000 for the test."""
mnist_rts = partial(by_recipe, RTS)
"""Digits rotated by up to 45 degrees, scaled by 0.7 to 1.2 and translated, on 42 x 42 pixels."""
sim2mnist = partial(by_recipe, SIM2)
"""Digits rotated by any angle, scaled by 1 to 2.4 and translated, on 96 x 96 pixels. The original has clutter too."""


def _choose(recipe: Recipe, parts: tuple[Digits, Digits], generator: torch.Generator) -> Digits:
    """Choose the digits of a `recipe` without repetition, for training, validation and test in this order."""
    train, test = parts
    learned, tested = sum(recipe.counts[:2]), recipe.counts[2]
    if recipe.pooled:
        order = torch.randperm(len(train.labels) + len(test.labels), generator=generator)
        return _joined(train, test).take(order[: learned + tested])
    order = torch.randperm(len(train.labels), generator=generator)
    return _joined(train.take(order[:learned]), test.take(slice(tested)))


def _joined(one: Digits, other: Digits) -> Digits:
    return Digits(torch.cat((one.images, other.images)), torch.cat((one.labels, other.labels)))


def _draw_poses(recipe: Recipe, base: Digits, generator: torch.Generator) -> Tensor:
    turns = uniform(len(base.labels), [(-recipe.turn, recipe.turn)], generator)
    if recipe.scales is None:
        return turns
    draws = uniform(len(base.labels), [recipe.scales, (0.0, 1.0), (0.0, 1.0)], generator)
    similarities = torch.cat((-draws[:, :1].log(), turns), -1)
    places = placed(base.images, similarities, recipe.pose_names[:2], draws[:, 1:], size=recipe.size)
    return torch.cat((similarities, places), -1)
