"""Calibration of layers for photographs on upright images that they were not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from equivariant_transformers.geometry.charts import Chart
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
_COST = 2.0  # of an upright image that moves, against one with a pose that is not undone
_SHIFTS = (-0.75, 0.75)  # poses to undo, as fractions of half a period, or of a quarter of an open range
FACTORS = tuple(sorted((2 ** (step / 2) for step in range(-8, 5)), key=lambda factor: abs(math.log(factor))))
"""Factors of the evidence to try: from 1/16 to 4, 1 first."""


def calibrate(canonicalizer: Canonicalizer, images: Tensor | Iterable[Tensor]) -> tuple[float, ...]:
    """Scale the evidence of layers for photographs, in place, so that upright images stay where they are.

    After long training on few images, a layer is too sure of its evidence on new images, and moves upright ones. After
    short training it may not be sure enough, and leaves transformed images in place. Its evidence is multiplied by a
    factor between 1/16 and 4. The factor is the one with the fewest errors among all for which the layers together move
    at most 3 % of the `images` by more than 15 degrees or a comparable distance. An upright image that moves counts as
    two with a pose that is not undone. If every factor moves more, it is 1/16.

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
        wrong = count_wrong(canonicalizer, batch)
        counted, count = wrong if counted is None else counted + wrong, count + len(batch)
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


def count_wrong(canonicalizer: Canonicalizer, images: Tensor) -> Tensor:
    """Return the numbers of wrong poses `(L, F, 2)` of each layer with its evidence times each factor.

    The first number counts upright `images` that move. The second counts images with a pose that is not undone, where
    the evidence is that of the upright image, shifted along the pose axes. It is a mean over several shifts.
    """
    check_input(images, canonicalizer.in_channels)
    layers = posterior_layers(canonicalizer)
    counts = torch.zeros(len(layers), len(FACTORS), 2, device=images.device)
    with evaluating(canonicalizer):
        for number, layer in enumerate(layers):
            (step,) = run_layers([layer], images, Warp.identity(), outside(images, canonicalizer.fill)).steps
            assert step.evidence is not None
            shifted = [_shifted(layer.chart, step.evidence, fraction) for fraction in (0.0, *_SHIFTS)]
            evidence, right = (torch.cat(parts) for parts in zip(*shifted, strict=True))
            for place, factor in enumerate(FACTORS):
                pose = layer.predictor.read(evidence * factor).pose  # type: ignore[operator]
                wrong = frame_distance(remove_pose(layer.chart.groups, pose - right), pose) > TOLERANCE
                moved, *left = wrong.reshape(len(shifted), -1).sum(1)
                counts[number, place] = torch.stack((moved, sum(left) / len(left)))
    return counts


def _shifted(chart: Chart, evidence: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Return `evidence` for content that is shifted along the pose axes, and the poses `(B, k)` of this content."""
    poses = []
    for axis, (positions, wraps) in enumerate(zip(chart.axes()[: len(chart.groups)], chart.periodic, strict=False)):
        samples = len(positions)
        shift = round(fraction * samples / (2 if wraps else 4))
        places = torch.arange(samples, device=evidence.device) - shift
        places = places % samples if wraps else places.clamp(0, samples - 1)
        evidence = evidence.index_select(-1 - axis, places)
        poses.append(shift * float(positions[0] - positions[1]))
    return evidence, evidence.new_tensor(poses).expand(len(evidence), -1)


@torch.no_grad()
def scale_evidence(canonicalizer: Canonicalizer, wrong: Tensor) -> tuple[float, ...]:
    """Scale the evidence of each layer by the best factor, and return the factors.

    Args:
        canonicalizer: canonicalizer to change.
        wrong: shares of the images `(L, F, 2)` whose poses are wrong with each factor, see `count_wrong`.
    """
    layers = posterior_layers(canonicalizer)
    factors = []
    for layer, shares in zip(layers, wrong.tolist(), strict=True):
        costs = {
            factor: _COST * moved + left
            for factor, (moved, left) in zip(FACTORS, shares, strict=True)
            if moved <= MOVED / len(layers)
        }
        factors.append(min(costs, key=costs.__getitem__) if costs else min(FACTORS))
        if factors[-1] != 1:
            layer.predictor.head.weight.mul_(factors[-1])  # type: ignore[operator, union-attr]
    return tuple(factors)
