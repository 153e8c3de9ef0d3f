"""Classifier of the paper's Projective MNIST experiments."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.nn.kernels import operations

_SMALLEST = 50


class Z2CNN(nn.Module):
    """Seven 3x3 convolutions and a maximum over the image.

    Batch normalisation and ReLU follow each layer except the last, average pooling follows the first two, and dropout
    follows the third and the sixth. Only axes that wrap around are padded, which keeps their length. Other axes need
    at least 50 samples.

    Args:
        in_channels: channels of the images, times the sheets of the chart on which the images are sampled.
        classes: number of logits.
        channels: channels of each layer.
        dropout: dropout rate.
        wraps: True for each periodic axis, (along the width, along the height), as in `Chart.periodic`.

    >>> import torch
    >>> Z2CNN()(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int = 1,
        classes: int = 10,
        *,
        channels: int = 32,
        dropout: float = 0.3,
        wraps: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__()
        self.wraps = wraps
        self.dropout = dropout
        self.convs = nn.ModuleList(
            nn.Conv2d(in_channels if layer == 1 else channels, channels, 3, bias=False) for layer in range(1, 7)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in self.convs)
        self.head = nn.Conv2d(channels, classes, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(B, classes)` for images `(B, C, H, W)`."""
        height, width = x.shape[-2:]
        if (width < _SMALLEST and not self.wraps[0]) or (height < _SMALLEST and not self.wraps[1]):
            raise ValueError(
                f"Z2CNN needs at least {_SMALLEST} samples along axes that do not wrap, got {height} x {width} pixels"
            )
        compute = operations(x, *self.convs)
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True), 1):
            features = compute.batch_normalised(x, conv, norm, slope=0.0, wraps=self.wraps)  # type: ignore[arg-type]
            x = features.value(window=2 if layer <= 2 else 1)
            if layer in (3, 6):
                x = F.dropout(x, self.dropout, self.training)
        return compute.maxima(x, self.head, wraps=self.wraps)
