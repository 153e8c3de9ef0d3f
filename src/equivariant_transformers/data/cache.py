"""Where data sets are kept: one directory, files written whole or not at all, one process fetching at a time."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def sha256(data: NDArray[Any] | bytes) -> str:
    """The SHA-256 of bytes, or of an array's values in row-major order.

    >>> sha256(b"digits") == sha256(np.frombuffer(b"digits", np.uint8).reshape(2, 3))
    True
    """
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


def download(url: str, path: Path, progress: Report | None = None) -> None:
    """The file at `url`, written to `path` whole. A transfer that breaks off is an error and leaves nothing."""
    try:
        with urllib.request.urlopen(url, timeout=30) as reply, atomic_write(path) as file:
            expected = int(reply.headers.get("Content-Length") or 0)
            received = 0
            while chunk := reply.read(_CHUNK):
                file.write(chunk)
                received += len(chunk)
                if progress and expected:
                    progress(f"downloading {path.name}", received / expected)
            if received < expected:
                raise ConnectionError(f"{url} broke off after {received} of {expected} bytes; try again")
    except http.client.HTTPException as error:
        raise ConnectionError(f"{url} broke off: {error}; try again") from error
