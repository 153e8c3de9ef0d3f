"""Random transformations of images in training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from equivariant_transformers.groups import Group
from equivariant_transformers.groups import group as find_group
from equivariant_transformers.resampling import outside
from equivariant_transformers.warp import Warp

Reach: TypeAlias = Mapping[str, float] | Mapping[Group, float] | Mapping[str | Group, float]
"""How far each group, or the group of each name, moves an image."""


class RandomViews(nn.Module):
    """Shows a network its images transformed at random while it trains, and as they are otherwise.

    In front of a network it resamples the images. `Canonicalizer(views=...)` puts the random transformations before its
    own, so that images are still sampled once.

    Args:
        reach: by group how far it moves an image: its theta is uniform between minus and plus this.
        background: the value of the images outside their frame; None takes the mean of each image's border.
        bend: how far waves through the image bend it, see `bends`.

    >>> views = RandomViews({"rotation": 3.14, "dilation": 0.2})
    >>> images = torch.rand(2, 1, 16, 16)
    >>> views(images).shape, torch.equal(views.eval()(images), images)
    (torch.Size([2, 1, 16, 16]), True)
    """

    def __init__(self, reach: Reach, *, background: float | None = None, bend: float = 0.0) -> None:
        super().__init__()
        self.reach = {find_group(group): far for group, far in reach.items()}
        for group, far in self.reach.items():
            if not 0 < far < float("inf"):
                raise ValueError(f"the reach of {group.name!r} is a positive number, got {far}")
        self.background = background
        self.bend = check_bend(bend)

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` to the same shape."""
        if not self.training:
            return images
        return self.draw(images).image(images, background=outside(images, self.background))

    def draw(self, images: Tensor) -> Warp:
        """A random warp for each of `images` `(B, ...)`; none where the module is not training."""
        warp = Warp.identity()
        if self.training:
            for group, far in self.reach.items():
                theta = far * (2 * torch.rand(images.shape[0], device=images.device) - 1)
                warp = warp.compose(motion(group, theta))
            if self.bend:
                warp = warp.compose(bends(images, self.bend))
        return warp


def motion(group: Group, theta: Tensor) -> Warp:
    """The warp of the group's transformations by theta `(B,)`."""
    return Warp.flow(group.transform, theta) if group.generator is None else Warp((group.matrix(theta),))


@dataclass(frozen=True)
class Wave:
    """The flow that moves points along an axis (0 is x) by theta times a wave of the other coordinate, of period 1."""

    axis: int
    phase: float

    def __call__(self, theta: Tensor, points: Tensor) -> Tensor:
        shift = theta * torch.sin(2 * math.pi * points[..., 1 - self.axis] + self.phase)
        still = torch.zeros_like(shift)
        return points + torch.stack((shift, still) if self.axis == 0 else (still, shift), -1)


WAVES = tuple(Wave(axis, phase) for axis in (0, 1) for phase in (0.0, math.pi / 2))
"""A sine and a cosine along either axis."""


def bends(images: Tensor, height: float) -> Warp:
    """A random warp for each of `images` `(B, ...)` that bends lines: each of `WAVES`, up to `height` high."""
    warp = Warp.identity()
    for wave in WAVES:
        warp = warp.compose(Warp.flow(wave, height * (2 * torch.rand(images.shape[0], device=images.device) - 1)))
    return warp


def check_bend(height: float) -> float:
    """`height`, if it is one."""
    if not 0 <= height < float("inf"):
        raise ValueError(f"bend is how high waves are, at least 0, got {height}")
    return height


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
