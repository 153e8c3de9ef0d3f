"""Cache directory of the data sets, with atomic, verified downloads by one process at a time."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from equivariant_transformers import install
from equivariant_transformers.data.files import atomic_write, check_regular

Report = Callable[[str, float], None]
"""Progress callback. Its arguments are the current task and the completed fraction, from 0 to 1."""

_CHUNK = 1 << 18
_FAILURES = (ImportError, OSError, ValueError, zipfile.BadZipFile, zlib.error, subprocess.SubprocessError)
T = TypeVar("T")


class Release(NamedTuple):
    """File of a published data set."""

    file: str
    sha256: str
    bytes: int


def root() -> Path:
    """Return the directory of all data sets: `ET_DATA`, or `equivariant_transformers` in the user's cache directory."""
    given = os.environ.get("ET_DATA")
    if given:
        return Path(given).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "equivariant_transformers"


def sha256(data: NDArray[Any] | bytes | Path) -> str:
    """Return the SHA-256 of bytes, of an array's values in row-major order, or of a file.

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
    """Hold the lock of `path`, a file beside it, to exclude other processes and threads.

    The system releases the lock when its process ends for any reason. On a file system without locks, a warning is
    issued; two processes may then fetch the same file, and both leave a complete file.
    """
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(path.with_name(path.name + ".lock"))
    try:
        held.acquire()
    except OSError as error:
        warnings.warn(f"{path} cannot be locked ({error}): other processes may fetch it too", stacklevel=3)
    try:
        yield
    finally:
        held.release()


def read_or_fetch(home: Path, read: Callable[[Path], T], fetch: Callable[[], T]) -> T:
    """Return `read(home)` or, if files are missing or damaged, `fetch()`, which writes them. One process fetches."""
    try:
        return read(home)
    except (FileNotFoundError, ValueError):
        pass
    with lock(home):
        try:
            return read(home)  # another process may have fetched it meanwhile
        except (FileNotFoundError, ValueError):
            return fetch()


def download(
    url: str, path: Path, *, size: int, known_hash: str, timeout: float = 30, progress: Report | None = None
) -> None:
    """Download the file at `url` to `path` and verify it. On failure, raise an error and leave no file.

    Args:
        url: address of the file.
        path: file to write.
        size: number of bytes of the file. The download stops when the server sends more.
        known_hash: SHA-256 of the file.
        timeout: seconds to wait for a connection, and for each further piece of the file.
        progress: callback that receives the current task and its completed fraction.
    """
    try:
        import pooch
        import requests
    except ImportError as error:
        raise ModuleNotFoundError(f"downloads need {error.name}: {install.command('train')}") from error
    fetch = pooch.HTTPDownloader(
        chunk_size=_CHUNK,
        timeout=timeout,
        headers={"Accept-Encoding": "identity"},  # the checksum belongs to the file as stored
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
                f"{url} could not be downloaded: {file.tell():,} of {size:,} bytes arrived, with SHA-256 {found} "
                f"instead of {known_hash}"
            )


def download_package(release: Release, folder: Path) -> Path:
    """Download the archive of a package of Node.js into `folder` with npm, and return its path.

    The archive is `NAME-VERSION.tgz`. Nothing of it is run, and the caller verifies it.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm, the package manager of Node.js, is not installed")
    name, _, version = release.file.removesuffix(".tgz").rpartition("-")
    quietly = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", "--fetch-timeout=900000"]
    command = [npm, "pack", f"{name}@{version}", *quietly, "--pack-destination", str(folder)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if run.returncode or not (folder / release.file).is_file():
        lines = [line for line in run.stderr.splitlines() if line.strip()]
        raise ConnectionError(lines[0] if lines else f"npm did not download {name}@{version}")
    return folder / release.file


def unpack(path: Path, release: Release) -> dict[str, bytes]:
    """Return the files in an archive by name. Its SHA-256 is checked first, which bounds what it unpacks to."""
    check_regular(path)
    size = path.stat().st_size
    if size != release.bytes or sha256(path) != release.sha256:
        raise ValueError(
            f"{path.name} is cut off or changed: it has {size:,} bytes, and must have {release.bytes:,} bytes and "
            f"SHA-256 {release.sha256}"
        )
    contents = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file:
                contents[Path(member.name).name] = file.read()
    return contents


def first_source(what: str, sources: Mapping[str, Callable[[Path], T]], advice: str) -> T:
    """Return the result of the first of `sources` that succeeds. Each is called with an empty temporary folder.

    If all fail, a RuntimeError lists the failure of each source by its name, and ends with `advice`.
    """
    failures = []
    for name, source in sources.items():
        try:
            with tempfile.TemporaryDirectory() as folder:
                return source(Path(folder))
        except _FAILURES as error:
            failures.append(f"- {name}: {error}")
    raise RuntimeError("\n".join([f"{what} could not be fetched:", *failures, advice]))


def _drop_redirect(response: Any, **_: Any) -> None:
    """Close a redirecting response, because requests would read its content of any length to the end."""
    if response.is_redirect:
        response.close()


class _Arriving:
    """File that receives a download. Raises a ValueError when more than `size` bytes arrive."""

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
