"""Files that are written whole or not at all, and read only where they are files."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import platform
import secrets
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # on Windows, where what a killed process left stays
    fcntl = None  # type: ignore[assignment]


def check_regular(path: Path) -> None:
    """Raise an OSError unless `path` is a regular file or a link to one.

    Reading a pipe, a socket or a device could block, or never end.

    >>> check_regular(Path("/"))
    Traceback (most recent call last):
    IsADirectoryError: [Errno 21] a folder, not a file: '/'
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a pipe, a socket or a device, not a file", str(path))


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `path` whole when the block ends; if it fails, what was there before stays.

    Temporary files that killed processes of this machine left of the same file are removed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"all of it")
    >>> path.read_bytes()
    b'all of it'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        check_regular(path)  # a rename would replace a device
    _remove_abandoned(path)
    try:
        with _temporary(path) as temporary:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space there, or choose another directory (for data sets: set ET_DATA)"
            raise OSError(error.errno, f"no space left to write {path}: {advice}") from error
        raise


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Create an empty file beside `path`, and remove it when the block ends.

    The file is locked as long as its process lives, where the file system has locks: see `_remove_abandoned`.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{_host()}{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:
            os.close(descriptor)  # Windows renames no open file
            break
        with suppress(OSError):  # there are no locks here, or another process has found the file before it was locked
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if temporary.exists():
            break
        os.close(descriptor)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        if fcntl is not None:
            os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of `path` that no process holds the lock of.

    Only the files of this machine: on a network file system, locks may be known to one machine alone.
    """
    if fcntl is None:
        return
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.{_host()}{8 * '[0-9a-f]'}"):
        with suppress(OSError):  # the file is locked, gone or another user's, or there are no locks here
            descriptor = os.open(temporary, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                temporary.unlink()
            finally:
                os.close(descriptor)


@cache
def _host() -> str:
    """Return eight hexadecimal digits that tell this machine from others."""
    return hashlib.sha256(f"{platform.node()} {uuid.getnode()}".encode()).hexdigest()[:8]
