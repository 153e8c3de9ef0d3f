"""What each layer of a stack saw and did, for pictures of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from equivariant_transformers.nn.layers import Canonicalization, Canonicalizer, Layer, SpatialTransformer, removal


class Stage(NamedTuple):
    """One layer's part in what a stack made of a batch of images."""

    layer: Layer
    seen: Tensor
    """What its predictor looked at, `(B, C, sheets, h, w)`."""
    pose: Tensor
    """`(B, k)`."""
    heatmaps: tuple[Tensor, ...]
    """`(B, samples)` for each of the k parameters; none in a `SpatialTransformer`."""
    image: Tensor
    """The images once this pose is removed as well, `(B, C, H, W)`."""


def stages(stack: Canonicalizer | Layer, out: Canonicalization) -> list[Stage]:
    """What each layer of `stack` did to make `out`, from the first to the last.

    >>> stack = Canonicalizer(["x_shear", "rotation"], in_channels=1)
    >>> out = stack(torch.rand(2, 1, 32, 32))
    >>> [stage.seen.shape[2:] for stage in stages(stack, out)], torch.equal(stages(stack, out)[-1].image, out.image)
    ([torch.Size([1, 64, 64]), torch.Size([1, 64, 64])], True)
    """
    layers: list[Layer] = [*stack.layers] * stack.passes if isinstance(stack, Canonicalizer) else [stack]
    heatmaps = iter(out.heatmaps)
    so_far = replace(out, warp=out.start)
    found = []
    columns = iter(out.pose.unbind(-1))
    for layer in layers:
        pose = torch.stack([next(columns) for _ in layer.chart.groups], -1)
        seen = so_far.on(layer.grid)
        so_far = replace(out, warp=so_far.warp.compose(removal(layer.chart, pose)))
        maps = tuple(islice(heatmaps, 0 if isinstance(layer, SpatialTransformer) else pose.shape[-1]))
        found.append(Stage(layer, seen, pose, maps, so_far.image))
    return found
