"""Numeric arrays out of MATLAB files of version 5 (what MATLAB writes with `-v6` and `-v7`).

`scipy.io.loadmat` (1.17) is not used because a damaged or hostile file can exhaust the memory or crash the process.
`scipy.io.whosmat` does not show the fields of a structure, so that they cannot be checked before they are read:

- A field that claims to be an array of 2**31 - 1 cells or structures allocates 16 GiB, from a file of 300 bytes.
- Cells nested 20,000 deep overflow the stack, which ends the process.
- The data of an array is unpacked to the length that it claims, 2 GB from a file of 2 MB, whatever the shape.
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
_ALLOWANCE = 2**28  # bytes that any file may unpack to, besides _RATIO times its size
_RATIO = 8
_DEEPEST = 8
_LONGEST = 128  # letters of a name; MATLAB allows 63
_MOST_FIELDS = 4096
_MOST_AXES = 32
_MOST_ARRAYS = 100_000


def read_mat(path: str | Path) -> Arrays:
    """The numeric arrays in a file, by name and with MATLAB's shapes; a field `f` of a structure `s` is `s.f`.

    The elements of an array of structures are `s[0].f`, `s[1].f`, ... Text, cells and sparse arrays are passed over.
    A file that unpacks to more than 256 MiB and eight times its size, or holds more than 100,000 arrays, or structures
    nested more than 8 deep, raises a ValueError.
    """
    content = Path(path).read_bytes()
    if content[:10] == b"MATLAB 7.3":
        raise ValueError(f"{path} is a MATLAB 7.3 file, which is HDF5 inside; save it again with -v7")
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
        raise ValueError(f"{path} is cut off or damaged: an array lacks some of its parts") from None
    except (ArithmeticError, IndexError, ValueError, struct.error, zlib.error) as error:
        raise ValueError(f"{path} is cut off or damaged: {error}") from error
    return reader.arrays


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The type and the content of each data element in `data`."""
    while data:
        kind, size = struct.unpack("<II", data[:8])
        start, whole = 8, 8 + size + (-size % 8 if kind != _COMPRESSED else 0)
        if kind >> 16:  # up to four bytes stand in the tag itself
            kind, size, start, whole = kind & 0xFFFF, kind >> 16, 4, 8
        if len(data) < start + size:
            raise ValueError(f"an element of {size} bytes has only {len(data) - start}")
        yield kind, data[start : start + size]
        data = data[whole:]


class _Reader:
    """Collects arrays, and stops where they take more memory than the file may."""

    def __init__(self, allowance: int) -> None:
        self.arrays: Arrays = {}
        self.unpacked = self.copied = allowance  # bytes that are left

    def unpack(self, data: memoryview) -> memoryview:
        """Return the content of a compressed element."""
        stream = zlib.decompressobj()
        content = stream.decompress(data, self.unpacked + 1)
        if len(content) > self.unpacked:
            raise ValueError("it unpacks to many times its size")
        if not stream.eof:
            raise ValueError("a compressed array is cut off")
        self.unpacked -= len(content)
        return memoryview(content)

    def read(self, data: memoryview, name: str | None, depth: int = 0) -> None:
        """Add the array in `data`, or the fields of the structure in it; fields get their `name` from it."""
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
                raise ValueError(f"a structure has {len(letters)} letters for names of {width} letters each")
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
            raise ValueError("its arrays take many times the size of the file")
        if len(self.arrays) >= _MOST_ARRAYS:
            raise ValueError(f"it holds more than {_MOST_ARRAYS:,} arrays")
        with np.errstate(all="ignore"):  # NaN as a whole number
            values = real.astype(kind)
        if imaginary is not None:
            values = values + 1j * imaginary
        self.arrays[name] = values.reshape(shape, order="F")


def _shape(element: tuple[int, memoryview]) -> tuple[int, ...]:
    sizes = _values(element)
    if sizes.dtype.kind not in "iu" or not 0 < len(sizes) <= _MOST_AXES or (sizes < 0).any():
        raise ValueError(f"an array of {len(sizes)} axes, or of sizes that are no whole numbers from 0")
    return tuple(sizes.tolist())


def _text(data: memoryview) -> str:
    if len(data) > _LONGEST:
        raise ValueError(f"a name of {len(data)} letters")
    return bytes(data).split(b"\0")[0].decode()


def _values(element: tuple[int, memoryview]) -> NDArray[Any]:
    kind, data = element
    if kind not in _STORED:
        raise ValueError(f"numbers of an unknown type {kind}")
    return np.frombuffer(data, "<" + _STORED[kind])
