"""Labelled images that live on one device as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from equivariant_transformers.text import quote

_LARGEST = 1e6  # mean or deviation, of pixels from 0 to 255
_SMALLEST = 1e-6  # deviation


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images as bytes with their labels, and what is needed to use and to quote them.

    >>> digits = ImageSet(images=torch.zeros(5, 1, 28, 28, dtype=torch.uint8), labels=torch.arange(5), name="blank")
    >>> len(digits), digits.take(torch.tensor([0, 3])).labels
    (5, tensor([0, 3]))
    """

    images: Tensor
    """`(N, C, H, W)`, uint8."""
    labels: Tensor
    """`(N,)`, int64, from 0."""
    name: str
    origin: str = "official"
    """Where the images come from, as a report must quote it: `official`, `regenerated from MNIST`, ..."""
    mean: tuple[float, ...] = (0.0,)
    """Of each channel (or one for all), on the scale of 0 to 255."""
    std: tuple[float, ...] = (255.0,)
    classes: tuple[str, ...] = tuple("0123456789")
    poses: Tensor | None = None
    """`(N, k)`, the transformation of each image, where it is known."""
    pose_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images are uint8 of shape (N, C, H, W), got {self.images.dtype} of {tuple(self.images.shape)}"
            )
        count, channels = self.images.shape[:2]
        if self.labels.shape != (count,):
            raise ValueError(f"{count} images need labels of shape ({count},), got {tuple(self.labels.shape)}")
        if self.labels.is_floating_point() or self.labels.is_complex() or self.labels.dtype == torch.bool:
            raise ValueError(f"labels are class numbers of an integer type, got {self.labels.dtype}")
        if count and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(
                f"labels run from {int(self.labels.min())} to {int(self.labels.max())}, "
                f"the {len(self.classes)} classes are {quote(self.classes)}"
            )
        check_normalisation(self.mean, self.std, channels)
        if self.poses is not None and self.poses.shape != (count, len(self.pose_names)):
            raise ValueError(
                f"{count} images with parameters {self.pose_names} need poses of shape "
                f"({count}, {len(self.pose_names)}), got {tuple(self.poses.shape)}"
            )

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def black(self) -> float:
        """The value of an empty pixel after normalisation, averaged over the channels."""
        return float(self._scale_and_shift[1].mean())

    def take(self, indices: Tensor) -> ImageSet:
        """The images at `indices`, in that order."""
        indices = indices.to(self.images.device)
        poses = None if self.poses is None else self.poses[indices]
        return replace(self, images=self.images[indices], labels=self.labels[indices], poses=poses)

    def to(self, device: torch.device | str) -> ImageSet:
        """The set on `device`."""
        poses = None if self.poses is None else self.poses.to(device)
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), poses=poses)

    def normalise(self, images: Tensor) -> Tensor:
        """Bytes `(B, C, H, W)` of this set as float32 of mean 0 and deviation 1."""
        scale, shift = self._scale_and_shift
        return images * scale + shift

    @cached_property
    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        return scale_and_shift(self.mean, self.std, self.images.device)


class Splits(NamedTuple):
    """The three parts of a data set: choices are made on `validation`; `test` is looked at once."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet


def check_normalisation(mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Raise a ValueError unless `mean` and `std` can normalise images of so many channels.

    Each has a number for each channel, or one for all. Means are from -1e6 to 1e6, deviations from 1e-6 to 1e6.
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
    """The factor and the summand, `(1, C, 1, 1)` each, that give bytes mean 0 and deviation 1.

    >>> scale, shift = scale_and_shift((100.0,), (50.0,))
    >>> (200 * scale + shift).item()
    2.0
    """
    scale = [1 / deviation for deviation in std]
    shift = [-middle / deviation for middle, deviation in zip(mean, std, strict=True)]
    both = torch.tensor([scale, shift], device=device)
    return both[0].reshape(1, -1, 1, 1), both[1].reshape(1, -1, 1, 1)


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of bytes `(N, C, H, W)`, exactly, as an `ImageSet` takes them.

    A channel that never varies has deviation 1 here, so that it can be divided by.

    >>> statistics(torch.tensor([0, 2], dtype=torch.uint8).reshape(2, 1, 1, 1))
    ((1.0,), (1.0,))
    """
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.unbind(1)]).double()
    values = torch.arange(256.0, dtype=torch.float64, device=images.device)
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ values
    std = (share * (values - mean[:, None]) ** 2).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())
