"""Registry of the data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from equivariant_transformers.data import cache
from equivariant_transformers.data.affnist_set import affnist
from equivariant_transformers.data.cifar10_set import FILES as CIFAR10_FILES
from equivariant_transformers.data.cifar10_set import OFFICIAL as CIFAR10_ARCHIVE
from equivariant_transformers.data.cifar10_set import cifar10
from equivariant_transformers.data.folder import from_csv, from_folder
from equivariant_transformers.data.homnist_set import homnist
from equivariant_transformers.data.imageset import Splits
from equivariant_transformers.data.mnist_set import PARTS, mnist
from equivariant_transformers.data.projective_mnist_set import projective_mnist
from equivariant_transformers.data.rotated_mnist_set import mnist_rts, rotated_mnist, rs_mnist, scale_mnist, sim2mnist
from equivariant_transformers.data.svhn_set import FILES, svhn
from equivariant_transformers.data.table import is_table
from equivariant_transformers.geometry.groups import lookup


@dataclass(frozen=True, kw_only=True)
class Source:
    """Entry of the registry: a data set that can be loaded by name."""

    name: str
    summary: str
    licence: str
    download_bytes: int
    """Size of the first download."""
    load: Callable[..., Splits]
    files: tuple[str, ...] = ()
    """Files of the download in the cache directory, gzipped or not."""

    @property
    def present(self) -> bool:
        """True if all files are in the cache directory."""
        return all(any(cache.root().glob(f"{file}*")) for file in self.files)


_MNIST = tuple(f"mnist/{part.file}" for part in PARTS.values())


def _from_mnist(name: str, summary: str, load: Callable[..., Splits]) -> Source:
    return Source(
        name=name,
        summary=summary,
        licence="CC BY-SA 3.0",
        download_bytes=sum(part.gzip_bytes for part in PARTS.values()),
        load=load,
        files=_MNIST,
    )


def _svhn(name: str, summary: str, *files: str) -> Source:
    return Source(
        name=name,
        summary=summary,
        licence="non-commercial use only",
        download_bytes=sum(FILES[file].bytes for file in files),
        load=partial(svhn, extra=True) if "extra" in files else svhn,
        files=tuple(f"svhn/{FILES[file].file}" for file in files),
    )


_SOURCES = (
    _from_mnist("mnist", "handwritten digits, 28 x 28", mnist),
    _from_mnist("projective-mnist", "benchmark of the paper: digits under projective maps, 64 x 64", projective_mnist),
    _from_mnist("affnist", "translated digits for training, affine maps for the test, 40 x 40", affnist),
    _from_mnist("affnist-centred", "centred digits for training, the same test", partial(affnist, "centred")),
    _from_mnist("homnist", "centred digits for training, homographies for the test, 40 x 40", homnist),
    _from_mnist("rotated-mnist", "digits rotated by any angle, 28 x 28", rotated_mnist),
    _from_mnist("mnist-rts", "digits rotated by up to 45 degrees, scaled and translated, 42 x 42", mnist_rts),
    _from_mnist("sim2mnist", "digits rotated by any angle, enlarged and translated, 96 x 96, no clutter", sim2mnist),
    _from_mnist("rs-mnist", "digits rotated by any angle and reduced to 0.3 to 1 of their size, 56 x 56", rs_mnist),
    _from_mnist("scale-mnist", "digits reduced to 0.3 to 1 of their size, 28 x 28", scale_mnist),
    _svhn("svhn", "digits of house numbers in photographs, 32 x 32, colour", "train", "test"),
    _svhn("svhn-extra", "SVHN with 531,131 additional, easier training images", "train", "test", "extra"),
    Source(
        name="cifar10",
        summary="photographs of ten kinds of objects, 32 x 32, colour",
        licence="none stated; cite the report",
        download_bytes=CIFAR10_ARCHIVE.bytes,
        load=cifar10,
        files=tuple(f"cifar10/{file}" for file in CIFAR10_FILES),
    ),
)
DATASETS: dict[str, Source] = {source.name: source for source in _SOURCES}
"""Data sets by name."""


def is_own(name: str) -> bool:
    """Return whether `name` is the path of a folder or a CSV file. Names of data sets take precedence."""
    return name not in DATASETS and (Path(name).is_dir() or is_table(name))


def find_data(name: str) -> Callable[..., Splits]:
    """Return the function that loads the data set `name`, the images in a folder, or the images of a CSV file."""
    if is_own(name):
        return partial(from_csv if is_table(name) else from_folder, name)
    if Path(name).name != name or Path(name).suffix.lower() == ".csv":
        raise FileNotFoundError(f"there is no folder or CSV file {name}")
    try:
        return lookup(DATASETS, name, "data set").load
    except ValueError as error:
        raise ValueError(f"there is no folder {name!r} in {Path.cwd()}, and {error}") from None


def own_name(name: str) -> str:
    """Return the name of the folder or CSV file at the path `name`, without its ending, or else `name`."""
    path = Path(name).resolve()
    return (path.stem if is_table(name) else path.name) if is_own(name) else name


def prepare(name: str, **options: Any) -> Callable[[], Splits]:
    """Return a function that loads the data set `name`. Raise a ValueError for an unknown name or option."""
    load = find_data(name)
    known = inspect.signature(load).parameters
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(unknown)}. Its options are: {', '.join(known)}")
    return partial(load, **options)


def load(name: str, **options: Any) -> Splits:
    """Load the training, validation and test parts of the data set `name`, with a download if necessary.

    The options are the arguments of its function, such as `examples` of `svhn`.
    """
    return prepare(name, **options)()
