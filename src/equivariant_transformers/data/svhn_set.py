"""Street View House Numbers: digits cropped from photographs, 32 x 32 in colour.

Home page: http://ufldl.stanford.edu/housenumbers/ (non-commercial use only). Cite: Netzer et al.,
*Reading Digits in Natural Images with Unsupervised Feature Learning*, NIPS Workshop 2011.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equivariant_transformers.data import cache
from equivariant_transformers.data.cache import Release
from equivariant_transformers.data.files import check_regular
from equivariant_transformers.data.imageset import ImageSet, Splits, draw, statistics
from equivariant_transformers.data.matfile import read_mat
from equivariant_transformers.text import quote

HOST = "http://ufldl.stanford.edu/housenumbers/"


FILES = {
    "train": Release(
        "train_32x32.mat", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182_040_794
    ),
    "test": Release("test_32x32.mat", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64_275_384),
    "extra": Release(
        "extra_32x32.mat", "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3", 1_329_278_602
    ),
}


def svhn(
    examples: int | None = None,
    *,
    extra: bool = False,
    validation: int = 5_000,
    root: str | Path | None = None,
    accept_other_files: bool = False,
    seed: int = 0,
    progress: cache.Report | None = None,
) -> Splits:
    """Return the cropped digits, split as in the paper: 5,000 of the 73,257 training images are for validation.

    The digit 0, which has label 10 in the files, has label 0. The mean and the standard deviation per channel are
    computed from the training images in use. Missing files are downloaded.

    Args:
        examples: number of training images; the paper also uses 10,000 and 20,000. Default: all remaining 68,257. For
            the same seed, a smaller set is a subset of a larger one.
        extra: add the 531,131 easier images of the extra file (1.3 GB).
        validation: number of images for validation.
        root: folder of the files. Default: `svhn` in the cache directory.
        accept_other_files: accept files that differ from the official files. `origin` then records the difference.
        seed: random seed for the choice of the images.
        progress: callback that receives the current task and its completed fraction.
    """
    folder = cache.root() / "svhn" if root is None else Path(root)
    names = ("train", "test", "extra") if extra else ("train", "test")
    paths = {name: _fetch(FILES[name], folder, progress) for name in names}
    differing = [path.name for name, path in paths.items() if cache.sha256(path) != FILES[name].sha256]
    if differing and not accept_other_files:
        raise ValueError(
            f"files differ from the official release: {', '.join(differing)} in {folder}. Remove them to download the "
            "official files, or pass accept_other_files=True (et train, evaluate, audit and reproduce: "
            "--accept-other-files) to use them; the results record this"
        )
    (images, labels), test = _read(paths["train"]), _read(paths["test"])
    chosen, held = draw(len(labels), examples, validation, seed=seed)
    train = images[chosen], labels[chosen]
    if extra:
        more_images, more_labels = _read(paths["extra"])
        train = torch.cat((train[0], more_images)), torch.cat((train[1], more_labels))
    origin = f"files other than the official ones: {', '.join(differing)}" if differing else "official"
    mean, std = statistics(train[0])
    return Splits(
        *(
            ImageSet(images=part[0], labels=part[1], name="SVHN", origin=origin, mean=mean, std=std)
            for part in (train, (images[held], labels[held]), test)
        )
    )


def _fetch(release: Release, folder: Path, progress: cache.Report | None) -> Path:
    """Return the path of a file in `folder`. A missing file is downloaded and verified."""
    path = folder / release.file
    if path.exists():
        check_regular(path)
        return path
    what = f"downloading {release.file} ({release.bytes / 1e6:.0f} MB)"
    tell = progress and (lambda _, share: progress(what, share))
    with cache.lock(path):
        if not path.exists():  # another process may have downloaded it
            try:
                cache.download(HOST + release.file, path, size=release.bytes, known_hash=release.sha256, progress=tell)
            except ConnectionError as error:
                raise ConnectionError(f"{error}; try again later, or put the file into {folder}") from error
    return path


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Read images `(N, 3, 32, 32)` and labels `(N,)` from a file's `X` `(32, 32, 3, N)` and `y` `(N, 1)`."""
    arrays = read_mat(path)
    shapes = {name: array.shape for name, array in arrays.items()}
    pixels, numbers = arrays.get("X"), arrays.get("y")
    if pixels is None or numbers is None or pixels.shape != (32, 32, 3, len(numbers)) or numbers.shape[1:] != (1,):
        raise ValueError(f"{path} needs X of shape (32, 32, 3, N) and y of shape (N, 1), got {quote(shapes)}")
    if pixels.dtype != np.uint8:
        raise ValueError(f"{path} needs X of type uint8, got {pixels.dtype}")
    if not np.isin(numbers, range(256)).all():
        raise ValueError(f"{path} needs integers from 1 to 10 in y, got other values")
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    digits = torch.from_numpy(numbers[:, 0].real.astype(np.int64))
    return torch.from_numpy(images), torch.where(digits == 10, 0, digits)
