"""A small writer of MATLAB files of version 5, so that tests can make them."""

import struct
import zlib

import numpy as np

CLASSES = {"f8": 6, "f4": 7, "i1": 8, "u1": 9, "i2": 10, "u2": 11, "i4": 12, "u4": 13, "i8": 14, "u8": 15}
STORED = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 9, "i8": 12, "u8": 13}


def write_mat(path, *, compress=True, **arrays):
    """Write numeric arrays, by name; a dict of arrays is written as a structure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM")
        for name, array in arrays.items():
            matrix = _element(14, _structure(name, array) if isinstance(array, dict) else _matrix(name, array))
            squeezed = zlib.compress(matrix)
            file.write(struct.pack("<II", 15, len(squeezed)) + squeezed if compress else matrix)


def write_svhn(folder, **counts):
    """Files in the layout of SVHN's release, with so many images of each part, which differ from each other."""
    for seed, (part, count) in enumerate(counts.items()):
        images = np.random.default_rng(seed).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8)[:, None] % 10 + 1
        write_mat(folder / f"{part}_32x32.mat", X=images, y=labels)


def _structure(name, fields):
    return (
        _element(6, struct.pack("<II", 2, 0))
        + _element(5, np.array([1, 1], "<i4").tobytes())
        + _element(1, name.encode())
        + _element(5, struct.pack("<i", 32))
        + _element(1, b"".join(field.encode().ljust(32, b"\0") for field in fields))
        + b"".join(_element(14, _matrix("", array)) for array in fields.values())
    )


def _matrix(name, array):
    array = np.asarray(array)
    kind = array.dtype.str[1:]
    return (
        _element(6, struct.pack("<II", CLASSES[kind], 0))
        + _element(5, np.array(array.shape, "<i4").tobytes())
        + _element(1, name.encode())
        + _element(STORED[kind], array.astype("<" + kind).tobytes(order="F"))
    )


def _element(kind, content):
    if 0 < len(content) <= 4:  # a small element stands in its tag
        return struct.pack("<HH", kind, len(content)) + content.ljust(4, b"\0")
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)
