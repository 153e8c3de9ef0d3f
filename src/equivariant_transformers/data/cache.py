"""Where data sets are kept: one directory, files written whole or not at all, one process fetching at a time."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from equivariant_transformers.data.files import atomic_write

Report = Callable[[str, float], None]
"""Told what is being done and which share of it is done, from 0 to 1."""

_CHUNK = 1 << 18


def root() -> Path:
    """The directory of all data sets: `ET_DATA`, or `equivariant_transformers` in the user's cache directory."""
    given = os.environ.get("ET_DATA")
    if given:
        return Path(given).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "equivariant_transformers"


def sha256(data: NDArray[Any] | bytes | Path) -> str:
    """The SHA-256 of bytes, of an array's values in row-major order, or of a file.

    >>> sha256(b"digits") == sha256(np.frombuffer(b"digits", np.uint8).reshape(2, 3))
    True
    """
    if isinstance(data, Path):
        digest = hashlib.sha256()
        with data.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()
    return hashlib.sha256(data if isinstance(data, bytes) else np.ascontiguousarray(data).data).hexdigest()


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock of `path` (a file beside it) against other processes and threads.

    The system frees the lock when its holder ends, however it ends. Where files cannot be locked a warning says so;
    then two processes may fetch the same file, and either leaves a whole one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("ab") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError) as error:
            warnings.warn(f"{path} cannot be locked ({error}): other processes may fetch it too", stacklevel=3)
        yield


def download(
    url: str, path: Path, *, size: int, known_hash: str, timeout: float = 30, progress: Report | None = None
) -> None:
    """Download the file at `url` to `path`, whole and verified; otherwise raise an error and leave nothing.

    Args:
        url: address of the file.
        path: file to write.
        size: number of bytes of the file. The download stops when the server sends more.
        known_hash: SHA-256 of the file.
        timeout: seconds to wait for a connection, and for each further piece of the file.
        progress: told how far the download is.
    """
    try:
        import pooch
        import requests
    except ImportError as error:
        raise ModuleNotFoundError(f"downloads need {error.name}: pip install -e '.[train]'") from error
    fetch = pooch.HTTPDownloader(
        chunk_size=_CHUNK,
        timeout=timeout,
        headers={"Accept-Encoding": "identity"},  # the checksum is that of the file as it is stored
        hooks={"response": _drop_redirect},
    )
    with atomic_write(path) as file:
        try:
            fetch(url, _Arriving(file, size, progress and partial(progress, f"downloading {path.name}")), None)
        except (requests.RequestException, ValueError) as error:
            raise ConnectionError(f"{url} could not be downloaded: {error}") from error
        found = sha256(Path(file.name))
        if found != known_hash:
            raise ConnectionError(
                f"{url} could not be downloaded: {file.tell():,} of {size:,} bytes arrived, with SHA-256 {found} and "
                f"not {known_hash}"
            )


def _drop_redirect(response: Any, **_: Any) -> None:
    """Close a response that redirects: requests would read its content to the end, however long it is."""
    if response.is_redirect:
        response.close()


class _Arriving:
    """File that a download writes to. It stops the download when more bytes arrive than the file has."""

    def __init__(self, file: IO[bytes], size: int, report: Callable[[float], None] | None) -> None:
        self.file, self.size, self.report = file, size, report

    def write(self, chunk: bytes) -> None:
        received = self.file.tell() + len(chunk)
        if received > self.size:
            raise ValueError(f"the server sent more than the {self.size:,} bytes of the file")
        self.file.write(chunk)
        if self.report:
            self.report(received / self.size)

    def flush(self) -> None:
        self.file.flush()
