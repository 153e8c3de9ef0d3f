"""Images that stay in their files or data set, and are decoded by worker processes when they are needed."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from equivariant_transformers.data.targets import Target, stack
from equivariant_transformers.text import visible

_MOST_WORKERS = 8
_PIECE = 64  # images that a worker decodes at a time, at most
_IN_FLIGHT = 2**21  # bytes of these images; each worker has up to three such pieces in shared memory
_T = TypeVar("_T")


class UnreadableError(RuntimeError):
    """Error for an image that could be read before and can no longer be read."""


class ImageSource(Protocol):
    """Images that can be read one by one. Worker processes get a copy."""

    shape: tuple[int, int, int]
    """(channels, height, width) of every image."""

    def __len__(self) -> int: ...
    def read(self, index: int, /) -> tuple[NDArray[np.uint8], Target]:
        """Return an image of `shape` and its class number. An image that cannot be used raises an error."""

    def name(self, index: int, /) -> str:
        """Return the name of an image for error messages."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """Images `(N, C, H, W)` of a source, with the shape, type and device of a tensor. Indexing decodes images.

    `read_batches` decodes many images faster, in worker processes.
    """

    source: ImageSource
    places: Tensor
    """Indices `(N,)` in the source, on the CPU."""
    facts: Tensor
    """Sums of each channel, sums of squares and a checksum of each image, int64 `(N, 2 * C + 1)`."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Device of the decoded images."""

    dtype = torch.uint8
    ndim = 4

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.places), *self.source.shape))

    def __getitem__(self, index: Any) -> Tensor:
        places = self.places[index.cpu() if isinstance(index, Tensor) else index]
        pixels = _pixels(self.source, places.reshape(-1).tolist())
        return _checked(pixels).reshape(*places.shape, *self.source.shape).to(self.device)

    def subset(self, index: Any) -> Stored:
        """Return the images at `index`, without decoding them."""
        index = index.cpu() if isinstance(index, Tensor) else index
        return dataclasses.replace(self, places=self.places[index], facts=self.facts[index])

    def to(self, device: torch.device | str) -> Stored:
        """Return the same images, decoded to `device`."""
        return dataclasses.replace(self, device=torch.device(device))


Pixels = Tensor | Stored
"""Images `(N, C, H, W)`, uint8, in memory or not."""


def subset(images: Pixels, index: Any) -> Pixels:
    """Return the images at `index` `(M,)`. Images that are not in memory are not decoded."""
    return images.subset(index) if isinstance(images, Stored) else images[index]


def survey(
    source: ImageSource, *, skip: bool, report: Callable[[float], None]
) -> tuple[Stored, Tensor, list[tuple[int, str]]]:
    """Decode every image of `source` once, in worker processes.

    Args:
        source: images to decode.
        skip: skip images that cannot be used. Otherwise they raise a ValueError.
        report: callback that receives the completed fraction.

    Returns:
        The readable images, their targets `(N,)` or `(N, K)`, and the other images as (index, reason).
    """
    starts = range(0, len(source), _PIECE)
    rows = (torch.arange(start, min(start + _PIECE, len(source))) for start in starts)
    facts, targets, failures = [], [], []
    for found_facts, found_targets, found_failures in in_workers(partial(_survey, source), rows):
        if found_failures and not skip:
            raise ValueError(found_failures[0][1])
        facts.append(found_facts)
        targets += found_targets
        failures += found_failures
        report(min(_PIECE * len(facts), len(source)) / len(source))
    found = torch.cat(facts) if facts else torch.zeros(0, 2 * source.shape[0] + 2, dtype=torch.long)
    return Stored(source=source, places=found[:, 0], facts=found[:, 1:]), stack(targets), failures


def read_batches(images: Pixels, rows: Tensor | Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the images at each row of indices, uint8 `(B, C, H, W)`.

    Images that are not in memory are decoded ahead by worker processes, and yielded in memory of the CPU. An image that
    can no longer be read raises an `UnreadableError` with its name.
    """
    if isinstance(images, Tensor):
        yield from (images[row] for row in rows)
        return
    size = max(1, min(_PIECE, _IN_FLIGHT // math.prod(images.source.shape)))
    pieces = (piece for row in rows for piece in torch.split(images.places[row.cpu()], size))
    decoded = in_workers(partial(_pixels, images.source), pieces)
    pinned = images.device.type == "cuda"
    for row in rows:
        batch = torch.empty((len(row), *images.source.shape), dtype=torch.uint8, pin_memory=pinned)
        for part in torch.split(batch, size):
            part.copy_(_checked(next(decoded)))
        yield batch


def in_workers(work: Callable[[list[int]], _T], rows: Iterable[Tensor]) -> Iterator[_T]:
    """Yield `work(row)` for each row, in order, computed ahead by the worker processes of a `DataLoader`.

    The workers end with the iterator. They ignore Ctrl-C, which the main process handles. The random numbers of the
    main process do not change.
    """
    loader: DataLoader[Any] = DataLoader(
        _Work(work),
        batch_size=None,
        sampler=(row.tolist() for row in rows),
        num_workers=workers(),
        collate_fn=_as_it_is,
        worker_init_fn=_ignore_interrupts,
        generator=torch.Generator(),
    )
    yield from loader


def workers() -> int:
    """Return the number of worker processes: one per core, at most 8, shared among the processes of `torchrun`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), _MOST_WORKERS))


def describe(images: Iterable[Pixels]) -> str:
    """Return the size of decoded images that are not in memory, and who decodes them; empty if all are in memory."""
    outside = [part for part in images if isinstance(part, Stored)]
    if not outside:
        return ""
    count = workers()
    size = sum(math.prod(part.shape) for part in outside) / 1e9
    return f"{size:.3g} GB decoded, streamed from disk by {count} worker{'s' if count > 1 else ''}"


def checksums(images: Pixels) -> NDArray[np.int64]:
    """Return a checksum of the pixels of each image, `(N,)`, equal for images in memory and images that are not."""
    if isinstance(images, Stored):
        return images.facts[:, -1].numpy()
    return np.array([zlib.crc32(image.numpy().tobytes()) for image in images.cpu()], np.int64)


def totals(images: Pixels) -> tuple[list[int], list[int]]:
    """Return the exact sum and the sum of squares of each channel."""
    channels = images.shape[1]
    if isinstance(images, Stored):
        found = images.facts.sum(0).tolist()
        return found[:channels], found[channels : 2 * channels]
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.unbind(1)])
    values = torch.arange(256, device=images.device)
    return (counts * values).sum(1).tolist(), (counts * values**2).sum(1).tolist()


def reason_of(error: Exception) -> str:
    """Return the message of an error of a decoder, shortened and safe to print."""
    return visible((getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200])


class _Work(Dataset[Any]):
    """Data set whose items are the results of `work`, indexed by rows of indices."""

    def __init__(self, work: Callable[[list[int]], Any]) -> None:
        self.work = work

    def __getitem__(self, row: Any) -> Any:
        return self.work(row)


def _pixels(source: ImageSource, places: list[int]) -> Tensor | str:
    """Return images `(B, C, H, W)`, or the reason why one of them cannot be read."""
    images = np.empty((len(places), *source.shape), np.uint8)
    for index, place in enumerate(places):
        try:
            images[index], _ = source.read(place)
        except Exception as error:  # a damaged file can make a decoder raise almost anything
            return f"{visible(source.name(place))} can no longer be read ({reason_of(error)})"
    return torch.from_numpy(images)


def _checked(pixels: Tensor | str) -> Tensor:
    if isinstance(pixels, str):
        raise UnreadableError(f"{pixels}: restore it and run the same command again, which resumes a saved run")
    return pixels


def _survey(source: ImageSource, places: list[int]) -> tuple[Tensor, list[Target], list[tuple[int, str]]]:
    """Return place and facts of each readable image, their targets, and the places of the others with the reason."""
    facts, targets, failures = [], [], []
    for place in places:
        try:
            image, label = source.read(place)
        except Exception as error:  # a damaged file can make a decoder raise almost anything
            failures.append((place, reason_of(error)))
            continue
        flat = image.reshape(image.shape[0], -1).astype(np.int64)
        sums, squares = flat.sum(1), (flat * flat).sum(1)
        targets.append(label)
        facts.append([place, *sums, *squares, zlib.crc32(image.tobytes())])
    width = 2 * source.shape[0] + 2
    return torch.tensor(np.array(facts, np.int64).reshape(-1, width)), targets, failures


def _as_it_is(item: Any) -> Any:
    return item


def _ignore_interrupts(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
