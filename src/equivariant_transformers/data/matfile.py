"""Numeric arrays out of MATLAB files of version 5 (what MATLAB writes with `-v6` and `-v7`)."""

from __future__ import annotations

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


def read_mat(path: str | Path) -> Arrays:
    """The numeric arrays in a file, by name and with MATLAB's shapes; a field `f` of a structure `s` is `s.f`.

    The elements of an array of structures are `s[0].f`, `s[1].f`, ... Text, cells and sparse arrays are passed over.
    """
    content = Path(path).read_bytes()
    if content[:10] == b"MATLAB 7.3":
        raise ValueError(f"{path} is a MATLAB 7.3 file, which is HDF5 inside; save it again with -v7")
    if content[:6] != b"MATLAB" or content[126:128] != b"IM":
        raise ValueError(f"{path} is not a little-endian MATLAB file of version 5: it starts with {content[:20]!r}")
    arrays: Arrays = {}
    try:
        for kind, data in _elements(memoryview(content)[128:]):
            if kind == _COMPRESSED:
                (kind, data), *_ = _elements(memoryview(zlib.decompress(data)))
            if kind == _MATRIX:
                _read_matrix(data, None, arrays)
    except (ValueError, struct.error, zlib.error, IndexError, StopIteration) as error:
        raise ValueError(f"{path} is cut off or damaged: {error}") from error
    return arrays


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


def _read_matrix(data: memoryview, name: str | None, arrays: Arrays) -> None:
    """Add the array in `data`, or the fields of the structure in it, to `arrays`; fields get their `name` from it."""
    if not data:
        return
    parts = _elements(data)
    flags = int(_values(next(parts))[0])
    shape = tuple(_values(next(parts)).tolist())
    own_name = bytes(next(parts)[1]).decode()
    name = own_name if name is None else name
    kind = flags & 0xFF
    if kind in _CLASSES:
        values = _values(next(parts)).astype(_CLASSES[kind])
        if flags & _COMPLEX:
            values = values + 1j * _values(next(parts))
        arrays[name] = values.reshape(shape, order="F")
    elif kind == _STRUCT:
        width = int(_values(next(parts))[0])
        letters = bytes(next(parts)[1])
        fields = [letters[i : i + width].split(b"\0")[0].decode() for i in range(0, len(letters), width)]
        count = int(np.prod(shape))
        for index in range(count):
            element = name if count == 1 else f"{name}[{index}]"
            for field in fields:
                _read_matrix(next(parts)[1], f"{element}.{field}", arrays)


def _values(element: tuple[int, memoryview]) -> NDArray[Any]:
    kind, data = element
    if kind not in _STORED:
        raise ValueError(f"numbers of an unknown type {kind}")
    return np.frombuffer(data, "<" + _STORED[kind])
