"""Labelled uint8 images, on one device or in files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from equivariant_transformers.data.stored import Pixels, subset, totals
from equivariant_transformers.data.targets import check_labels
from equivariant_transformers.text import quote

_LARGEST = 1e6  # mean or standard deviation of pixels from 0 to 255
_SMALLEST = 1e-6  # standard deviation


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageSet:
    """Images of type uint8 with labels, normalisation, class names and origin.

    >>> digits = ImageSet(images=torch.zeros(5, 1, 28, 28, dtype=torch.uint8), labels=torch.arange(5), name="blank")
    >>> len(digits), digits.take(torch.tensor([0, 3])).labels
    (5, tensor([0, 3]))
    """

    images: Pixels
    """Images `(N, C, H, W)`, uint8: a tensor, or `Stored` images that are decoded when they are indexed."""
    labels: Tensor
    """Class numbers `(N,)`, int64, starting at 0, or targets `(N, K)`, float32, with a name in `classes` per column."""
    name: str
    origin: str = "official"
    """Source of the images, quoted in reports: `official`, `regenerated from MNIST`, ..."""
    mean: tuple[float, ...] = (0.0,)
    """Mean of each channel, or one value for all channels, on the scale of 0 to 255."""
    std: tuple[float, ...] = (255.0,)
    """Standard deviation, likewise."""
    classes: tuple[str, ...] = tuple("0123456789")
    poses: Tensor | None = None
    """Pose `(N, k)` of each image, if known."""
    pose_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 of shape (N, C, H, W), got {self.images.dtype} of {tuple(self.images.shape)}"
            )
        count, channels = self.images.shape[:2]
        check_labels(self.labels, count, self.classes)
        check_normalisation(self.mean, self.std, channels)
        if self.poses is not None and self.poses.shape != (count, len(self.pose_names)):
            raise ValueError(
                f"{count} images with parameters {self.pose_names} need poses of shape "
                f"({count}, {len(self.pose_names)}), got {tuple(self.poses.shape)}"
            )

    def __len__(self) -> int:
        return self.images.shape[0]

    def __repr__(self) -> str:
        count, *shape = self.images.shape
        listed = f"{count} images of {' x '.join(map(str, shape))}, classes {quote(self.classes)}, {self.origin}"
        return f"ImageSet({quote(self.name)}: {listed})"

    @property
    def black(self) -> float:
        """Value of a black pixel after normalisation, averaged over the channels."""
        return float(self._scale_and_shift[1].mean())

    def take(self, indices: Tensor) -> ImageSet:
        """Return the images at `indices`, in that order."""
        indices = indices.to(self.images.device)
        poses = None if self.poses is None else self.poses[indices]
        return replace(self, images=subset(self.images, indices), labels=self.labels[indices], poses=poses)

    def to(self, device: torch.device | str) -> ImageSet:
        """Return the image set on `device`."""
        poses = None if self.poses is None else self.poses.to(device)
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), poses=poses)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise uint8 images `(B, C, H, W)` of this set to float32 of mean 0 and standard deviation 1."""
        scale, shift = self._scale_and_shift
        return images * scale + shift

    @cached_property
    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        return scale_and_shift(self.mean, self.std, self.images.device)


class Splits(NamedTuple):
    """Three parts of a data set. Use `validation` for all choices, and `test` once at the end."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet


def draw(count: int, examples: int | None, validation: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Draw indices of training and of validation images from the `count` training images of a data set.

    For the same seed, the validation images are always the same, and fewer examples are a subset of more examples.

    Args:
        count: number of images to draw from.
        examples: number of training images; None for all that are not held out.
        validation: number of images to hold out for validation.
        seed: random seed.

    >>> [len(indices) for indices in draw(100, 30, 10, seed=0)]
    [30, 10]
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    examples = count - validation if examples is None else examples
    if not (0 <= validation < count and 0 < examples <= count - validation):
        raise ValueError(
            f"{examples} examples and {validation} images for validation cannot be taken from the {count} "
            "training images of the data set"
        )
    return order[validation:][:examples], order[:validation]


def check_normalisation(mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Raise a ValueError unless `mean` and `std` can normalise images with this number of channels.

    Each needs one value per channel, or one value for all channels. A mean must be from -1e6 to 1e6, a standard
    deviation from 1e-6 to 1e6.
    """
    if len(mean) != len(std) or len(mean) not in (1, channels):
        raise ValueError(f"mean {quote(mean)} and std {quote(std)} must both have {channels} values, or both 1")
    for name, values, least in (("mean", mean, -_LARGEST), ("std", std, _SMALLEST)):
        for value in values:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not least <= value <= _LARGEST:
                raise ValueError(f"{name} must be from {least:g} to {_LARGEST:g}, got {quote(value)}")


def scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return the scale and the shift, `(1, C, 1, 1)` each, that normalise uint8 images: `images * scale + shift`.

    >>> scale, shift = scale_and_shift((100.0,), (50.0,))
    >>> (200 * scale + shift).item()
    2.0
    """
    scale = [1 / deviation for deviation in std]
    shift = [-middle / deviation for middle, deviation in zip(mean, std, strict=True)]
    both = torch.tensor([scale, shift], device=device)
    return both[0].reshape(1, -1, 1, 1), both[1].reshape(1, -1, 1, 1)


def statistics(images: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel of uint8 images `(N, C, H, W)`, from exact sums.

    The standard deviation of a constant channel is returned as 1, because it is a divisor.

    >>> statistics(torch.tensor([0, 2], dtype=torch.uint8).reshape(2, 1, 1, 1))
    ((1.0,), (1.0,))
    """
    pixels = math.prod(images.shape) // images.shape[1]
    sums, squares = totals(images)
    deviations = [math.sqrt(pixels * q - s * s) / pixels for s, q in zip(sums, squares, strict=True)]
    return tuple(s / pixels for s in sums), tuple(deviation or 1.0 for deviation in deviations)
