"""Reader of `.amat` files, the text files in which the variations of MNIST were published in 2007."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from equivariant_transformers.data.files import check_regular
from equivariant_transformers.data.mnist_set import Digits

_PIXELS = 28 * 28


def read_amat(path: Path, count: int) -> Digits:
    """Read `count` digits. A row of the file has 784 pixels from 0 to 1, row by row, and a label."""
    check_regular(path)
    wanted = f"{path} must hold {count:,} rows of {_PIXELS} pixels and a label"
    try:
        rows = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{wanted}; it cannot be read ({error})") from None
    if rows.shape != (count, _PIXELS + 1):
        raise ValueError(f"{wanted}, got {rows.shape[0]:,} rows of {rows.shape[1]:,} numbers")
    pixels, labels = rows[:, :-1], rows[:, -1]
    if not np.isin(labels, range(10)).all():
        raise ValueError(f"{path} is not a file of digits: its labels are not digits from 0 to 9")
    if not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError(f"{path} is not a file of digits: its pixels are not between 0 and 1")
    images = torch.from_numpy((255 * pixels).round().astype(np.uint8)).reshape(count, 28, 28)
    return Digits(images, torch.from_numpy(labels.astype(np.int64)))
