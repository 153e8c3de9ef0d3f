"""Transformations of images that a network sees them under: random ones in training, fixed ones in evaluation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.groups import group as find_group
from equivariant_transformers.geometry.resampling import check_images
from equivariant_transformers.geometry.warp import Warp

Reach: TypeAlias = Mapping[str, float] | Mapping[Group, float] | Mapping[str | Group, float]
"""How far each group, or the group of each name, moves an image."""


class RandomViews(nn.Module):
    """Moves images at random while a network trains, and leaves them as they are otherwise.

    It makes warps and samples nothing: what is behind looks at the images through them, see `Canonicalizer` and
    `Viewed`.

    Args:
        reach: by group how far it moves an image: its theta is uniform between minus and plus this.

    >>> views = RandomViews({"rotation": 3.14, "dilation": 0.2})
    >>> views.draw(torch.rand(2, 1, 16, 16)).matrix.shape
    torch.Size([2, 3, 3])
    """

    def __init__(self, reach: Reach) -> None:
        super().__init__()
        self.reach = {find_group(group): far for group, far in reach.items()}
        for group, far in self.reach.items():
            if not 0 < far < float("inf"):
                raise ValueError(f"the reach of {group.name!r} is a positive number, got {far}")

    def draw(self, images: Tensor) -> Warp:
        """A random warp for each of `images` `(B, ...)`; none where the module is not training."""
        warp = Warp.identity()
        if self.training:
            for group, far in self.reach.items():
                theta = far * (2 * torch.rand(images.shape[0], device=images.device) - 1)
                warp = warp.compose(motion(group, theta))
        return warp

    def spread(self, images: Tensor, count: int) -> Warp:
        """`count` warps for `images` `(B, ...)`, as one for `count * B` images: the first B get none, the next B one.

        They go half as far as random ones, and lie as far apart as they can.
        """
        warp = Warp.identity()
        for (group, far), places in zip(self.reach.items(), _spread(len(self.reach), count), strict=True):
            theta = torch.cat([torch.full(images.shape[:1], far * place, device=images.device) for place in places])
            warp = warp.compose(motion(group, theta))
        return warp


class Looking(nn.Module, ABC):
    """A network that can answer by the mean over several fixed views of an image."""

    _looks: int

    @property
    def looks(self) -> int:
        """Over how many views of an image the answers are averaged in evaluation; may be set."""
        return self._looks

    @looks.setter
    def looks(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"looks must be at least 1, got {count}")
        if count > 1 and not self.random_views().reach:
            raise ValueError("looks go half as far as the random views of training, and this network had none")
        self._looks = count

    def forward(self, images: Tensor) -> Tensor:
        """The network's output; of several looks, the logarithms of mean probabilities."""
        check_images(images)
        if self.training or self.looks == 1:
            return self.answer(images)
        views = self.random_views().spread(images, self.looks)
        answers = self.answer(images.repeat(self.looks, 1, 1, 1), views).log_softmax(1)
        return answers.reshape(self.looks, *images.shape[:1], *answers.shape[1:]).logsumexp(0) - math.log(self.looks)

    @abstractmethod
    def random_views(self) -> RandomViews:
        """Those of training."""

    @abstractmethod
    def answer(self, images: Tensor, start: Warp | None = None) -> Tensor:
        """The output for images seen through `start`: a random view in training and nothing otherwise, if None."""


def motion(group: Group, theta: Tensor) -> Warp:
    """The warp of the group's transformations by theta `(B,)`."""
    return Warp.flow(group.transform, theta) if group.generator is None else Warp((group.matrix(theta),))


def _spread(dimensions: int, count: int) -> list[list[float]]:
    """For each of the dimensions `count` places in [-1/2, 1/2), of points that fill the cube evenly, from its middle.

    Each step adds, modulo 1, the powers of 1/x for the x with x ** (dimensions + 1) = x + 1.
    """
    x = 2.0
    for _ in range(60):
        x = (1 + x) ** (1 / (dimensions + 1))
    return [[(0.5 + k * x**-axis) % 1 - 0.5 for k in range(count)] for axis in range(1, dimensions + 1)]


def parse_reach(items: tuple[str, ...]) -> dict[str, float]:
    """What items like `rotation=3.14` say.

    >>> parse_reach(("rotation=3.14", "dilation=0.2"))
    {'rotation': 3.14, 'dilation': 0.2}
    """
    reach = {}
    for item in items:
        name, _, far = item.partition("=")
        find_group(name)
        try:
            reach[name] = float(far)
        except ValueError:
            raise ValueError(f"a view is a group and how far it goes, as in rotation=3.14, got {item!r}") from None
    return reach
