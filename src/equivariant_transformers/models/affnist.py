"""The classifier of the paper's affNIST experiment."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.nn.conv import wrap_around


class AffNISTCNN(nn.Module):
    """Three layers of 5x5 convolutions with 256, 256 and 128 channels, their mean over the picture, a linear layer.

    Batch normalisation and ReLU after each convolution, dropout before the linear layer. The paper names no pooling
    between the layers and no padding; as in its other classifier nothing is padded except axes that wrap around, and
    nothing is pooled before the end: 40 x 40 pixels become 36 x 36, 32 x 32 and 28 x 28. Nor does it give the rate of
    the dropout; the default is that of the other experiments.

    Args:
        in_channels: channels of the images, times the sheets of the chart that they are sampled on.
        classes: how many logits.
        width: channels of the first two layers, twice those of the third.
        dropout: the share of features that training leaves out.
        wraps: which axes are periodic, (along the width, along the height), as `Chart.periodic`.

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
        """`(B, C, H, W)` to logits `(B, classes)`."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(wrap_around(x, 2, self.wraps))), inplace=True)
        logits: Tensor = self.head(F.dropout(x.mean((2, 3)), self.dropout, self.training))
        return logits
