"""Calibration of layers for photographs on upright images that they were not trained on."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from equivariant_transformers.geometry.motion import remove_pose
from equivariant_transformers.geometry.resampling import outside
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.alignment import TOLERANCE, frame_distance
from equivariant_transformers.nn.canonicalizer import Canonicalizer
from equivariant_transformers.nn.layers import EquivariantTransformer, check_input, run_layers
from equivariant_transformers.nn.modes import evaluating
from equivariant_transformers.nn.posterior import PosteriorPredictor

MOVED = 0.03
"""Largest share of upright images that a calibrated canonicalizer is to move."""
_FACTORS = tuple(2 ** (-step / 4) for step in range(17))  # of the evidence: from 1 to 1/16


def calibrate(canonicalizer: Canonicalizer, images: Tensor | Iterable[Tensor]) -> tuple[float, ...]:
    """Scale the evidence of layers for photographs, in place, so that upright images stay where they are.

    After long training on few images, a layer is too sure of its evidence on new images, and moves upright ones. Its
    evidence is multiplied by the largest factor, at most 1, for which the layers together move at most 3 % of the
    `images` by more than 15 degrees or a comparable distance; by 1/16 if even this moves more. A layer that leaves the
    images in place is not changed.

    Args:
        canonicalizer: canonicalizer whose layers have the predictor `posterior`; other layers are left as they are.
        images: upright images `(B, C, H, W)` that were not used for training, or batches of them. A hundred suffice.

    Returns:
        The factor of each layer with the predictor `posterior`.

    >>> import equivariant_transformers as et
    >>> calibrate(et.Canonicalizer(["rotation"], in_channels=3), torch.rand(20, 3, 32, 32))
    (1.0,)
    """
    if not isinstance(canonicalizer, Canonicalizer):
        raise TypeError(f"calibrate takes a Canonicalizer, got a {type(canonicalizer).__name__}")
    batches = torch.split(images, 500) if isinstance(images, Tensor) else images
    counted, count = None, 0
    for batch in batches:
        moved = count_moved(canonicalizer, batch)
        counted, count = moved if counted is None else counted + moved, count + len(batch)
    if counted is None or not count:
        raise ValueError("calibrate needs at least one image")
    return scale_evidence(canonicalizer, counted / count)


def posterior_layers(canonicalizer: Canonicalizer) -> list[EquivariantTransformer]:
    """Return the layers of `canonicalizer` that have the predictor `posterior`."""
    return [
        layer
        for layer in canonicalizer.layers
        if isinstance(layer, EquivariantTransformer) and isinstance(layer.predictor, PosteriorPredictor)
    ]


def count_moved(canonicalizer: Canonicalizer, images: Tensor) -> Tensor:
    """Return the number of upright `images` that each layer moves with its evidence times each factor, `(L, F)`."""
    check_input(images, canonicalizer.in_channels)
    layers = posterior_layers(canonicalizer)
    counts = torch.zeros(len(layers), len(_FACTORS), device=images.device)
    with evaluating(canonicalizer):
        for number, layer in enumerate(layers):
            (step,) = run_layers([layer], images, Warp.identity(), outside(images, canonicalizer.fill)).steps
            assert step.evidence is not None
            for place, factor in enumerate(_FACTORS):
                pose = layer.predictor.read(step.evidence * factor).pose  # type: ignore[operator]
                moved = frame_distance(remove_pose(layer.chart.groups, pose), images)
                counts[number, place] = (moved > TOLERANCE).sum()
    return counts


@torch.no_grad()
def scale_evidence(canonicalizer: Canonicalizer, moved: Tensor) -> tuple[float, ...]:
    """Scale the evidence of each layer by the largest factor that moves few enough images, and return the factors.

    Args:
        canonicalizer: canonicalizer to change.
        moved: share of the images `(L, F)` that each layer moves with each factor.
    """
    layers = posterior_layers(canonicalizer)
    factors = []
    for layer, shares in zip(layers, moved.tolist(), strict=True):
        few = [factor for factor, share in zip(_FACTORS, shares, strict=True) if share <= MOVED / len(layers)]
        factors.append(few[0] if few else _FACTORS[-1])
        if factors[-1] != 1:
            layer.predictor.head.weight.mul_(factors[-1])  # type: ignore[operator, union-attr]
    return tuple(factors)
