"""Calibration of the layers of a network in training, on its validation images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equivariant_transformers.nn.calibration import FACTORS, count_wrong, posterior_layers, scale_evidence
from equivariant_transformers.nn.canonicalizer import Canonicalizer
from equivariant_transformers.training import distributed
from equivariant_transformers.training.optimization import Batches

_IMAGES = 1000  # of the validation set
_UPRIGHT = 0.5  # largest share of upright images that a layer moves before it is calibrated


@contextmanager
def calibrated(module: nn.Module, loader: Batches) -> Iterator[tuple[float, ...]]:
    """Calibrate the layers of `module` on the images of `loader` for the duration of the block.

    Yield the factors of the evidence; none if a layer moves more than half of the images, which then are not upright.
    The weights are the same to the last bit afterwards.
    """
    canonicalizer = getattr(module, "canonicalizer", None)
    if not isinstance(canonicalizer, Canonicalizer) or not (layers := posterior_layers(canonicalizer)):
        yield ()
        return
    wrong = _shares_wrong(canonicalizer, loader)
    if wrong[:, FACTORS.index(1), 0].max() > _UPRIGHT:
        yield ()
        return
    weights: list[Tensor] = [layer.predictor.head.weight for layer in layers]  # type: ignore[misc, union-attr]
    before = [weight.detach().clone() for weight in weights]
    factors = scale_evidence(canonicalizer, wrong)
    try:
        yield factors
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)


def _shares_wrong(canonicalizer: Canonicalizer, loader: Batches) -> Tensor:
    """Return the shares of the images whose poses are wrong, see `count_wrong`, over all processes."""
    indices, counts = loader.in_order()
    batches = -(-_IMAGES // (indices.shape[1] * distributed.world_size()))
    loader.start(indices[:batches])
    wrong: list[Tensor] = []
    for batch, counted in zip(indices[:batches], counts[:batches], strict=True):
        loader.advance()
        images, _ = loader.batch(batch)
        wrong.append(count_wrong(canonicalizer, images[counted]))
    sums = torch.stack(wrong).sum(0)
    *totals, images_seen = distributed.total(torch.cat((sums.flatten(), counts[:batches].sum()[None].to(sums))))
    return sums.new_tensor(totals).reshape(sums.shape) / images_seen
