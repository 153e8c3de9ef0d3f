"""Classification of each image in several likely poses, weighted by the layers and the classifier together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.geometry.motion import remove_pose
from equivariant_transformers.geometry.projective import wrap
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.limits import MOST_TTA
from equivariant_transformers.nn.candidates import sample_poses
from equivariant_transformers.nn.canonicalization import Canonicalization, Step
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.nn.conv import pad
from equivariant_transformers.nn.layers import Layer, run_layers
from equivariant_transformers.nn.posterior import SHARPNESS, PosteriorPredictor

_GAP = 1 / 6  # smallest distance of two poses, as a fraction of the range: 60 degrees of a full turn
_POSTERIOR = 0.5  # weight of the log posterior of a pose
_LOGIT = 0.125  # weight of a logit of the classifier


class SeveralPoses(nn.Module):
    r"""Classifier that reads each image in several likely poses, in evaluation.

    Some images look upright in two poses: a layer alone cannot tell which one is right, and the classifier often can,
    because it is surer of images in their right pose. Candidates are the highest peaks of the posterior p of the first
    layer with the predictor `posterior`; later layers are applied to each. With the logits $z_{kc}$ of class c in pose
    k, the combined logits are $8 \log \sum_k p_k^{1/2} \exp(z_{kc} / 8)$, up to a constant. For a single peak, they are
    the logits of the network.

    In training, the network is used as it is. The cost of the classifier grows with `count`.

    Args:
        network: classifier behind a canonicalizer, one of whose layers has the predictor `posterior`.
        count: largest number of poses per image.

    >>> import equivariant_transformers as et
    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> model = SeveralPoses(et.Canonicalized(backbone, "rotation"))
    >>> model.eval()(torch.rand(2, 1, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, network: Canonicalized, count: int = 3) -> None:
        super().__init__()
        if not isinstance(network, Canonicalized):
            raise TypeError(f"network must be a Canonicalized network, got a {type(network).__name__}")
        self.network = network
        self.count = check_poses(network, count)

    def forward(self, images: Tensor, start: Warp | None = None, mask: Tensor | None = None) -> Tensor:
        """Return logits `(B, classes)` for `images` `(B, C, H, W)`, see `Canonicalized.forward`."""
        if self.network.training:
            logits: Tensor = self.network(images, start, mask)
            return logits
        out = self.network.canonicalizer(images, start, mask)
        return self._scores(out, *self._candidates(out)).logsumexp(0) / _LOGIT

    def canonicalize(self, images: Tensor, start: Warp | None = None, mask: Tensor | None = None) -> Canonicalization:
        """Return the result of the layers in the pose that counts most for the predicted class."""
        out = self.network.canonicalizer(images, start, mask)
        log_p, poses = self._candidates(out)
        scores = self._scores(out, log_p, poses)  # (K, B, classes)
        rows = torch.arange(len(poses), device=poses.device)
        chosen = scores[:, rows, scores.logsumexp(0).argmax(1)].argmax(0)
        return self._in_pose(out, poses[rows, chosen])

    def _candidates(self, out: Canonicalization) -> tuple[Tensor, Tensor]:
        return likely_poses(out.steps[_first(out.steps)], self.count)

    def _scores(self, out: Canonicalization, log_p: Tensor, poses: Tensor) -> Tensor:
        """Return the scores `(K, B, classes)` of the classes in each of the `poses` `(B, K, k)`."""
        scores = []
        for weight, pose in zip(log_p.unbind(1), poses.unbind(1), strict=True):
            logits = self.network.read(self._in_pose(out, pose))
            if not isinstance(logits, Tensor) or logits.ndim != 2:
                found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
                raise TypeError(f"several poses need a classifier that returns logits (B, classes), got {found}")
            scores.append(_POSTERIOR * weight[:, None] + _LOGIT * logits)
        return torch.stack(scores)

    def _in_pose(self, out: Canonicalization, pose: Tensor) -> Canonicalization:
        """Return `out` as if its first step with a posterior had found `pose` `(B, k)`."""
        number = _first(out.steps)
        layer = out.steps[number].layer
        warp = out.after(number).warp.compose(remove_pose(layer.chart.groups, pose))
        later = run_layers(
            [step.layer for step in out.steps[number + 1 :]],
            out.images,
            warp,
            out.fill,
            mask=out.mask,
            min_confidence=self.network.canonicalizer.min_confidence,
        )
        step = dataclasses.replace(out.steps[number], pose=pose, warp=warp)
        return dataclasses.replace(out, steps=(*out.steps[:number], step, *later.steps))


def check_poses(network: Canonicalized, count: int) -> int:
    """Return `count`, or raise an error unless `network` can read an image in that many poses."""
    layers = getattr(network.canonicalizer, "layers", ())
    if count != 1 and not any(isinstance(layer.predictor, PosteriorPredictor) for layer in layers):
        raise ValueError("several poses need a layer with the predictor posterior; this network has none")
    return whole_number("poses", count, most=MOST_TTA)


def likely_poses(step: Step, count: int) -> tuple[Tensor, Tensor]:
    """Return the log posterior `(B, count)` of the highest peaks of a step, and their poses `(B, count, k)`.

    Missing peaks have the log posterior minus infinity.
    """
    layer = step.layer
    predictor, chart = layer.predictor, layer.chart
    assert isinstance(predictor, PosteriorPredictor)
    assert step.evidence is not None
    log_p = predictor.logits(step.evidence).log_softmax(-1)  # (B, samples)
    places = sample_poses(chart, dtype=log_p.dtype, device=log_p.device)  # (samples, k)
    left = torch.where(_is_peak(log_p.reshape(step.evidence.shape), chart.periodic), log_p, -torch.inf)
    logs, poses = [], []
    for _ in range(count):
        highest, index = left.max(-1)
        peak = places[index]
        offsets = _offsets(places - peak[:, None], layer)  # (B, samples, k)
        near = (offsets.abs() < _GAP * layer.widths).all(-1)
        weights = torch.where(near, SHARPNESS * log_p, -torch.inf).softmax(-1)
        logs.append(highest)
        poses.append(layer.limited(peak + (weights[..., None] * offsets).sum(1)))
        left = torch.where(near, -torch.inf, left)
    return torch.stack(logs, 1), torch.stack(poses, 1)


def _is_peak(log_p: Tensor, periodic: tuple[bool, bool]) -> Tensor:
    """Return a mask `(B, samples)` of the samples of maps `(B, W)` or `(B, H, W)` that are not below a neighbour."""
    maps = log_p.reshape(log_p.shape[0], 1, -1, log_p.shape[-1])
    extent = (1, min(1, maps.shape[-2] - 1))
    highest = F.max_pool2d(pad(maps, extent, periodic), (2 * extent[1] + 1, 3), stride=1)
    return (maps >= highest).flatten(1)


def _offsets(differences: Tensor, layer: Layer) -> Tensor:
    """Return `differences` of poses `(..., k)` of a layer, wrapped to half a period along periodic axes."""
    columns = [
        wrap(column, high - low if wraps else None)
        for column, (low, high), wraps in zip(
            differences.unbind(-1), layer.chart.ranges, layer.chart.periodic, strict=False
        )
    ]
    return torch.stack(columns, -1)


def _first(steps: Sequence[Step]) -> int:
    """Return the number of the first step with a posterior."""
    return next(number for number, step in enumerate(steps) if isinstance(step.layer.predictor, PosteriorPredictor))
