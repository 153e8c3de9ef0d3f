"""Image sets from folders, CSV tables, and data sets of torchvision, Hugging Face or the user."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.gathering import (
    MEMORY,
    NAMED_AT_MOST,
    Dataset,
    Items,
    PictureFiles,
    gather,
    get_item,
    make_splits,
    must_stream,
)
from equivariant_transformers.data.imageset import Splits
from equivariant_transformers.data.table import read_table
from equivariant_transformers.data.targets import count_classes, read_target
from equivariant_transformers.data.tree import PART_NAMES, Tree, scan, usual_side
from equivariant_transformers.text import quote, visible

VALIDATION, TEST = 0.1, 0.2
"""Fractions of the images that are held out by default."""


def from_folder(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    validation: float = VALIDATION,
    test: float = TEST,
    seed: int = 0,
    labels: bool = True,
    memory: float = MEMORY,
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
        memory: decoded images in GB that are kept in memory. More images stay in their files, and worker processes
            decode each batch. Batches are the same either way.
        progress: callback that receives the current task and its completed fraction.
    """
    tree = scan(path, labels=labels)
    shares = {"validation": validation, "test": test}
    name = tree.root.resolve().name
    return _from_tree(tree, tree.root, name, size, channels, shares, seed, labels, memory, progress)


def from_csv(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    validation: float = VALIDATION,
    test: float = TEST,
    seed: int = 0,
    labels: bool = True,
    memory: float = MEMORY,
    progress: Report | None = None,
) -> Splits:
    """Load the images that a CSV file lists, in UTF-8, with the columns `path`, `label` and optionally `split`.

    Columns are separated by commas, semicolons or tabs. Paths are relative to the folder of the CSV file and do not
    leave it. Labels are the names of the classes. For multi-label classification and regression, columns of numbers
    with names of their own take the place of `label`. Splits are `train`, `validation` (or `valid`, `val`) and `test`.
    A ValueError names the line of a mistake, and files that do not exist. Images are converted as in `from_folder`.

    Args:
        path: CSV file, at most 256 MiB.
        size: as in `from_folder`.
        channels: number of channels, 1 for greyscale or 3 for colour.
        validation: fraction of the training images to hold out for validation if no row has this split.
        test: fraction to hold out for the test if no row has this split. Both splits are stratified by class.
        seed: random seed for the choice of the held-out images.
        labels: False to ignore labels and numbers, which may then be missing. All labels are 0.
        memory: as in `from_folder`.
        progress: callback that receives the current task and its completed fraction.
    """
    path = Path(path)
    tree = read_table(path, labels=labels)
    shares = {"validation": validation, "test": test}
    return _from_tree(tree, path.parent, path.stem, size, channels, shares, seed, labels, memory, progress)


def from_dataset(
    dataset: Dataset | Mapping[str, Dataset],
    *,
    validation: Dataset | float = VALIDATION,
    test: Dataset | float = TEST,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    classes: Sequence[str] | None = None,
    keys: tuple[str, str] = ("image", "label"),
    name: str | None = None,
    seed: int = 0,
    memory: float = MEMORY,
    progress: Report | None = None,
) -> Splits:
    """Load any data set whose items are (image, class number) or dictionaries, with at most 100,000 classes.

    For multi-label classification and regression, a row of numbers takes the place of the class number, with a name in
    `classes` for each number: 0 and 1 for absent and present labels, or any values. A single value is a float.

    Items of torchvision are pairs, items of Hugging Face `datasets` are dictionaries. An image is a Pillow image, a
    tensor `(C, H, W)` or an array `(H, W, C)`, of type uint8 or floating point from 0 to 1. The images must not be
    normalised, because the image set normalises them.

    >>> import torch
    >>> digits = [{"image": torch.full((1, 8, 8), i / 10), "label": i % 2} for i in range(10)]
    >>> [len(part) for part in from_dataset(digits, classes=["even", "odd"])]
    [7, 1, 2]

    Args:
        dataset: training part, or the whole data set, or a dictionary of parts called `train`, and `validation` (or
            `valid`, `val`) or `test`, such as a `DatasetDict`.
        validation: validation part, or fraction of `dataset` to hold out for validation.
        test: test part, or fraction of `dataset` to hold out for the test. Both splits are stratified by class.
        size: (height, width) of the images, which are resized and padded as in `from_folder`. Default: size of the
            first image.
        channels: number of channels, 1 or 3. Default: channels of the first image.
        classes: names of the classes, labels or values. Default: the names of the label's `ClassLabel`, or
            `dataset.classes`, if they exist, otherwise numbers.
        keys: names of the image and of the label in items that are dictionaries.
        name: name of the image set. Default: name of the class of `dataset`.
        seed: random seed for the choice of the held-out images.
        memory: decoded images in GB that are kept in memory. Items of a larger data set are read again for each batch,
            by worker processes.
        progress: callback that receives the current task and its completed fraction.
    """
    from equivariant_transformers.data import pictures

    options = {"validation": validation, "test": test}
    given = {part: found for part, found in options.items() if not isinstance(found, (int, float))}
    shares = {part: found for part, found in options.items() if isinstance(found, (int, float))}
    datasets: dict[str, Any] = (_named_parts(dataset) if isinstance(dataset, Mapping) else {"train": dataset}) | given
    train = datasets["train"]
    for part, found in datasets.items():
        if not hasattr(found, "__len__"):
            raise ValueError(f"the {part} part has no length: load the data set without streaming")
    if not len(train):
        raise ValueError("the data set is empty: at least one image is needed")
    first = pictures.to_picture(get_item(train, 0, "train", keys)[0])
    size = size or (first.height, first.width)
    channels = channels or (1 if len(first.getbands()) == 1 and first.mode != "P" else 3)
    names = classes or _class_names(train, keys[1])
    known = None if names is None else tuple(map(str, names))
    kind = (read_target(get_item(train, 0, "train", keys)[1]), None if known is None else len(known))
    sources = {part: Items(found, part, keys, size, channels, kind) for part, found in datasets.items()}
    stream = must_stream(sum(map(len, sources.values())), (channels, *size), memory)
    parts = {}
    for part, source in sources.items():
        images, numbers, _ = gather(
            source, stream=stream, skip=False, progress=progress, task=f"reading the {part} part"
        )
        parts[part] = images, numbers
    if known is None:
        known = tuple(map(str, range(count_classes([labels for _, labels in parts.values()]))))
    return make_splits(parts, shares, seed, name=name or type(train).__name__, classes=known)


def _from_tree(
    tree: Tree,
    root: Path,
    name: str,
    size: int | tuple[int, int] | None,
    channels: int,
    shares: dict[str, float],
    seed: int,
    labels: bool,
    memory: float,
    progress: Report | None,
) -> Splits:
    """Return the images of `tree`. Files that cannot be read are skipped, and named relative to `root`."""
    if size is None:
        size = usual_side(tree.parts["train"])
    shape = (size, size) if isinstance(size, int) else size
    sources = {part: PictureFiles(files, shape, channels) for part, files in tree.parts.items()}
    stream = must_stream(sum(map(len, sources.values())), (channels, *shape), memory)
    parts, broken = {}, list(tree.unlisted)
    for part, source in sources.items():
        images, numbers, failures = gather(
            source, stream=stream, skip=True, progress=progress, task=f"reading {tree.root.name}"
        )
        parts[part] = images, numbers
        files = ((source.files[index][0].relative_to(root), reason) for index, reason in failures)
        broken += [f"{visible(file.as_posix())} ({reason})" for file, reason in files]
    if broken:
        more = f" and {len(broken) - NAMED_AT_MOST} more" if len(broken) > NAMED_AT_MOST else ""
        listed = "; ".join(broken[:NAMED_AT_MOST])
        warnings.warn(f"skipped {len(broken)} files that are not readable images: {listed}{more}", stacklevel=3)
    seen = {label for _, numbers in parts.values() if numbers.ndim == 1 for label in numbers.tolist()}
    empty = [name for label, name in enumerate(tree.classes) if label not in seen]
    if empty and seen and labels:
        listed = visible(", ".join(empty[:NAMED_AT_MOST])) + (", ..." if len(empty) > NAMED_AT_MOST else "")
        raise ValueError(f"no readable image of class {listed} in {tree.root}: add some or remove the folder")
    hollow = [str(tree.folders[part]) for part, (_, numbers) in parts.items() if not len(numbers)]
    if hollow:
        raise ValueError(f"no readable image in {' and '.join(hollow)}: add some or remove the folder")
    return make_splits(parts, shares, seed, name=name, classes=tree.classes)


def _named_parts(datasets: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return the parts of a dictionary of data sets by their names here."""
    parts = {PART_NAMES[name]: found for name, found in datasets.items() if name in PART_NAMES}
    if len(parts) < len(datasets) or "train" not in parts:
        raise ValueError(
            f"a dictionary of data sets needs train and at most one each of validation and test, got "
            f"{quote(list(datasets))}: pass dataset=...[name], and validation=...[name] or test=...[name]"
        )
    return parts


def _class_names(dataset: Any, key: str) -> Any:
    """Return the names of the classes of a data set of Hugging Face or torchvision; None if it has none."""
    features = getattr(dataset, "features", None)
    label = features.get(key) if isinstance(features, Mapping) else None
    return getattr(label, "names", None) or getattr(dataset, "classes", None)
