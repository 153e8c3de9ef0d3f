"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_ABANDONED = 3600.0  # seconds without a write: the process of the file was killed


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `path` whole when the block ends; if it fails, what was there before stays.

    What processes that were killed have left of the same file is removed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"all of it")
    >>> path.read_bytes()
    b'all of it'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space there, or choose another directory (for data sets: set ET_DATA)"
            raise OSError(error.errno, f"no space left to write {path}: {advice}") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.{8 * '[0-9a-f]'}"):
        with suppress(OSError):  # another process is faster, or the file is another user's
            if time.time() - temporary.stat().st_mtime > _ABANDONED:
                temporary.unlink()
