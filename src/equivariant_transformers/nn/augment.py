"""Augmentation with random transformations in training, and test-time augmentation with fixed transformations.

Both pass a starting warp to a network that accepts one, such as `Canonicalized`. The image is still sampled once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from equivariant_transformers.arguments import real_number, whole_number
from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.groups import group as find_group
from equivariant_transformers.geometry.motion import group_warp
from equivariant_transformers.geometry.resampling import check_images
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.limits import MOST_TTA
from equivariant_transformers.text import quote

MaxTheta: TypeAlias = Mapping[str, float] | Mapping[Group, float] | Mapping[str | Group, float]
"""Largest parameter of each group. The keys are groups or names of groups."""


class Augmentation:
    """Transformations of images by several groups, random or evenly spread.

    Args:
        max_theta: largest parameter of each group. Random parameters are uniform between minus and plus this value.

    >>> augmentation = Augmentation({"rotation": 3.14, "dilation": 0.2})
    >>> augmentation.random(torch.rand(2, 1, 16, 16)).matrix.shape
    torch.Size([2, 3, 3])
    """

    def __init__(self, max_theta: MaxTheta) -> None:
        if not isinstance(max_theta, Mapping):
            raise TypeError(f"max_theta must map groups to numbers, as in {{'rotation': 3.14}}; got {quote(max_theta)}")
        self.max_theta = {
            find_group(group): real_number(f"max_theta of {group!r}", limit) for group, limit in max_theta.items()
        }
        for group, limit in self.max_theta.items():
            if not 0 < limit < math.inf:
                raise ValueError(f"max_theta of {group.name!r} must be a positive finite number, got {limit}")
            if group.period is not None and limit > 1.01 * group.period:  # degrees, most likely
                raise ValueError(
                    f"max_theta of {group.name!r} is {limit:g}, more than its whole period of {group.period:.4g}; "
                    "angles are in radians"
                )

    def __repr__(self) -> str:
        return f"Augmentation({ {group.name: limit for group, limit in self.max_theta.items()} })"

    def random(self, images: Tensor) -> Warp:
        """Return one random warp per image of `images` `(B, ...)`."""
        warp = Warp.identity()
        for group, limit in self.max_theta.items():
            theta = limit * (2 * torch.rand(images.shape[0], device=images.device) - 1)
            warp = warp.compose(group_warp(group, theta))
        return warp

    def each(self, images: Tensor) -> Warp:
        """Return one fixed warp per image of `images` `(B, ...)`, spread evenly. The first warp is the identity."""
        warp = Warp.identity()
        count = torch.arange(images.shape[0], device=images.device)
        for (group, limit), step in zip(self.max_theta.items(), _steps(len(self.max_theta)), strict=True):
            warp = warp.compose(group_warp(group, 2 * limit * ((0.5 + step * count) % 1 - 0.5)))
        return warp

    def spread(self, images: Tensor, count: int) -> Warp:
        """Return `count` warps for `images` `(B, ...)`, as one warp for `count * B` images.

        Each block of B entries is the same warp for all images. The first block is the identity. The parameters of the
        others are spread evenly over half of `max_theta`.
        """
        warp = Warp.identity()
        for (group, limit), places in zip(self.max_theta.items(), _spread(len(self.max_theta), count), strict=True):
            theta = torch.cat([torch.full(images.shape[:1], limit * place, device=images.device) for place in places])
            warp = warp.compose(group_warp(group, theta))
        return warp


class Augmented(nn.Module):
    """Network with randomly transformed input in training. The input is unchanged in evaluation.

    Save `augmented.network.state_dict()`, which holds the weights and does not depend on the augmentation.

    Args:
        network: module that takes images `(B, C, H, W)` and a starting `Warp`, such as `Canonicalizer`.
        augmentation: an `Augmentation`, or the `max_theta` of each group.

    >>> import equivariant_transformers as et
    >>> model = Augmented(et.Canonicalizer(["x_shear"]), {"rotation": 0.3})
    >>> model(torch.rand(2, 1, 32, 32)).pose.shape
    torch.Size([2, 1])
    """

    def __init__(self, network: nn.Module, augmentation: Augmentation | MaxTheta) -> None:
        super().__init__()
        self.network = network
        self.augmentation = _augmentation(augmentation)

    def forward(self, images: Tensor) -> object:
        """Return the network's output for images `(B, C, H, W)`."""
        check_images(images)
        return self.network(images, self.augmentation.random(images)) if self.training else self.network(images)


class TTA(nn.Module):
    """Test-time augmentation: average the probabilities of a classifier over fixed transformations of each image.

    The first transformation is the identity. The others use half of the `max_theta` of the augmentation.

    Args:
        network: classifier that takes images `(B, C, H, W)` and a starting `Warp`, such as `Canonicalized`.
        augmentation: an `Augmentation`, or the `max_theta` of each group.
        count: number of transformations per image.
        average: function from outputs `(count, B, K)` to outputs `(B, K)`. Default: `mean_of_probabilities`, for
            logits of classes. The mean of values of a regression is meaningful if the values do not change under the
            transformations.

    >>> import equivariant_transformers as et
    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> model = TTA(et.Canonicalized(backbone, et.Canonicalizer(["x_shear"])), {"rotation": 0.3}, count=4)
    >>> model.eval()(torch.rand(2, 1, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        network: nn.Module,
        augmentation: Augmentation | MaxTheta,
        count: int,
        average: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.augmentation = _augmentation(augmentation)
        self.count = count
        self.average = average or mean_of_probabilities
        check_tta(count, self.augmentation)

    def forward(self, images: Tensor) -> Tensor:
        """Return the averaged outputs for images `(B, C, H, W)`: by default, logarithms of mean probabilities."""
        check_images(images)
        starts = self.augmentation.spread(images, self.count)
        logits = self.network(images.repeat(self.count, 1, 1, 1), starts)
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(f"test-time augmentation needs a classifier that returns logits (B, classes), got {found}")
        return self.average(logits.reshape(self.count, *images.shape[:1], *logits.shape[1:]))


def mean_of_probabilities(logits: Tensor) -> Tensor:
    """Return the logarithms `(B, classes)` of the mean over n of the probabilities of logits `(n, B, classes)`."""
    return logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))


def check_tta(count: int, augmentation: Augmentation) -> None:
    """Raise an error unless `count` transformations are possible with this `augmentation`."""
    whole_number("tta", count, most=MOST_TTA)
    if count > 1 and not augmentation.max_theta:
        raise ValueError(f"tta > 1 needs a network trained with augmentation; this one has none, and tta is {count}")


def parse_max_theta(items: Iterable[str]) -> dict[str, float]:
    """Parse items such as `rotation=3.14` into `max_theta`.

    >>> parse_max_theta(("rotation=3.14", "dilation=0.2"))
    {'rotation': 3.14, 'dilation': 0.2}
    """
    max_theta = {}
    for item in items:
        name, _, limit = item.partition("=")
        find_group(name)
        try:
            max_theta[name] = float(limit)
        except ValueError:
            raise ValueError(
                f"augment must be a group and its max_theta, as in rotation=3.14; got {quote(item)}"
            ) from None
    return max_theta


def _augmentation(augmentation: Augmentation | MaxTheta) -> Augmentation:
    return augmentation if isinstance(augmentation, Augmentation) else Augmentation(augmentation)


def _spread(dimensions: int, count: int) -> list[list[float]]:
    """Return, for each dimension, the coordinates in [-1/2, 1/2) of `count` points that fill the cube evenly.

    The first point is the centre.
    """
    return [[(0.5 + k * step) % 1 - 0.5 for k in range(count)] for step in _steps(dimensions)]


def _steps(dimensions: int) -> list[float]:
    """Return the step from a point to the next, modulo 1, in each dimension, such that the points fill the cube evenly.

    The steps are the powers of 1/x, where x solves x ** (dimensions + 1) = x + 1.
    """
    x = 2.0
    for _ in range(60):
        x = (1 + x) ** (1 / (dimensions + 1))
    return [x**-axis for axis in range(1, dimensions + 1)]
