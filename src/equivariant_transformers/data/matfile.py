"""Reader of numeric arrays in MATLAB files of version 5, which MATLAB writes with `-v6` and `-v7`.

`scipy.io.loadmat` (1.17) is not used because a damaged or hostile file can exhaust the memory or crash the process.
`scipy.io.whosmat` does not list the fields of a structure, so the fields cannot be checked before they are read:

- A field that claims to be an array of 2**31 - 1 cells or structures allocates 16 GiB, from a file of 300 bytes.
- Cells nested 20,000 deep overflow the stack, which ends the process.
- The data of an array is unpacked to its claimed length, 2 GB from a file of 2 MB, for any shape.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

_MATRIX, _COMPRESSED = 14, 15
_STRUCT = 2
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x0800
_ALLOWANCE = 2**28  # bytes that any file may unpack to, in addition to _RATIO times its size
_RATIO = 8
_DEEPEST = 8
_LONGEST = 128  # characters of a name; MATLAB allows 63
_MOST_FIELDS = 4096
_MOST_AXES = 32
_MOST_ARRAYS = 100_000


def read_mat(path: str | Path) -> Arrays:
    """Read the numeric arrays in a file, by name and with MATLAB's shapes. Field `f` of structure `s` is `s.f`.

    The elements of an array of structures are `s[0].f`, `s[1].f`, ... Text, cells and sparse arrays are skipped.

    Raises:
        ValueError: if the file unpacks to more than 256 MiB plus eight times its size, holds more than 100,000 arrays,
            or holds structures nested more than 8 deep.
    """
    content = Path(path).read_bytes()
    if content[:10] == b"MATLAB 7.3":
        raise ValueError(f"{path} is a MATLAB 7.3 file, which is in HDF5 format; save it again with -v7")
    if content[:6] != b"MATLAB" or content[126:128] != b"IM":
        raise ValueError(f"{path} is not a little-endian MATLAB file of version 5: it starts with {content[:20]!r}")
    reader = _Reader(_ALLOWANCE + _RATIO * len(content))
    try:
        for kind, data in _elements(memoryview(content)[128:]):
            if kind == _COMPRESSED:
                kind, data = next(_elements(reader.unpack(data)))
            if kind == _MATRIX:
                reader.read(data, None)
    except StopIteration:
        raise ValueError(f"{path} is cut off or damaged: an array is incomplete") from None
    except (ArithmeticError, IndexError, ValueError, struct.error, zlib.error) as error:
        raise ValueError(f"{path} is cut off or damaged: {error}") from error
    return reader.arrays


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the type and the content of each data element in `data`."""
    while data:
        kind, size = struct.unpack("<II", data[:8])
        start, whole = 8, 8 + size + (-size % 8 if kind != _COMPRESSED else 0)
        if kind >> 16:  # up to four bytes are stored in the tag itself
            kind, size, start, whole = kind & 0xFFFF, kind >> 16, 4, 8
        if len(data) < start + size:
            raise ValueError(f"an element of {size} bytes has only {len(data) - start}")
        yield kind, data[start : start + size]
        data = data[whole:]


class _Reader:
    """Collection of the arrays of a file. Raises a ValueError when they take more memory than allowed."""

    def __init__(self, allowance: int) -> None:
        self.arrays: Arrays = {}
        self.unpacked = self.copied = allowance  # remaining bytes

    def unpack(self, data: memoryview) -> memoryview:
        """Return the content of a compressed element."""
        stream = zlib.decompressobj()
        content = stream.decompress(data, self.unpacked + 1)
        if len(content) > self.unpacked:
            raise ValueError("it unpacks to more than the allowed size")
        if not stream.eof:
            raise ValueError("a compressed array is cut off")
        self.unpacked -= len(content)
        return memoryview(content)

    def read(self, data: memoryview, name: str | None, depth: int = 0) -> None:
        """Add the array in `data` or, for a structure, its fields. `name` replaces the name in `data` if given."""
        if not data:
            return
        if depth > _DEEPEST:
            raise ValueError(f"structures are nested more than {_DEEPEST} deep")
        parts = _elements(data)
        flags = int(_values(next(parts))[0])
        shape = _shape(next(parts))
        own_name = _text(next(parts)[1])
        name = own_name if name is None else name
        kind = flags & 0xFF
        if kind in _CLASSES:
            self._add(
                name, _values(next(parts)), _CLASSES[kind], _values(next(parts)) if flags & _COMPLEX else None, shape
            )
        elif kind == _STRUCT:
            width, letters = int(_values(next(parts))[0]), next(parts)[1]
            if not 0 < width <= _LONGEST or len(letters) > width * _MOST_FIELDS:
                raise ValueError(f"a structure has {len(letters)} characters for names of {width} characters each")
            fields = [_text(letters[i : i + width]) for i in range(0, len(letters), width)]
            count = math.prod(shape) if fields else 0
            for index in range(count):
                element = name if count == 1 else f"{name}[{index}]"
                for field in fields:
                    self.read(next(parts)[1], f"{element}.{field}", depth + 1)

    def _add(
        self, name: str, real: NDArray[Any], kind: str, imaginary: NDArray[Any] | None, shape: tuple[int, ...]
    ) -> None:
        self.copied -= real.size * np.dtype(kind).itemsize + (0 if imaginary is None else 16 * imaginary.size)
        if self.copied < 0:
            raise ValueError("its arrays take more than the allowed memory")
        if len(self.arrays) >= _MOST_ARRAYS:
            raise ValueError(f"it holds more than {_MOST_ARRAYS:,} arrays")
        with np.errstate(all="ignore"):  # NaN cast to an integer
            values = real.astype(kind)
        if imaginary is not None:
            values = values + 1j * imaginary
        self.arrays[name] = values.reshape(shape, order="F")


def _shape(element: tuple[int, memoryview]) -> tuple[int, ...]:
    sizes = _values(element)
    if sizes.dtype.kind not in "iu" or not 0 < len(sizes) <= _MOST_AXES or (sizes < 0).any():
        raise ValueError(
            f"an array must have 1 to {_MOST_AXES} axes of non-negative integer sizes, got {len(sizes)} axes"
        )
    return tuple(sizes.tolist())


def _text(data: memoryview) -> str:
    if len(data) > _LONGEST:
        raise ValueError(f"a name has {len(data)} characters, more than {_LONGEST}")
    return bytes(data).split(b"\0")[0].decode()


def _values(element: tuple[int, memoryview]) -> NDArray[Any]:
    kind, data = element
    if kind not in _STORED:
        raise ValueError(f"numbers have the unknown type {kind}")
    return np.frombuffer(data, "<" + _STORED[kind])
