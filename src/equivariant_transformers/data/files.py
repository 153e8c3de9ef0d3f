"""Atomic file writes, and checks that a path is a regular file."""

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
except ImportError:  # on Windows, where temporary files of killed processes remain
    fcntl = None  # type: ignore[assignment]


def check_regular(path: Path) -> None:
    """Raise an OSError unless `path` is a regular file or a link to one.

    Reading a pipe, a socket or a device could block or never end.

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
    """Open a file that replaces `path` when the block ends. If the block raises, `path` stays unchanged.

    Temporary files of `path` that killed processes of this machine left behind are removed.

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

    The process locks the file while it runs, if the file system supports locks: see `_remove_abandoned`. The lock is
    not a `filelock.FileLock`, which creates its file: a temporary file that was just renamed would appear again.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{_host()}{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:
            os.close(descriptor)  # Windows cannot rename an open file
            break
        with suppress(OSError):  # no locks on this file system
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if temporary.exists():  # another process may have removed it before it was locked
            break
        os.close(descriptor)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        if fcntl is not None:
            os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files of `path` that no process has locked.

    Files of other machines are kept: on a network file system, a lock may be visible to one machine only.
    """
    if fcntl is None:
        return
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.{_host()}{8 * '[0-9a-f]'}"):
        with suppress(OSError):  # locked, removed or owned by another user, or no locks on this file system
            descriptor = os.open(temporary, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                temporary.unlink()
            finally:
                os.close(descriptor)


@cache
def _host() -> str:
    """Return eight hexadecimal digits that identify this machine."""
    return hashlib.sha256(f"{platform.node()} {uuid.getnode()}".encode()).hexdigest()[:8]
