"""Discrete canonicalization, a baseline: one network scores a few rotations of the image, and the best one is kept."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.geometry.atlas import CHARTS
from equivariant_transformers.geometry.groups import group
from equivariant_transformers.geometry.motion import remove_pose
from equivariant_transformers.geometry.projective import at_least_float32
from equivariant_transformers.geometry.resampling import border_mean
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer
from equivariant_transformers.nn.layers import SpatialTransformer
from equivariant_transformers.nn.prediction import Prediction, check_channels

_MOST_ROTATIONS = 360


class DiscretePredictor(nn.Module):
    r"""Predictor that scores the image after each of `count` rotations by one network.

    The pose is the rotation whose removal has the highest score. It follows rotations by multiples of $2\pi$ / `count`
    for any weights. Its gradient is that of the mean rotation under the softmax of the scores.

    Args:
        in_channels: channels of the images.
        count: number of rotations, evenly spread over a turn.
        channels: number of features of the network.
    """

    def __init__(self, in_channels: int = 1, *, count: int = 8, channels: int = 32) -> None:
        super().__init__()
        check_channels(in_channels=in_channels, channels=channels)
        self.count = whole_number("count", count, most=_MOST_ROTATIONS)
        widths = (in_channels, channels, channels, channels)
        blocks = [
            [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            for before, after in pairwise(widths)
        ]
        self.score = nn.Sequential(
            *(layer for block in blocks for layer in block),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(9 * channels, 1),
        )

    def forward(self, images: Tensor) -> Prediction:
        """Return the prediction for images `(B, C, 1, H, W)`. Its heat map `(B, count)` starts at rotation 0."""
        images = images.flatten(1, 2)
        batch = images.shape[0]
        turns = torch.arange(self.count, device=images.device)
        angles = 2 * math.pi / self.count * (turns - self.count * (2 * turns > self.count))  # up to half a turn
        turned = remove_pose([group("rotation")], angles.repeat_interleave(batch)[:, None])
        seen = turned.image(images.repeat(self.count, 1, 1, 1), fill=border_mean(images).repeat(self.count, 1, 1, 1))
        scores = at_least_float32(self.score(seen)).reshape(self.count, batch).T
        shares = scores.softmax(-1)
        best = F.one_hot(scores.argmax(-1), self.count).to(shares.dtype)
        pose = ((best + shares - shares.detach()) * angles).sum(-1, keepdim=True)
        return Prediction(pose, shares.amax(-1, keepdim=True), (shares,))


class DiscretelyCanonicalized(nn.Module):
    """Classifier behind a discrete canonicalizer, trained with a prior towards upright images.

    In evaluation it returns logits `(B, classes)`. In training it appends the logarithms of the rotations' shares, for
    `prior_loss`, which needs upright training images.

    Args:
        backbone: module that takes images `(B, C, H, W)`.
        in_channels: channels of the images.
        size: height and width of the images.
        count: number of rotations.
        fill: fill value outside the images; None uses the mean of each image's border.

    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> model = DiscretelyCanonicalized(backbone, size=(32, 32))
    >>> model(torch.rand(2, 1, 32, 32)).shape, model.eval()(torch.rand(2, 1, 32, 32)).shape
    (torch.Size([2, 18]), torch.Size([2, 10]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        in_channels: int = 1,
        *,
        size: tuple[int, int],
        count: int = 8,
        fill: float | None = None,
    ) -> None:
        super().__init__()
        predictor = DiscretePredictor(in_channels, count=count)
        layer = SpatialTransformer(CHARTS["rotation"].replace(size=size), in_channels, predictor=predictor)
        self.network = Canonicalized(backbone, Canonicalizer([layer], in_channels, fill=fill))

    def forward(self, images: Tensor, start: Warp | None = None) -> Tensor:
        """Return the logits for images `(B, C, H, W)` warped by `start`."""
        out = self.network.canonicalizer(images, start)
        logits = self.network.read(out)
        return torch.cat((logits, out.heatmaps[0].clamp_min(1e-12).log()), 1) if self.training else logits


def prior_loss(output: Tensor, labels: Tensor, *, classes: int, weight: float = 1.0) -> Tensor:
    """Return the cross-entropy of the classes, plus `weight` times the cross-entropy of rotation 0.

    Args:
        output: output `(B, classes + count)` of a `DiscretelyCanonicalized` network in training.
        labels: class numbers `(B,)`.
        classes: number of classes.
        weight: weight of the prior.
    """
    return F.cross_entropy(output[:, :classes], labels) - weight * output[:, classes].mean()
