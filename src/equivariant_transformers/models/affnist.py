"""Classifier of the paper's affNIST experiment."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.nn.conv import wrap_around


class AffNISTCNN(nn.Module):
    """Three 5x5 convolutions with 256, 256 and 128 channels, a mean over the image, and a linear layer.

    Batch normalisation and ReLU follow each convolution. Dropout precedes the linear layer. The paper does not mention
    padding, or pooling between the layers. As in its other classifier, only axes that wrap around are padded. Nothing
    is pooled before the end: 40 x 40 pixels become 36 x 36, 32 x 32 and 28 x 28. The paper does not give the dropout
    rate; the default is the rate of its other experiments.

    Args:
        in_channels: channels of the images, times the sheets of the chart on which the images are sampled.
        classes: number of logits.
        width: channels of the first two layers; the third has half as many.
        dropout: dropout rate.
        wraps: True for each periodic axis, (along the width, along the height), as in `Chart.periodic`.

    >>> import torch
    >>> AffNISTCNN()(torch.rand(2, 1, 20, 20)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int = 1,
        classes: int = 10,
        *,
        width: int = 256,
        dropout: float = 0.3,
        wraps: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__()
        self.wraps = wraps
        self.dropout = dropout
        widths = (in_channels, width, width, width // 2)
        self.convs = nn.ModuleList(nn.Conv2d(*ends, 5, bias=False) for ends in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.head = nn.Linear(width // 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(B, classes)` for images `(B, C, H, W)`."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(wrap_around(x, 2, self.wraps))), inplace=True)
        logits: Tensor = self.head(F.dropout(x.mean((2, 3)), self.dropout, self.training))
        return logits
