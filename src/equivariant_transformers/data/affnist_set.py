"""affNIST: training on translated digits, test on digits under small affine transformations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from equivariant_transformers.data import cache
from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.files import check_regular
from equivariant_transformers.data.imageset import ImageSet, Splits
from equivariant_transformers.data.matfile import read_mat
from equivariant_transformers.data.mnist_set import Digits, digits
from equivariant_transformers.data.synthesis import TRANSLATIONS, image_set, placed, uniform
from equivariant_transformers.text import quote

SIZE = 40
VALIDATION = 5_000
_MARGIN = (SIZE - 28) // 2
_AFFINE = ("x_scale", "y_scale", "x_shear", "rotation")
_TURN = math.radians(20)
_RANGES = ((0.8, 1.2), (0.8, 1.2), (-0.2, 0.2), (-_TURN, _TURN), (0.0, 1.0), (0.0, 1.0))


def affnist(
    training: Literal["translated", "centred"] = "translated",
    *,
    examples: int | None = None,
    test_copies: int = 32,
    root: str | Path | None = None,
    mnist_root: str | Path | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> Splits:
    """Return MNIST on 40 x 40 pixels for training and validation, and affNIST for the test.

    The test set is read from the official files of the transformed version of affNIST if they exist: `test.mat`, or
    `test_batches/1.mat` and so on. Otherwise it is generated from MNIST's test digits by the published recipe. The
    field `origin` of the test set records its source.

    Args:
        training: position of the training and validation digits, random (`translated`) or in the middle (`centred`).
        examples: number of training images; all 55,000 by default. Fewer images are a subset of more images.
        test_copies: number of transformed copies of each of the 10,000 test digits, if the test set is generated.
        root: folder of affNIST's files. Default: `affnist` in the cache directory.
        mnist_root: folder of MNIST's files; see `mnist_set.digits`.
        seed: random seed for the validation digits, positions and transformations.
        device: device on which the images are generated and stored.
        progress: callback that receives the current task and its completed fraction.
    """
    if training not in ("translated", "centred"):
        raise ValueError(f"training must be translated or centred, got {training!r}")
    check_test_copies(test_copies)
    official = _official_files(root)
    train, test = digits(mnist_root, progress=progress)
    generator = torch.Generator().manual_seed(seed)
    learned, held_out = on_canvas(train, training, generator, examples=examples, device=device, progress=progress)
    if official:
        images, labels = _read_official(official)
        tested = ImageSet(
            images=images.to(device),
            labels=labels.to(device),
            name="affNIST",
            origin=f"official affNIST files ({official[0].name}{', ...' if len(official) > 1 else ''})",
            mean=learned.mean,
            std=learned.std,
        )
    else:
        poses = torch.cat([_draw_poses(test, generator) for _ in range(test_copies)])
        tested = image_set(
            test,
            poses,
            (*_AFFINE, *TRANSLATIONS),
            size=SIZE,
            name="affNIST",
            origin="regenerated from MNIST's test digits by affNIST's recipe",
            normalisation=(learned.mean, learned.std),
            device=device,
            progress=progress,
        )
    return Splits(learned, held_out, tested)


def on_canvas(
    train: Digits,
    training: Literal["translated", "centred"],
    generator: torch.Generator,
    *,
    examples: int | None,
    device: torch.device | str,
    progress: Report | None,
) -> tuple[ImageSet, ImageSet]:
    """Return MNIST's training digits on a canvas of 40 x 40 pixels, for training and validation.

    The arguments are those of `affnist`. The normalisation is computed from all digits, whatever `examples` is.
    """
    order = torch.randperm(len(train.labels), generator=generator)
    steps = torch.randint(-_MARGIN, _MARGIN + 1, (len(order), 2), generator=generator).double()
    moved = image_set(
        train.take(order),
        (0 if training == "centred" else 2 / (SIZE - 1)) * steps,
        TRANSLATIONS,
        size=SIZE,
        name=f"MNIST, {training} on {SIZE} x {SIZE}",
        origin="generated from MNIST",
        device=device,
        progress=progress,
    )
    most = len(order) - VALIDATION
    if examples is not None and not 1 <= examples <= most:
        raise ValueError(f"examples must be from 1 to {most:,}, got {examples}")
    places = torch.arange(len(order))
    return moved.take(places[VALIDATION:][:examples]), moved.take(places[:VALIDATION])


def check_test_copies(test_copies: int) -> None:
    """Raise a ValueError unless a test set can have `test_copies` transformed copies of each digit."""
    if test_copies < 1:
        raise ValueError(f"test_copies must be at least 1, got {test_copies}")


def _draw_poses(base: Digits, generator: torch.Generator) -> Tensor:
    """Draw random affine poses `(N, 6)` for the digits of `base`, at random positions where no digit is cropped."""
    draws = uniform(len(base.labels), _RANGES, generator)
    affine = torch.cat((-draws[:, :2].log(), draws[:, 2:4]), -1)
    return torch.cat((affine, placed(base.images, affine, _AFFINE, draws[:, 4:], size=SIZE)), -1)


def _official_files(root: str | Path | None) -> list[Path]:
    home = cache.root() / "affnist" if root is None else Path(root)
    if (home / "test.mat").is_file():
        return [home / "test.mat"]
    batches = [path for path in (home / "test_batches").glob("*.mat") if path.stem.isdigit()]
    if root is not None and not batches:
        raise FileNotFoundError(f"{home} contains neither test.mat nor test_batches/1.mat: put one of them there")
    return sorted(batches, key=lambda path: int(path.stem))


def _read_official(paths: list[Path]) -> tuple[Tensor, Tensor]:
    images, labels = [], []
    for path in paths:
        check_regular(path)
        arrays = read_mat(path)
        pixels, numbers = arrays.get("affNISTdata.image"), arrays.get("affNISTdata.label_int")
        if pixels is None or numbers is None or pixels.shape != (SIZE * SIZE, numbers.size):
            shapes = {name: array.shape for name, array in arrays.items()}
            raise ValueError(f"{path} is not an affNIST file: it holds {quote(shapes)}")
        if not (numbers.size and np.isin(numbers, range(10)).all()):
            raise ValueError(f"{path} is not an affNIST file: its labels are not digits from 0 to 9")
        if pixels.dtype.kind not in "iuf" or not (pixels.min() >= 0 and pixels.max() <= 255):
            raise ValueError(f"{path} is not an affNIST file: its pixels are not between 0 and 255")
        images.append(torch.from_numpy(pixels.T.astype("u1")).reshape(-1, 1, SIZE, SIZE))
        labels.append(torch.from_numpy(numbers.real.ravel().astype("i8")))
    pictures = torch.cat(images)
    edge = pictures.clone()
    edge[..., _MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = 0
    if not edge.any():
        raise ValueError(f"{paths[0]} holds affNIST's centred digits; the test needs the transformed digits")
    return pictures, torch.cat(labels)
