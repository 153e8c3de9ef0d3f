"""Your own images: a folder with a subfolder for each class, or any data set in the style of torchvision."""

from __future__ import annotations

import operator
import os
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
from equivariant_transformers.limits import MOST_CLASSES, MOST_SIDE
from equivariant_transformers.text import quote, visible

PART_NAMES = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
"""How a subfolder that holds a part of the data may be called."""
ORIGIN = "the user's own images"
NAMED_AT_MOST = 10

Examples = tuple[Tensor, Tensor]
"""Images `(N, C, H, W)` as bytes, and labels `(N,)`."""


class Dataset(Protocol):
    """What torchvision's data sets have in common: numbered pairs of an image and a class number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def from_folder(
    path: str | Path,
    *,
    size: tuple[int, int] = (64, 64),
    channels: int = 3,
    validation: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    progress: Report | None = None,
) -> Splits:
    """The images below a folder, the name of each subfolder being a class.

    Images of any kind and size are resized with their shape kept and padded with black. Hidden files are ignored, and
    files that cannot be read as an image are skipped with a warning that names them. Mean and deviation are those of
    the training part.

    Args:
        path: a folder of class folders, or one with the subfolders `train`, and `validation` or `test`, which hold the
            class folders.
        size: (height, width) of the images.
        channels: 1 for greyscale, 3 for colour.
        validation: the share of the training images to set aside where there is no folder `validation`.
        test: likewise for `test`. The shares are the same in every class, as near as whole images allow.
        seed: of the choice of these images.
        progress: told what is being done, and which share of it is done.
    """
    path = Path(path)
    folders = _parts(path)
    classes = sorted({below.name for folder in folders.values() for below in _subfolders(folder)})
    if not classes:
        raise ValueError(f"{path} has no class folders: put the images of each class into a subfolder named after it")
    if len(classes) > MOST_CLASSES:
        raise ValueError(f"{path} has {len(classes):,} class folders, at most {MOST_CLASSES:,} are supported")
    broken: list[str] = []
    files = {
        part: [(file, label) for label, name in enumerate(classes) for file in _files(path, folder / name, broken)]
        for part, folder in folders.items()
    }
    parts = {part: _read(path, found, size, channels, broken, progress) for part, found in files.items()}
    if broken:
        more = f" and {len(broken) - NAMED_AT_MOST} more" if len(broken) > NAMED_AT_MOST else ""
        listed = "; ".join(broken[:NAMED_AT_MOST])
        warnings.warn(f"skipped {len(broken)} files that are no readable image: {listed}{more}", stacklevel=2)
    seen = {label for _, labels in parts.values() for label in labels.tolist()}
    empty = [name for label, name in enumerate(classes) if label not in seen]
    if empty:
        listed = visible(", ".join(empty[:NAMED_AT_MOST])) + (", ..." if len(empty) > NAMED_AT_MOST else "")
        raise ValueError(f"no readable image of class {listed} in {path}: add some or remove the folder")
    hollow = [str(folders[part]) for part, (_, labels) in parts.items() if not len(labels)]
    if hollow:
        raise ValueError(f"no readable image in {' and '.join(hollow)}: add some or remove the folder")
    shares = {"validation": validation, "test": test}
    return _splits(parts, shares, seed, name=path.resolve().name, classes=tuple(classes))


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
    """Any data set whose items are (image, class number), as torchvision's are. There are at most 100,000 classes.

    An image is a Pillow image, a tensor `(C, H, W)` or an array `(H, W, C)`, of bytes or from 0 to 1; leave
    normalisation out, the image set has its own.

    >>> digits = [(torch.full((1, 8, 8), i / 10), i % 2) for i in range(10)]
    >>> [len(part) for part in from_dataset(digits, classes=["even", "odd"])]
    [7, 1, 2]

    Args:
        dataset: the training part, or all there is.
        validation: that part, or the share of `dataset` to set aside for it.
        test: likewise. The shares are the same in every class, as near as whole images allow.
        size: (height, width), that of the first image if not given. Others are resized and padded as in `from_folder`.
        channels: 1 or 3, as the first image has if not given.
        classes: the names of the classes, `dataset.classes` or the numbers if not given.
        name: of the set, that of the data set's class if not given.
        seed: of the choice of the images set aside.
        progress: told what is being done, and which share of it is done.
    """
    from equivariant_transformers.data import pictures

    if not len(dataset):
        raise ValueError("the data set is empty")
    first = pictures.to_picture(_item(dataset, 0, "train")[0])
    size = size or (first.height, first.width)
    channels = channels or (1 if len(first.getbands()) == 1 and first.mode != "P" else 3)
    options = {"validation": validation, "test": test}
    shares = {part: found for part, found in options.items() if isinstance(found, (int, float))}
    given = {part: found for part, found in options.items() if not isinstance(found, (int, float))}
    names = classes or getattr(dataset, "classes", None)
    known = None if names is None else tuple(map(str, names))
    most = MOST_CLASSES if known is None else len(known)
    parts = {
        part: _collect(found, part, size, channels, most, progress)
        for part, found in ({"train": dataset} | given).items()
    }
    if known is None:
        known = tuple(map(str, range(1 + max(int(labels.max()) for _, labels in parts.values() if len(labels)))))
    return _splits(parts, shares, seed, name=name or type(dataset).__name__, classes=known)


def _parts(path: Path) -> dict[str, Path]:
    """The folder of each part: the subfolders `train`, ... where there is nothing else, `path` itself otherwise."""
    if not path.is_dir():
        raise ValueError(f"{path} is no folder")
    below = _subfolders(path)
    if not below or any(folder.name not in PART_NAMES for folder in below):
        return {"train": path}
    parts = {PART_NAMES[folder.name]: folder for folder in below}
    if len(parts) < len(below) or "train" not in parts:
        found = ", ".join(folder.name for folder in below)
        raise ValueError(f"{path} needs one folder train and at most one each of validation and test, found {found}")
    return parts


def _subfolders(folder: Path) -> list[Path]:
    return sorted(below for below in folder.iterdir() if below.is_dir() and not below.name.startswith("."))


def _files(root: Path, folder: Path, broken: list[str]) -> list[Path]:
    """Every file below `folder` that is not hidden, in an order that depends on the names alone.

    Links to folders are not followed. What is neither a file nor a folder is among the files, so that it is named when
    it cannot be read. Folders that cannot be listed are added to `broken`.
    """
    files: dict[str, Path] = {}
    pending = [folder] if folder.is_dir() else []
    while pending:
        try:
            below = list(os.scandir(pending.pop()))
        except OSError as error:
            broken.append(f"{visible(str(error.filename))} ({error.strerror})")
            continue
        for entry in below:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(Path(entry.path))
            elif not _is_folder(entry):
                files[Path(entry.path).relative_to(folder).as_posix()] = Path(entry.path)
    return [file for _, file in sorted(files.items())]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


class _Pile:
    """Images and labels that are added one by one. It takes memory for those that are there, not for those expected."""

    def __init__(self, size: tuple[int, int], channels: int) -> None:
        if channels not in (1, 3) or not (min(size) >= 1 and max(size) <= MOST_SIDE):
            raise ValueError(
                f"a size from (1, 1) to ({MOST_SIDE}, {MOST_SIDE}) and 1 or 3 channels are needed, "
                f"got {quote(size)} and {quote(channels)}"
            )
        self.images = np.empty((0, channels, *size), np.uint8)
        self.labels: list[int] = []

    def add(self, image: NDArray[np.uint8], label: int) -> None:
        """Add an image `(channels, *size)` and its label."""
        count = len(self.labels)
        if count == len(self.images):
            self._resize(count + max(64, count // 4))
        self.images[count] = image
        self.labels.append(label)

    def examples(self) -> Examples:
        """Return all of them; nothing may be added any more."""
        self._resize(len(self.labels))
        return torch.from_numpy(self.images), torch.tensor(self.labels, dtype=torch.long)

    def _resize(self, count: int) -> None:
        self.images.resize((count, *self.images.shape[1:]), refcheck=False)  # in place where the system can


def _read(
    root: Path,
    files: list[tuple[Path, int]],
    size: tuple[int, int],
    channels: int,
    broken: list[str],
    progress: Report | None,
) -> Examples:
    """The images in `files`, those that can be read; the others are added to `broken` with the reason."""
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
    dataset: Dataset, part: str, size: tuple[int, int], channels: int, classes: int, progress: Report | None
) -> Examples:
    from equivariant_transformers.data import pictures

    pile = _Pile(size, channels)
    count = len(dataset)
    for index in range(count):
        image, label = _item(dataset, index, part)
        number = _class_number(label)
        if number is None or not 0 <= number < classes:
            raise ValueError(
                f"item {index} of the {part} part has label {quote(label)}; "
                f"a class number from 0 to {classes - 1} is needed"
            )
        pile.add(pictures.fit(pictures.to_picture(image), size, channels), number)
        if progress:
            progress(f"reading the {part} part", (index + 1) / count)
    return pile.examples()


def _item(dataset: Dataset, index: int, part: str) -> tuple[Any, Any]:
    try:
        item = dataset[index]
    except (IndexError, KeyError):
        message = f"the {part} part has no item {index}, though its length is {len(dataset)}"
        raise ValueError(message) from None
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise ValueError(
            f"item {index} of the {part} part is no pair of an image and a class number, it is {quote(item)}"
        )
    return item[0], item[1]


def _class_number(label: Any) -> int | None:
    """Return `label` as a whole number, None if it is none; true and false are none."""
    if isinstance(label, (bool, np.bool_)) or getattr(label, "dtype", None) == torch.bool:
        return None
    try:
        return operator.index(label)
    except (TypeError, ValueError, RuntimeError):
        return None


def _splits(parts: dict[str, Examples], shares: dict[str, float], seed: int, **fields: Any) -> Splits:
    """The parts as they are, and those that are missing set aside from the training images."""
    images, labels = parts["train"]
    shares = {part: share for part, share in shares.items() if part not in parts}
    if not all(0 <= share < 1 for share in shares.values()):
        raise ValueError(f"shares from 0 to 1 are needed, got {shares}")
    counts = {part: max(1, round(share * len(labels))) if share else 0 for part, share in shares.items()}
    if len(labels) <= sum(counts.values()):
        wanted = " and ".join(f"{count} for {part}" for part, count in counts.items())
        raise ValueError(
            f"{len(labels)} images are too few to set {wanted} aside: add some, or change the shares {shares}"
        )
    generator = torch.Generator().manual_seed(seed)
    rest = torch.arange(len(labels))
    for part, count in counts.items():
        chosen = _evenly(labels[rest], count, generator)
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
    """A mask of `count` images chosen at random, the share of every class the same, up to one image."""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    marks = torch.arange(len(labels) + 1) * count // len(labels)
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[order] = marks[1:] > marks[:-1]
    return chosen
