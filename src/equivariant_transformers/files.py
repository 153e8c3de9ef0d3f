"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `path` whole when the block ends; if it fails, what was there before stays.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"all of it")
    >>> path.read_bytes()
    b'all of it'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
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
