"""Residual networks of the paper's SVHN experiments, with the usual parameter names of ResNets."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.nn.conv import wrap_around

Wraps = tuple[bool, bool]


class ResNet(nn.Module):
    """5x5 convolution, 3x3 max pooling with stride 2, four stages of basic blocks, a mean, and a linear layer.

    Each stage after the first doubles the channels and halves the height and width. Axes that wrap around are padded
    cyclically, other axes with zeros.

    Args:
        blocks: number of basic blocks in each of the four stages.
        in_channels: channels of the images, times the sheets of the chart on which the images are sampled.
        classes: number of logits.
        width: channels of the first stage.
        dropout: dropout rate, inside each block and before the linear layer.
        wraps: True for each periodic axis, (along the width, along the height), as in `Chart.periodic`.

    >>> import torch
    >>> ResNet((1, 1, 1, 1))(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        blocks: tuple[int, int, int, int],
        in_channels: int = 3,
        classes: int = 10,
        *,
        width: int = 32,
        dropout: float = 0.3,
        wraps: Wraps = (False, False),
    ) -> None:
        super().__init__()
        self.wraps = wraps
        self.dropout = dropout
        self.conv1 = _conv(in_channels, width, 5, 1, wraps)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=_open_axes(1, wraps))
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            _stage(depth, count, width, dropout, wraps) for depth, count in enumerate(blocks)
        )
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(B, classes)` for images `(B, C, H, W)`."""
        x = F.relu(self.bn1(self.conv1(wrap_around(x, 2, self.wraps))), inplace=True)
        x = self.pool(wrap_around(x, 1, self.wraps))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (B, 8 width, H / 16, W / 16)
        logits: Tensor = self.fc(F.dropout(x.mean((2, 3)), self.dropout, self.training))
        return logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with dropout between them, and a shortcut."""

    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float, wraps: Wraps) -> None:
        super().__init__()
        self.wraps = wraps
        self.dropout = dropout
        self.conv1 = _conv(in_channels, channels, 3, stride, wraps)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3, 1, wraps)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = nn.Sequential()
        if in_channels != channels:
            self.downsample.append(nn.Conv2d(in_channels, channels, 1, stride, bias=False))
            self.downsample.append(nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return features `(B, channels, H / stride, W / stride)` for `(B, in_channels, H, W)`."""
        y = F.relu(self.bn1(self.conv1(wrap_around(x, 1, self.wraps))), inplace=True)
        y = F.dropout(y, self.dropout, self.training)
        y = self.bn2(self.conv2(wrap_around(y, 1, self.wraps)))
        return F.relu(y + self.downsample(x), inplace=True)


resnet10 = partial(ResNet, (1, 1, 1, 1))
"""`ResNet` with one block per stage; accepts the other arguments of `ResNet`."""
resnet18 = partial(ResNet, (2, 2, 2, 2))
"""`ResNet` with two blocks per stage; accepts the other arguments of `ResNet`."""
resnet34 = partial(ResNet, (3, 4, 6, 3))
"""`ResNet` with three, four, six and three blocks; accepts the other arguments of `ResNet`."""


def _stage(depth: int, blocks: int, width: int, dropout: float, wraps: Wraps) -> nn.Sequential:
    channels = width * 2**depth
    before, stride = (channels // 2, 2) if depth else (channels, 1)
    first = BasicBlock(before, channels, stride, dropout, wraps)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1, dropout, wraps) for _ in range(blocks - 1)))


def _conv(in_channels: int, channels: int, kernel: int, stride: int, wraps: Wraps) -> nn.Conv2d:
    """Return a convolution that does not pad axes that wrap around; `wrap_around` pads them."""
    return nn.Conv2d(in_channels, channels, kernel, stride, padding=_open_axes(kernel // 2, wraps), bias=False)


def _open_axes(reach: int, wraps: Wraps) -> tuple[int, int]:
    """Return the padding for torch, (along the height, along the width): `reach`, or 0 for axes that wrap around."""
    return reach * (not wraps[1]), reach * (not wraps[0])
