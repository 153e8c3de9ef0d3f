"""Pictures of many kinds in folders and CSV tables: grey, transparent, palette, 16 bits, upright and oblong."""

import csv

import numpy as np
from PIL import Image

CLASSES = ("circle", "square", "stripe")
SHAPES = ((24, 40), (40, 24), (32, 32), (17, 50))


def picture(index):
    """Return a noisy picture of class `index % 3`, in one of five modes and four shapes."""
    height, width = SHAPES[index % len(SHAPES)]
    rng = np.random.default_rng(index)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    shape = (x**2 + y**2 < 0.5, np.maximum(abs(x), abs(y)) < 0.6, np.sin(9 * x) > 0)[index % 3]
    values = (90 * shape + rng.integers(100, size=shape.shape)).astype(np.uint8)
    kind = ("L", "RGB", "RGBA", "P", "I;16")[index % 5]
    if kind == "I;16":
        return Image.fromarray(values.astype(np.uint16) * 257)
    return Image.fromarray(values).convert("RGB").convert(kind)


def write_folder(root, count):
    """Write `count` pictures into class folders and return the folder."""
    for index in range(count):
        file = root / CLASSES[index % 3] / f"{index:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(index).save(file)
    return root


def write_table(root, count, splits=None, name="labels.csv"):
    """Write `count` pictures and a CSV file that lists them, and return the CSV file."""
    folder = write_folder(root / "pictures", count)
    with (root / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"] + (["split"] if splits else []))
        for index, path in enumerate(sorted(folder.rglob("*.png"))):
            row = [path.relative_to(root).as_posix(), path.parent.name]
            writer.writerow(row + ([splits[index % len(splits)]] if splits else []))
    return root / name
