"""Storage of uploaded files on disk, with limits."""

from __future__ import annotations

import hashlib
from pathlib import Path

from equivariant_transformers.demo.uploads import MOST_BYTES

MOST_FILES = 16
MOST_STORED = 6 * MOST_BYTES


class Store:
    """Folder of files with a limit on their number and on their total size in bytes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(Path(folder), most_files=5, most_bytes=20)
    ...     paths = [store.keep(letter * 10) for letter in (b"a", b"b", b"c")]
    ...     [path.exists() for path in paths]
    [False, True, True]
    """

    def __init__(self, folder: Path, *, most_files: int = MOST_FILES, most_bytes: int = MOST_STORED) -> None:
        self.folder = folder
        self.most_files = most_files
        self.most_bytes = most_bytes
        self._sizes: dict[Path, int] = {}  # bytes by path, oldest first

    def keep(self, data: bytes) -> Path:
        """Write `data` to a file named by its hash, remove the oldest files beyond the limits, and return the path."""
        path = self.folder / hashlib.sha256(data).hexdigest()
        self._sizes.pop(path, None)
        while self._sizes and (
            len(self._sizes) >= self.most_files or sum(self._sizes.values()) + len(data) > self.most_bytes
        ):
            oldest = next(iter(self._sizes))
            oldest.unlink(missing_ok=True)
            del self._sizes[oldest]
        self.folder.mkdir(exist_ok=True)
        path.write_bytes(data)
        self._sizes[path] = len(data)
        return path
