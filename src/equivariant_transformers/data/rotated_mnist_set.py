"""Rotated MNIST, MNIST-RTS, SIM2MNIST, RS-MNIST and Scale-MNIST, generated from MNIST by their published recipes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from equivariant_transformers.data import cache
from equivariant_transformers.data.amat import read_amat
from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.imageset import ImageSet, Splits, statistics
from equivariant_transformers.data.mnist_set import Digits, digits
from equivariant_transformers.data.synthesis import TRANSLATIONS, image_set, placed, uniform

OFFICIAL = (
    "mnist_all_rotation_normalized_float_train_valid.amat",
    "mnist_all_rotation_normalized_float_test.amat",
)
"""Names of the official files of Rotated MNIST."""


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
    turn: float = 0.0
    """Largest angle in either direction, in radians; 0 for no rotation."""
    scales: tuple[float, float] | None = None
    """Range of scales; None for no scaling."""
    moved: bool = False
    """True to place the digits at random positions on the canvas, False to keep them in the centre."""
    enlarged: int = 1
    """Factor by which the finished images are enlarged."""

    @property
    def pose_names(self) -> tuple[str, ...]:
        names = ("dilation",) * (self.scales is not None) + ("rotation",) * bool(self.turn)
        return names + TRANSLATIONS * self.moved


ROTATED = Recipe(name="Rotated MNIST", size=28, counts=(10_000, 2_000, 50_000), pooled=True, turn=math.pi)
RTS = Recipe(
    name="MNIST-RTS",
    size=42,
    counts=(55_000, 5_000, 10_000),
    pooled=False,
    turn=math.pi / 4,
    scales=(0.7, 1.2),
    moved=True,
)
SIM2 = Recipe(
    name="SIM2MNIST without clutter",
    size=96,
    counts=(10_000, 5_000, 50_000),
    pooled=True,
    turn=math.pi,
    scales=(1.0, 2.4),
    moved=True,
)
RS = Recipe(
    name="RS-MNIST",
    size=28,
    counts=(5_000, 2_000, 50_000),
    pooled=True,
    turn=math.pi,
    scales=(0.3, 1.0),
    enlarged=2,
)
SCALE = Recipe(name="Scale-MNIST", size=28, counts=(10_000, 2_000, 50_000), pooled=True, scales=(0.3, 1.0))


def by_recipe(
    recipe: Recipe,
    root: str | Path | None = None,
    *,
    examples: int | None = None,
    test_examples: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> Splits:
    """Generate the data set of a `recipe`, with poses.

    A set with fewer images is a subset of a larger set. The normalisation is that of the training images in use.

    Args:
        recipe: rotation, scale and position of the digits.
        root: folder of MNIST's files; see `mnist_set.digits`.
        examples: number of training images; the recipe's number by default.
        test_examples: number of test images; the recipe's number by default.
        seed: random seed for digits and transformations.
        device: device on which the images are generated and stored.
        progress: callback that receives the current task and its completed fraction.
    """
    counts = [
        _at_most("examples", examples, recipe.counts[0]),
        recipe.counts[1],
        _at_most("test_examples", test_examples, recipe.counts[2]),
    ]
    generator = torch.Generator().manual_seed(seed)
    base = _choose(recipe, digits(root, progress=progress), generator)
    poses = _draw_poses(recipe, base, generator)
    make = partial(_made, recipe, device=device, progress=progress)
    starts = (0, *accumulate(recipe.counts))
    parts = [slice(start, start + count) for start, count in zip(starts, counts, strict=False)]
    train = make(base.take(parts[0]), poses[parts[0]])
    normalisation = (train.mean, train.std)
    validation, test = (make(base.take(part), poses[part], normalisation=normalisation) for part in parts[1:])
    return Splits(train, validation, test)


def _made(recipe: Recipe, base: Digits, poses: Tensor, **options: Any) -> ImageSet:
    made = image_set(
        base,
        poses,
        recipe.pose_names,
        size=recipe.size,
        name=recipe.name,
        origin="regenerated from MNIST by the published recipe",
        **options,
    )
    if recipe.enlarged == 1:
        return made
    side = recipe.enlarged * recipe.size
    images = torch.empty(len(made), 1, side, side, dtype=torch.uint8, device=made.images.device)
    for start in range(0, len(made), 4096):
        some = made.images[start : start + 4096].float()
        # Corner pixels keep their place in the plane, so that the poses stay the same.
        large = interpolate(some, size=(side, side), mode="bilinear", align_corners=True)
        images[start : start + 4096] = large.round().to(torch.uint8)
    mean, std = options.get("normalisation") or statistics(images)
    return replace(made, images=images, mean=mean, std=std)


def _at_most(name: str, value: int | None, most: int) -> int:
    if value is not None and not 1 <= value <= most:
        raise ValueError(f"{name} must be from 1 to {most:,}, got {value}")
    return most if value is None else value


def rotated_mnist(
    root: str | Path | None = None,
    *,
    files: str | Path | None = None,
    examples: int | None = None,
    test_examples: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> Splits:
    """Return digits rotated by any angle, on 28 x 28 pixels: 12,000 for training and validation, 50,000 for the test.

    The images are read from the official files if they exist, and generated by `by_recipe` otherwise. The field
    `origin` records their source. `files` is the folder of the official files, `rotated-mnist` in the cache directory
    by default. The other arguments are those of `by_recipe`.
    """
    home = cache.root() / "rotated-mnist" if files is None else Path(files)
    paths = [home / file for file in OFFICIAL]
    if not all(path.is_file() for path in paths):
        if files is not None:
            raise FileNotFoundError(f"{home} contains no {' or no '.join(OFFICIAL)}: put both files there")
        return by_recipe(
            ROTATED,
            root,
            examples=examples,
            test_examples=test_examples,
            seed=seed,
            device=device,
            progress=progress,
        )
    first, second, last = ROTATED.counts
    learned, tested = (read_amat(path, count) for path, count in zip(paths, (first + second, last), strict=True))
    mean, std = statistics(learned.images[:first, None])
    train, validation, test = (
        ImageSet(
            images=part.images[:, None].to(device),
            labels=part.labels.to(device),
            name=ROTATED.name,
            origin="official files of Rotated MNIST",
            mean=mean,
            std=std,
        )
        for part in (
            learned.take(slice(_at_most("examples", examples, first))),
            learned.take(slice(first, None)),
            tested.take(slice(_at_most("test_examples", test_examples, last))),
        )
    )
    return Splits(train, validation, test)


mnist_rts = partial(by_recipe, RTS)
"""Digits rotated by up to 45 degrees, scaled by 0.7 to 1.2 and translated, on 42 x 42 pixels."""
sim2mnist = partial(by_recipe, SIM2)
"""Digits rotated by any angle, scaled by 1 to 2.4 and translated, on 96 x 96 pixels. The original has clutter too."""

rs_mnist = partial(by_recipe, RS)
"""Digits rotated by any angle and scaled by 0.3 to 1, enlarged to 56 x 56 pixels, with 5,000 for training."""
scale_mnist = partial(by_recipe, SCALE)
"""Digits scaled by 0.3 to 1, on 28 x 28 pixels, with 10,000 for training."""


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
    columns: list[Tensor] = []
    if recipe.turn:
        columns.append(uniform(len(base.labels), [(-recipe.turn, recipe.turn)], generator))
    if recipe.scales is None:
        return columns[0]
    draws = uniform(len(base.labels), [recipe.scales, (0.0, 1.0), (0.0, 1.0)], generator)
    similarities = torch.cat((-draws[:, :1].log(), *columns), -1)
    if not recipe.moved:
        return similarities
    places = placed(base.images, similarities, recipe.pose_names[:-2], draws[:, 1:], size=recipe.size)
    return torch.cat((similarities, places), -1)
