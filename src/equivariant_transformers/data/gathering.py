"""Images of files or of a data set's items, read into memory or left where they are, and split into three parts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.imageset import ImageSet, Splits, statistics
from equivariant_transformers.data.stored import ImageSource, Pixels, reason_of, subset, survey
from equivariant_transformers.data.targets import Target, fits, read_target, stack, strata, wanted
from equivariant_transformers.limits import MOST_SIDE
from equivariant_transformers.text import quote, visible

ORIGIN = "the user's own images"
NAMED_AT_MOST = 10
"""Largest number of files or classes that a message lists."""
MEMORY = 2.0
"""Decoded images in GB that are kept in memory by default. More images are streamed from the disk."""

Failures = list[tuple[int, str]]
"""Indices of images that cannot be used, with the reason."""


class Dataset(Protocol):
    """Interface of torchvision's and Hugging Face's data sets: items by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class PictureFiles:
    """Source of the pictures in files, whose targets are known.

    Args:
        files: files with their targets.
        size: (height, width) that the pictures are resized and padded to.
        channels: number of channels, 1 or 3.
    """

    def __init__(self, files: Sequence[tuple[Path, Target]], size: tuple[int, int], channels: int) -> None:
        self.files = files
        self.shape = (channels, *size)
        _check_shape(size, channels)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> tuple[NDArray[np.uint8], Target]:
        from equivariant_transformers.data import pictures

        file, label = self.files[index]
        return pictures.read(file, self.shape[1:], self.shape[0]), label

    def name(self, index: int) -> str:
        return str(self.files[index][0])


class Items:
    """Source of the items of a data set: pairs (image, target), or mappings with these two entries.

    Args:
        dataset: data set.
        part: name of the part for error messages.
        keys: names of the two entries of an item that is a mapping.
        size: (height, width) that the images are resized and padded to.
        channels: number of channels, 1 or 3.
        kind: first target of the data set, and the number of classes if known, with which all targets must agree.
    """

    def __init__(
        self,
        dataset: Dataset,
        part: str,
        keys: tuple[str, str],
        size: tuple[int, int],
        channels: int,
        kind: tuple[Target | None, int | None],
    ) -> None:
        self.dataset = dataset
        self.part = part
        self.keys = keys
        self.shape = (channels, *size)
        self.kind = kind
        _check_shape(size, channels)

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int) -> tuple[NDArray[np.uint8], Target]:
        from equivariant_transformers.data import pictures

        image, label = get_item(self.dataset, index, self.part, self.keys)
        target = read_target(label)
        if target is None or not fits(target, *self.kind):
            raise ValueError(f"{self.name(index)} has label {quote(label)}; {wanted(*self.kind)}")
        try:
            return pictures.fit(pictures.to_picture(image), self.shape[1:], self.shape[0]), target
        except ValueError as error:
            raise ValueError(f"{self.name(index)} cannot be used: {error}") from error

    def name(self, index: int) -> str:
        return f"item {index} of the {self.part} part"


def get_item(dataset: Dataset, index: int, part: str, keys: tuple[str, str]) -> tuple[Any, Any]:
    """Return the image and the label of an item. An item of another form raises a ValueError."""
    try:
        item = dataset[index]
    except (IndexError, KeyError):
        message = f"the {part} part has no item {index}, but its length is {len(dataset)}"
        raise ValueError(message) from None
    if isinstance(item, Mapping):
        if all(key in item for key in keys):
            return item[keys[0]], item[keys[1]]
        raise ValueError(
            f"item {index} of the {part} part has the entries {quote(list(item))}, not {quote(keys[0])} and "
            f"{quote(keys[1])}: pass keys=(entry of the image, entry of the label)"
        )
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise ValueError(
            f"item {index} of the {part} part must be a pair (image, class number) or a dictionary, got {quote(item)}"
        )
    return item[0], item[1]


def gather(
    source: ImageSource, *, stream: bool, skip: bool, progress: Report | None, task: str
) -> tuple[Pixels, Tensor, Failures]:
    """Return the images of `source`, their targets `(N,)` or `(N, K)`, and the images that cannot be used.

    Args:
        source: images to read.
        stream: do not keep the images in memory.
        skip: skip images that cannot be used. Otherwise they raise an error.
        progress: callback that receives `task` and its completed fraction.
        task: name of the task.
    """

    def report(share: float) -> None:
        if progress:
            progress(task, share)

    if stream:
        return survey(source, skip=skip, report=report)
    pile, failures = _Pile(source.shape), []
    for index in range(len(source)):
        try:
            pile.add(*source.read(index))
        except Exception as error:  # a damaged file can make a decoder raise almost anything
            if not skip:
                raise
            failures.append((index, reason_of(error)))
        report((index + 1) / len(source))
    return *pile.examples(), failures


def must_stream(images: int, shape: tuple[int, int, int], memory: float) -> bool:
    """Return whether this number of images of `shape` takes more than `memory` GB."""
    if not memory >= 0:
        raise ValueError(f"memory must be a number of GB from 0, got {quote(memory)}")
    channels, height, width = shape
    return images * channels * height * width > memory * 1e9


def make_splits(
    parts: dict[str, tuple[Pixels, Tensor]], shares: dict[str, float], seed: int, *, name: str, classes: tuple[str, ...]
) -> Splits:
    """Return the three parts. Missing parts are held out from the training images, stratified by class.

    A class keeps an image for training as long as there are enough images of other classes to hold out. A warning names
    the classes that have no training image.
    """
    images, labels = parts["train"]
    shares = {part: share for part, share in shares.items() if part not in parts}
    if not all(0 <= share < 1 for share in shares.values()):
        raise ValueError(f"held-out fractions must be at least 0 and less than 1, got {shares}")
    counts = {part: max(1, round(share * len(labels))) if share else 0 for part, share in shares.items()}
    if len(labels) <= sum(counts.values()):
        needed = " and ".join(f"{count} for {part}" for part, count in counts.items())
        raise ValueError(
            f"{len(labels)} images are too few to hold out {needed}: add images, or change the fractions {shares}"
        )
    generator = torch.Generator().manual_seed(seed)
    rest = torch.arange(len(labels))
    for part, count in counts.items():
        chosen = _hold_out(strata(labels[rest]), count, generator)
        parts[part] = subset(images, rest[chosen]), labels[rest[chosen]]
        rest = rest[~chosen]
    parts["train"] = subset(images, rest), labels[rest]
    _warn_of_untrained({part: targets for part, (_, targets) in parts.items()}, classes)
    mean, std = statistics(parts["train"][0])
    sets = [
        ImageSet(images=found[0], labels=found[1], origin=ORIGIN, mean=mean, std=std, name=name, classes=classes)
        for found in (parts[part] for part in Splits._fields)
    ]
    return Splits(*sets)


class _Pile:
    """Growing collection of images and labels. Memory is allocated as images are added."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.images = np.empty((0, *shape), np.uint8)
        self.labels: list[Target] = []

    def add(self, image: NDArray[np.uint8], label: Target) -> None:
        """Add an image and its label."""
        count = len(self.labels)
        if count == len(self.images):
            self._resize(count + max(64, count // 4))
        self.images[count] = image
        self.labels.append(label)

    def examples(self) -> tuple[Tensor, Tensor]:
        """Return all images and labels. No image may be added afterwards."""
        self._resize(len(self.labels))
        return torch.from_numpy(self.images), stack(self.labels)

    def _resize(self, count: int) -> None:
        self.images.resize((count, *self.images.shape[1:]), refcheck=False)  # in place if the system supports it


def _check_shape(size: tuple[int, int], channels: int) -> None:
    if channels not in (1, 3) or not (min(size) >= 1 and max(size) <= MOST_SIDE):
        raise ValueError(
            f"size must be from (1, 1) to ({MOST_SIDE}, {MOST_SIDE}) and channels must be 1 or 3, "
            f"got {quote(size)} and {quote(channels)}"
        )


def _warn_of_untrained(labels: dict[str, Tensor], classes: tuple[str, ...]) -> None:
    """Warn of classes that have images for validation or test, and none for training."""
    if labels["train"].ndim == 2:
        return
    found = {part: {*numbers.tolist()} for part, numbers in labels.items()}
    if missing := set().union(*found.values()) - found["train"]:
        untrained = [classes[label] for label in sorted(missing)]
        more = f" and {len(untrained) - NAMED_AT_MOST} more" if len(untrained) > NAMED_AT_MOST else ""
        listed = visible(", ".join(untrained[:NAMED_AT_MOST])) + more
        warnings.warn(f"no training image has the class {listed}: a network cannot learn it", stacklevel=2)


def _hold_out(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw a mask `(N,)` of `count` random images, stratified by class, that leaves an image of each class."""
    chosen = _evenly(labels, count, generator)
    if {*labels[~chosen].tolist()} == {*labels.tolist()}:
        return chosen
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    first = torch.ones(len(labels), dtype=torch.bool)
    first[1:] = labels[order[1:]] != labels[order[:-1]]
    free = order[~first]  # all but one image of each class
    if len(free) < count:  # some class has to go without
        return chosen
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[free[_evenly(labels[free], count, generator)]] = True
    return mask


def _evenly(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw a mask `(N,)` of `count` random images, stratified by class up to one image."""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    marks = torch.arange(len(labels) + 1) * count // len(labels)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[order] = marks[1:] > marks[:-1]
    return chosen
