"""Every data set of the library by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from equivariant_transformers.data.imageset import Splits
from equivariant_transformers.data.svhn import FILES, svhn
from equivariant_transformers.groups import lookup


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set that can be loaded by name."""

    name: str
    summary: str
    licence: str
    download_bytes: int
    """What is downloaded the first time."""
    load: Callable[..., Splits]


_SOURCES = (
    Source(
        name="svhn",
        summary="digits of house numbers in photographs, 32 x 32, colour; extra=True adds 1.3 GB",
        licence="non-commercial use only",
        download_bytes=FILES["train"].bytes + FILES["test"].bytes,
        load=svhn,
    ),
)
DATASETS: dict[str, Source] = {source.name: source for source in _SOURCES}
"""The data sets, by name."""


def prepare(name: str, **options: Any) -> Callable[[], Splits]:
    """What loads the data set called `name`, once the name and the names of the options are known to be right."""
    source = lookup(DATASETS, name, "data set")
    known = inspect.signature(source.load).parameters
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(unknown)}. Its options are: {', '.join(known)}")
    return partial(source.load, **options)


def load(name: str, **options: Any) -> Splits:
    """The training, validation and test parts of the data set called `name`, downloaded or made the first time.

    The options are those of its function, such as `examples` of `svhn`.
    """
    return prepare(name, **options)()
