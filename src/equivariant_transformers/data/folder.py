"""Image sets from a folder with a subfolder per class, or from any torchvision-style data set."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.imageset import ImageSet, Splits, statistics
from equivariant_transformers.data.targets import Target, count_classes, fits, read_target, stack, strata, wanted
from equivariant_transformers.data.tree import scan, usual_side
from equivariant_transformers.limits import MOST_SIDE
from equivariant_transformers.text import quote, visible

ORIGIN = "the user's own images"
NAMED_AT_MOST = 10
VALIDATION, TEST = 0.1, 0.2
"""Fractions of the images that are held out by default."""

Examples = tuple[Tensor, Tensor]
"""Images `(N, C, H, W)`, uint8, and labels `(N,)` or `(N, K)`."""


class Dataset(Protocol):
    """Interface of torchvision's data sets: indexed pairs (image, class number)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def from_folder(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    validation: float = VALIDATION,
    test: float = TEST,
    seed: int = 0,
    labels: bool = True,
    progress: Report | None = None,
) -> Splits:
    """Load the images in a folder. The name of each subfolder is a class.

    Images of any format and size are resized with their aspect ratio kept and padded with their border pixels. Hidden
    files are ignored. Files that cannot be read as an image are skipped, and a warning lists them. The mean and the
    standard deviation are computed from the training part.

    Args:
        path: folder of class folders, or folder with the subfolders `train`, and `validation` or `test`, of class
            folders.
        size: (height, width) of the images, or the side of square images. Default: the median shorter side of the
            files, rounded to a multiple of 32, from 64 to 224.
        channels: number of channels, 1 for greyscale or 3 for colour.
        validation: fraction of the training images to hold out for validation if there is no folder `validation`.
        test: fraction to hold out for the test if there is no folder `test`. Both splits are stratified by class.
        seed: random seed for the choice of the held-out images.
        labels: False for a folder of images without classes, in subfolders or not. All labels are then 0.
        progress: callback that receives the current task and its completed fraction.
    """
    tree = scan(path, labels=labels)
    path, classes, broken = tree.root, tree.classes, list(tree.unlisted)
    if size is None:
        size = usual_side(tree.parts["train"])
    shape = (size, size) if isinstance(size, int) else size
    parts = {part: _read(path, found, shape, channels, broken, progress) for part, found in tree.parts.items()}
    if broken:
        more = f" and {len(broken) - NAMED_AT_MOST} more" if len(broken) > NAMED_AT_MOST else ""
        listed = "; ".join(broken[:NAMED_AT_MOST])
        warnings.warn(f"skipped {len(broken)} files that are not readable images: {listed}{more}", stacklevel=2)
    seen = {label for _, labels in parts.values() for label in labels.tolist()}
    empty = [name for label, name in enumerate(classes) if label not in seen]
    if empty and labels:
        listed = visible(", ".join(empty[:NAMED_AT_MOST])) + (", ..." if len(empty) > NAMED_AT_MOST else "")
        raise ValueError(f"no readable image of class {listed} in {path}: add some or remove the folder")
    hollow = [str(tree.folders[part]) for part, (_, labels) in parts.items() if not len(labels)]
    if hollow:
        raise ValueError(f"no readable image in {' and '.join(hollow)}: add some or remove the folder")
    shares = {"validation": validation, "test": test}
    return _splits(parts, shares, seed, name=path.resolve().name, classes=classes)


def from_dataset(
    dataset: Dataset,
    *,
    validation: Dataset | float = 0.1,
    test: Dataset | float = 0.2,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> Splits:
    """Load any data set whose items are (image, class number), as in torchvision, with at most 100,000 classes.

    For multi-label classification and regression, the second part of an item is a row of numbers, with a name in
    `classes` for each number: 0 and 1 for absent and present labels, or any values. A single value is a float.

    An image is a Pillow image, a tensor `(C, H, W)` or an array `(H, W, C)`, of type uint8 or floating point from 0 to
    1. The images must not be normalised, because the image set normalises them.

    >>> digits = [(torch.full((1, 8, 8), i / 10), i % 2) for i in range(10)]
    >>> [len(part) for part in from_dataset(digits, classes=["even", "odd"])]
    [7, 1, 2]

    Args:
        dataset: training part, or the whole data set.
        validation: validation part, or fraction of `dataset` to hold out for validation.
        test: test part, or fraction of `dataset` to hold out for the test. Both splits are stratified by class number.
        size: (height, width) of the images, which are resized and padded as in `from_folder`. Default: size of the
            first image.
        channels: number of channels, 1 or 3. Default: channels of the first image.
        classes: names of the classes, labels or values. Default: `dataset.classes` if it exists, otherwise numbers.
        name: name of the image set. Default: name of the class of `dataset`.
        seed: random seed for the choice of the held-out images.
        progress: callback that receives the current task and its completed fraction.
    """
    from equivariant_transformers.data import pictures

    if not len(dataset):
        raise ValueError("the data set is empty: at least one image is needed")
    first = pictures.to_picture(_item(dataset, 0, "train")[0])
    size = size or (first.height, first.width)
    channels = channels or (1 if len(first.getbands()) == 1 and first.mode != "P" else 3)
    options = {"validation": validation, "test": test}
    shares = {part: found for part, found in options.items() if isinstance(found, (int, float))}
    given = {part: found for part, found in options.items() if not isinstance(found, (int, float))}
    names = classes or getattr(dataset, "classes", None)
    known = None if names is None else tuple(map(str, names))
    target = read_target(_item(dataset, 0, "train")[1])
    parts = {
        part: _collect(found, part, size, channels, (target, None if known is None else len(known)), progress)
        for part, found in ({"train": dataset} | given).items()
    }
    if known is None:
        known = tuple(map(str, range(count_classes([labels for _, labels in parts.values()]))))
    return _splits(parts, shares, seed, name=name or type(dataset).__name__, classes=known)


class _Pile:
    """Growing collection of images and labels. Memory is allocated as images are added."""

    def __init__(self, size: tuple[int, int], channels: int) -> None:
        if channels not in (1, 3) or not (min(size) >= 1 and max(size) <= MOST_SIDE):
            raise ValueError(
                f"size must be from (1, 1) to ({MOST_SIDE}, {MOST_SIDE}) and channels must be 1 or 3, "
                f"got {quote(size)} and {quote(channels)}"
            )
        self.images = np.empty((0, channels, *size), np.uint8)
        self.labels: list[Target] = []

    def add(self, image: NDArray[np.uint8], label: Target) -> None:
        """Add an image `(channels, *size)` and its label."""
        count = len(self.labels)
        if count == len(self.images):
            self._resize(count + max(64, count // 4))
        self.images[count] = image
        self.labels.append(label)

    def examples(self) -> Examples:
        """Return all images and labels. No image may be added afterwards."""
        self._resize(len(self.labels))
        return torch.from_numpy(self.images), stack(self.labels)

    def _resize(self, count: int) -> None:
        self.images.resize((count, *self.images.shape[1:]), refcheck=False)  # in place if the system supports it


def _read(
    root: Path,
    files: list[tuple[Path, int]],
    size: tuple[int, int],
    channels: int,
    broken: list[str],
    progress: Report | None,
) -> Examples:
    """Read the images in `files`. Unreadable files are added to `broken` with the reason."""
    from equivariant_transformers.data import pictures

    pile = _Pile(size, channels)
    for index, (file, label) in enumerate(files):
        try:
            pile.add(pictures.read(file, size, channels), label)
        except Exception as error:  # a damaged file can make a decoder raise almost anything
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            broken.append(visible(f"{file.relative_to(root).as_posix()} ({reason[:200]})"))
        if progress:
            progress(f"reading {root.name}", (index + 1) / len(files))
    return pile.examples()


def _collect(
    dataset: Dataset,
    part: str,
    size: tuple[int, int],
    channels: int,
    kind: tuple[Target | None, int | None],
    progress: Report | None,
) -> Examples:
    """Read all items. Targets must agree with `kind`: the first target, and the number of classes if known."""
    from equivariant_transformers.data import pictures

    pile = _Pile(size, channels)
    count = len(dataset)
    for index in range(count):
        image, label = _item(dataset, index, part)
        target = read_target(label)
        if target is None or not fits(target, *kind):
            raise ValueError(f"item {index} of the {part} part has label {quote(label)}; {wanted(*kind)}")
        pile.add(pictures.fit(pictures.to_picture(image), size, channels), target)
        if progress:
            progress(f"reading the {part} part", (index + 1) / count)
    return pile.examples()


def _item(dataset: Dataset, index: int, part: str) -> tuple[Any, Any]:
    try:
        item = dataset[index]
    except (IndexError, KeyError):
        message = f"the {part} part has no item {index}, but its length is {len(dataset)}"
        raise ValueError(message) from None
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise ValueError(f"item {index} of the {part} part must be a pair (image, class number), got {quote(item)}")
    return item[0], item[1]


def _splits(parts: dict[str, Examples], shares: dict[str, float], seed: int, **fields: Any) -> Splits:
    """Return the three parts. Missing parts are held out from the training images."""
    images, labels = parts["train"]
    shares = {part: share for part, share in shares.items() if part not in parts}
    if not all(0 <= share < 1 for share in shares.values()):
        raise ValueError(f"held-out fractions must be at least 0 and less than 1, got {shares}")
    counts = {part: max(1, round(share * len(labels))) if share else 0 for part, share in shares.items()}
    if len(labels) <= sum(counts.values()):
        wanted = " and ".join(f"{count} for {part}" for part, count in counts.items())
        raise ValueError(
            f"{len(labels)} images are too few to hold out {wanted}: add images, or change the fractions {shares}"
        )
    generator = torch.Generator().manual_seed(seed)
    rest = torch.arange(len(labels))
    for part, count in counts.items():
        chosen = _evenly(strata(labels[rest]), count, generator)
        parts[part] = images[rest[chosen]], labels[rest[chosen]]
        rest = rest[~chosen]
    parts["train"] = images[rest], labels[rest]
    mean, std = statistics(parts["train"][0])
    sets = [
        ImageSet(images=parts[part][0], labels=parts[part][1], origin=ORIGIN, mean=mean, std=std, **fields)
        for part in Splits._fields
    ]
    return Splits(*sets)


def _evenly(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw a mask `(N,)` of `count` random images, stratified by class up to one image."""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    marks = torch.arange(len(labels) + 1) * count // len(labels)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[order] = marks[1:] > marks[:-1]
    return chosen
