"""Projective MNIST, the paper's benchmark, made as its authors make it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.imageset import Splits
from equivariant_transformers.data.mnist_set import digits
from equivariant_transformers.data.synthesis import image_set, uniform

SIZE = 64
COPIES = 8
EXAMPLES = 10_000
VALIDATION = 5_000
NORMALISATION = ((16.2884,), (56.2673,))
"""The authors' mean and deviation of a pixel."""
PERSPECTIVE = 0.8 * (SIZE - 1) / 28
"""The most that both perspectives are together: 0.8 for a digit of height 2, here 28 pixels of SIZE - 1."""
RANGES = {
    "y_perspective": (-PERSPECTIVE, PERSPECTIVE),
    "x_perspective": (-PERSPECTIVE, PERSPECTIVE),
    "hyperbolic_rotation": (-math.log(1.5), math.log(1.5)),
    "dilation": (-math.log(2), 0.0),
    "x_shear": (-1.5, 1.5),
    "rotation": (-math.pi, math.pi),
}
"""How far each group moves the digits; the transformation is the product of the groups' in this order."""
POSE_NAMES = tuple(RANGES)


def projective_mnist(
    copies: int = 1,
    *,
    examples: int = EXAMPLES,
    test_copies: int = COPIES,
    root: str | Path | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> Splits:
    r"""MNIST digits on 64 x 64 pixels under random projective transformations, with their poses.

    An image is a digit seen through $T = T_1 \cdots T_6$, one factor for each of `pose_names`, in that order and in the
    library's signs. The images are the same for the same `seed` on every machine and device, up to the rounding of
    the interpolation; those of fewer `copies`, `examples` and `test_copies` are among those of more.

    Args:
        copies: transformed versions of each training digit: 1, 2, 4 or 8 in the paper.
        examples: training digits, up to 10,000.
        test_copies: transformed versions of each of the 10,000 test digits, up to 8.
        root: the folder of MNIST's files; see `mnist.digits`.
        seed: chooses digits and transformations.
        device: where the images are made and stay.
        progress: told how far it is.
    """
    for name, value, most in (
        ("copies", copies, COPIES),
        ("examples", examples, EXAMPLES),
        ("test_copies", test_copies, COPIES),
    ):
        if not 1 <= value <= most:
            raise ValueError(f"{name} goes from 1 to {most}, got {value}")
    train, test = digits(root, progress=progress)
    # All is drawn, whatever is asked for, so that a smaller set is a part of a larger one.
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train.labels), generator=generator)
    train_poses = _draw_poses(COPIES, EXAMPLES, generator)
    validation_poses = _draw_poses(1, VALIDATION, generator)
    test_poses = _draw_poses(COPIES, len(test.labels), generator)
    make = partial(
        image_set,
        pose_names=POSE_NAMES,
        size=SIZE,
        name="Projective MNIST",
        origin="generated from MNIST by the authors' recipe",
        normalisation=NORMALISATION,
        mode="sharp_bicubic",
        device=device,
        progress=progress,
    )
    return Splits(
        make(train.take(order[:examples]), train_poses[:copies, :examples].flatten(0, 1)),
        make(train.take(order[EXAMPLES : EXAMPLES + VALIDATION]), validation_poses.flatten(0, 1)),
        make(test, test_poses[:test_copies].flatten(0, 1)),
    )


def _draw_poses(copies: int, count: int, generator: torch.Generator) -> Tensor:
    """Poses `(copies, count, 6)`, uniform but for the perspectives: (a, b (1 - |a|)), a and b uniform, times 1.8."""
    shares = [(-1.0, 1.0), (-1.0, 1.0), *list(RANGES.values())[2:]]
    poses = uniform(copies * count, shares, generator).reshape(copies, count, -1)
    poses[..., 0] *= 1 - poses[..., 1].abs()
    poses[..., :2] *= PERSPECTIVE
    return poses
