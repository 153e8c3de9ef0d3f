"""Random transformations of images in training."""

from __future__ import annotations

from collections.abc import Mapping
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

    >>> views = RandomViews({"rotation": 3.14, "dilation": 0.2})
    >>> images = torch.rand(2, 1, 16, 16)
    >>> views(images).shape, torch.equal(views.eval()(images), images)
    (torch.Size([2, 1, 16, 16]), True)
    """

    def __init__(self, reach: Reach, *, background: float | None = None) -> None:
        super().__init__()
        self.reach = {find_group(group): far for group, far in reach.items()}
        for group, far in self.reach.items():
            if not 0 < far < float("inf"):
                raise ValueError(f"the reach of {group.name!r} is a positive number, got {far}")
        self.background = background

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
        return warp


def motion(group: Group, theta: Tensor) -> Warp:
    """The warp of the group's transformations by theta `(B,)`."""
    return Warp.flow(group.transform, theta) if group.generator is None else Warp((group.matrix(theta),))


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
