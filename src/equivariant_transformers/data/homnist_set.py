"""homNIST: training on centred digits, test on digits under random homographies."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from equivariant_transformers.data.affnist_set import SIZE, check_test_copies, on_canvas
from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.imageset import Splits
from equivariant_transformers.data.mnist_set import digits
from equivariant_transformers.data.projective_mnist_set import POSE_NAMES as LINEAR
from equivariant_transformers.data.synthesis import TRANSLATIONS, image_set

POSE_NAMES = (*LINEAR, *TRANSLATIONS)
_ENTRIES = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1))
SCALES = (0.15, 0.35, 0.17, 0.35, 0.15, 0.17, 0.15, 0.15)
"""Scale of each coefficient in the basis of sl(3): the matrix units at `_ENTRIES`, minus a third of their trace."""


def homnist(
    *,
    examples: int | None = None,
    test_copies: int = 32,
    root: str | Path | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> Splits:
    """Return MNIST in the middle of 40 x 40 pixels for training and validation, and homNIST for the test.

    The test set is generated from MNIST's test digits by the recipe of MacDonald, Ramasinghe and Lucey (CVPR 2022).
    For the same seed, the training and validation images are those of `affnist("centred")`.

    Args:
        examples: number of training images; all 55,000 by default. Fewer images are a subset of more images.
        test_copies: number of transformed copies of each of the 10,000 test digits.
        root: folder of MNIST's files; see `mnist_set.digits`.
        seed: random seed for the validation digits and the homographies.
        device: device on which the images are generated and stored.
        progress: callback that receives the current task and its completed fraction.
    """
    check_test_copies(test_copies)
    train, test = digits(root, progress=progress)
    generator = torch.Generator().manual_seed(seed)
    learned, held_out = on_canvas(train, "centred", generator, examples=examples, device=device, progress=progress)
    homographies = torch.cat([draw_homographies(len(test.labels), generator) for _ in range(test_copies)])
    tested = image_set(
        test,
        poses_of(homographies),
        POSE_NAMES,
        size=SIZE,
        name="homNIST",
        origin="regenerated from MNIST's test digits by homNIST's recipe",
        normalisation=(learned.mean, learned.std),
        device=device,
        progress=progress,
    )
    return Splits(learned, held_out, tested)


def draw_homographies(count: int, generator: torch.Generator) -> Tensor:
    """Draw homographies H `(count, 3, 3)` of points (row, column, 1): a point p of an image shows the digit at H^-1 p.

    H is the matrix exponential of a sum over the basis of sl(3). A coefficient is the sum of two normal draws, each
    with half of its scale in `SCALES` as standard deviation.
    """
    draws = torch.randn(2, count, len(SCALES), dtype=torch.float64, generator=generator)
    coefficients = 0.5 * torch.tensor(SCALES, dtype=torch.float64) * draws.sum(0)
    basis = torch.zeros(len(SCALES), 3, 3, dtype=torch.float64)
    for unit, (row, column) in zip(basis, _ENTRIES, strict=True):
        unit[row, column] = 1
    basis -= basis.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] / 3 * torch.eye(3, dtype=torch.float64)
    homographies: Tensor = torch.linalg.matrix_exp(torch.einsum("nk,kij->nij", coefficients, basis))
    return homographies


def poses_of(homographies: Tensor) -> Tensor:
    """Return the poses `(N, 8)` of `POSE_NAMES` that transform a digit like `homographies` `(N, 3, 3)`.

    The homography, with x and y in place of column and row, is a product of two perspectives and an affine map. The
    linear part of the affine map is an upper triangular matrix times a rotation.
    """
    swap = torch.tensor([1, 0, 2], device=homographies.device)
    matrix = torch.linalg.inv(homographies)[:, swap][:, :, swap]
    linear, shift, bottom = matrix[:, :2, :2], matrix[:, :2, 2], matrix[:, 2, :2]
    inverse = torch.linalg.inv(linear)
    perspective = torch.einsum("ni,nij->nj", bottom, inverse)
    linear = linear / (matrix[:, 2, 2] - (perspective * shift).sum(-1))[:, None, None]
    first, second = linear.unbind(1)
    height = second.norm(dim=-1)
    width = torch.linalg.det(linear) / height
    shear = -(first * second).sum(-1) / (height * width)
    translation = torch.einsum("nij,nj->ni", inverse, shift)
    columns = (
        perspective[:, 1],
        perspective[:, 0],
        (width / height).log() / 2,
        (width * height).log() / 2,
        shear,
        torch.atan2(second[:, 0], second[:, 1]),
        *translation.unbind(-1),
    )
    return torch.stack(columns, -1)
