"""Directories that one process at a time writes into."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from equivariant_transformers.data.files import atomic_write

LOCK, HOLDER = ".lock", ".lock.holder"
"""Names of the file that is locked and of the file about the process that holds it."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class InUseError(RuntimeError):
    """Another process holds the directory."""


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Keep other processes from holding `directory` until the block or this process ends.

    The directory is made if it is missing, and removed at the end if the block has left nothing in it.

    Raises:
        InUseError: at once, if another process holds the directory. The message names it.

    >>> import tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> with hold(directory):
    ...     try:
    ...         with hold(directory):
    ...             pass
    ...     except InUseError as error:
    ...         print(f"process {os.getpid()} on" in str(error))
    True
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock, holder = FileLock(directory / LOCK), directory / HOLDER
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InUseError(
            f"{directory} is in use by {_read(holder)}. Wait for its end, or choose another directory"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(f"{directory} cannot be locked ({error.strerror}): use it for one run at a time", stacklevel=3)
        yield
        return
    try:
        with atomic_write(holder) as file:
            file.write(_describe().encode(errors="replace"))
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file, and nothing removes a directory with files
            holder.unlink(missing_ok=True)
            (directory / LOCK).unlink()
            for path in made:
                path.rmdir()
        lock.release()


def _describe() -> str:
    """Return a line about this process."""
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return f"process {os.getpid()} on {platform.node()} since {since} ({command})"


def _read(holder: Path) -> str:
    try:
        return holder.read_text(errors="replace")
    except OSError:  # the process is about to write it, or has just removed it
        return "another process"
