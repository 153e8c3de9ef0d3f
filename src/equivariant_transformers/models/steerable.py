"""Steerable features, a baseline: a classifier whose convolutions are equivariant to rotation. Needs `escnn`."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn


class SteerableCNN(nn.Module):
    """Classifier that is invariant to rotations by multiples of a turn / `rotations`, up to the pixel grid.

    Three 5x5 convolutions between regular representations of the cyclic group, each with batch normalisation and ReLU.
    The first two are followed by pooling. The maximum over the rotations and the mean over the image are classified by
    a linear layer.

    Args:
        in_channels: channels of the images.
        classes: number of logits.
        rotations: number of rotations.
        fields: regular representations per layer. A layer has `rotations * fields` channels.
        dropout: dropout rate before the linear layer.
    """

    def __init__(
        self, in_channels: int = 1, classes: int = 10, *, rotations: int = 8, fields: int = 8, dropout: float = 0.3
    ) -> None:
        super().__init__()
        spaces, layers = _escnn()
        space = spaces.rot2dOnR2(rotations)
        self.input_type = layers.FieldType(space, in_channels * [space.trivial_repr])
        features = layers.FieldType(space, fields * [space.regular_repr])
        self.wrap = layers.GeometricTensor
        steps: list[Any] = []
        for number, before in enumerate((self.input_type, features, features)):
            steps += [layers.R2Conv(before, features, kernel_size=5, padding=2, bias=False)]
            steps += [layers.InnerBatchNorm(features), layers.ReLU(features, inplace=True)]
            if number < 2:
                steps.append(layers.PointwiseAvgPoolAntialiased(features, sigma=0.66, stride=2))
        self.features = layers.SequentialModule(*steps, layers.GroupPooling(features))
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(fields, classes))
        self.train()  # drops the filters that escnn keeps as buffers for evaluation

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(B, classes)` for images `(B, C, H, W)`."""
        logits: Tensor = self.head(self.features(self.wrap(images, self.input_type)).tensor.mean((2, 3)))
        return logits


def _escnn() -> tuple[Any, Any]:
    try:
        return importlib.import_module("escnn.gspaces"), importlib.import_module("escnn.nn")
    except ImportError as missing:
        raise ModuleNotFoundError(
            f"steerable features need escnn: pip install escnn 'numpy<2' ({missing}); the wheel of its dependency "
            "lie_learn is built for numpy 1"
        ) from missing
