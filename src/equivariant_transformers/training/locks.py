"""Locks on directories, so that one run at a time uses a directory."""

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
"""Names of the file that is locked and of the file that describes the process holding the lock."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class InUseError(RuntimeError):
    """Error for a directory that is locked already."""


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Lock `directory` until the block or this process ends.

    A missing directory is created. At the end it is removed if the block has left it empty.

    Raises:
        InUseError: at once, if the directory is locked already. The message names the process holding the lock.

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
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file, not a folder", str(directory))
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock, holder = FileLock(directory / LOCK), directory / HOLDER
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InUseError(
            f"{directory} is in use by {_read(holder)}. Wait until it ends, or choose another directory"
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
        with suppress(OSError):  # Windows cannot remove open files; rmdir cannot remove directories with files
            holder.unlink(missing_ok=True)
            (directory / LOCK).unlink()
            for path in made:
                path.rmdir()
        lock.release()


def _describe() -> str:
    """Return one line that describes this process."""
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return f"process {os.getpid()} on {platform.node()} since {since} ({command})"


def _read(holder: Path) -> str:
    try:
        return holder.read_text(errors="replace")
    except OSError:  # not written yet, or just removed
        return "another process"
