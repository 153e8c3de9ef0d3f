"""Transformers and classifiers of the authors' 2019 code, see `legacy`. Weights have the names of that code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.geometry.frame import extent
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.models.legacy_charts import TRANSFORMATIONS
from equivariant_transformers.models.resnet import resnet10, resnet18, resnet34


class Stack(nn.Module):
    """Sequence of transformers."""

    def __init__(self, transformers: list[Transformer]) -> None:
        super().__init__()
        self.transformers = nn.ModuleList(transformers)

    def forward(self, images: Tensor, size: tuple[int, int] | None = None) -> Warp:
        """Return the warp that removes the pose of images `(B, C, H, W)`, which are sampled on grids of `size`.

        The warp maps points of [-1, 1] x [-1, 1] to points of the frame of the images.
        """
        shape = (images.shape[-2], images.shape[-1])
        size, frame = size or shape, extent(shape)
        square = frame == (1, 1)
        warp = Warp.identity() if square else Warp.projective(_stretch(*frame, images.device))
        for transformer in self.transformers:
            warp = transformer(images, warp, size)
        return warp


def _stretch(x: float, y: float, device: torch.device) -> Tensor:
    """Return the matrix that multiplies coordinates by `x` and `y`; no number is copied to the device."""
    return torch.stack([torch.full((), factor, device=device) for factor in (x, y, 1.0)]).diag()


class Transformer(nn.Module):
    """Transformer layer that predicts the parameters of a transformation on its chart."""

    def __init__(
        self, name: str, predictor: type[EquivariantPredictor | DirectPredictor], options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.name = name
        chart, groups = lookup(TRANSFORMATIONS, name, "transformation")
        self.predictor = predictor(tuple(groups), chart.periodic_v, **options)

    def forward(self, images: Tensor, warp: Warp, size: tuple[int, int]) -> Warp:
        """Return the next warp for images `(B, C, H, W)` that are sampled through `warp`."""
        chart, groups = TRANSFORMATIONS[self.name]
        found = self.predictor(warp.sample(images, chart.grid(size, images.device)))
        for (axis, group), value in zip(groups.items(), found.unbind(-1), strict=True):
            low, high = chart.u if axis == "u" else chart.v
            # A flow, not a matrix: the matrix of a warp hides points behind the horizon.
            warp = warp @ Warp.flow(group.transform, (high - low) / 2 * value)
        return warp


class _Trunk(nn.Module):
    """Convolutions that both predictors share."""

    def __init__(
        self,
        axes: tuple[str, ...],
        periodic_v: bool,
        *,
        in_channels: int,
        nf: int,
        kernel_size: int = 5,
        strides: Sequence[int] = (2, 2),
    ) -> None:
        super().__init__()
        self.axes = axes
        self.padding = ("constant", "circular" if periodic_v else "constant")
        self.reach = kernel_size // 2
        self.stride = strides[0] * strides[1]
        self.conv1 = nn.Conv2d(in_channels, nf, kernel_size, strides[0], bias=False)
        self.bn1 = nn.BatchNorm2d(nf)
        self.conv2 = nn.Conv2d(nf, nf, kernel_size, strides[1], bias=False)
        self.bn2 = nn.BatchNorm2d(nf)

    def features(self, x: Tensor) -> Tensor:
        """Return the second convolution's output `(B, nf, h, w)`, before `bn2`, for `(B, C, H, W)`."""
        x = F.leaky_relu(self.bn1(self.conv1(pad_axes(x, self.reach, self.padding))), 0.1)
        out: Tensor = self.conv2(pad_axes(x, self.reach, self.padding))
        return out


class EquivariantPredictor(_Trunk):
    """Centroid of a softmax along each predicted axis. Both heads exist, even if only one is used."""

    def __init__(self, axes: tuple[str, ...], periodic_v: bool, **options: Any) -> None:
        super().__init__(axes, periodic_v, **options)
        nf, kernel_size = self.conv2.out_channels, self.conv2.kernel_size[0]
        self.conv_u = nn.Conv1d(nf, 1, kernel_size, bias=False)
        self.conv_v = nn.Conv1d(nf, 1, kernel_size, bias=False)
        self.bias_u = nn.Parameter(torch.zeros(()))
        self.bias_v = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the position of the content on each predicted axis, `(B, 1 or 2)`, in units of half the axis."""
        features = F.leaky_relu(self.bn2(self.features(x)), 0.1)
        pad_u, pad_v = self.padding
        u = self._centroid(self.conv_u, features.amax(2), pad_u, x.shape[3]) + self.bias_u.tanh()
        v = self._centroid(self.conv_v, features.amax(3), pad_v, x.shape[2]) + self.bias_v.tanh()
        return torch.stack([{"u": u, "v": v}[axis] for axis in self.axes], -1)

    def _centroid(self, conv: nn.Conv1d, features: Tensor, padding: str, samples: int) -> Tensor:
        """Return the centroid `(B,)` of features `(B, nf, n)` along an axis of `samples` points before the strides."""
        heatmap: Tensor = conv(pad_axes(features, self.reach, (padding,)))[:, 0].softmax(-1)
        index = torch.arange(heatmap.shape[-1], dtype=heatmap.dtype, device=heatmap.device)
        positions = 2 * self.stride / (samples - 1) * (index - index[-1] / 2)
        if padding == "circular":
            angles = math.pi * positions
            return torch.atan2(heatmap @ angles.sin(), heatmap @ angles.cos()) / math.pi
        return heatmap @ positions


class DirectPredictor(_Trunk):
    """Regression from pooled features, which skip `bn2`."""

    def __init__(self, axes: tuple[str, ...], periodic_v: bool, **options: Any) -> None:
        super().__init__(axes, periodic_v, **options)
        nf, self.bins = self.conv2.out_channels, self.conv2.kernel_size[0]
        self.fc = nn.Linear(nf * self.bins**2, len(axes))

    def forward(self, x: Tensor) -> Tensor:
        """Return a value for each predicted axis, `(B, 1 or 2)`, in units of half the axis."""
        pooled = F.adaptive_max_pool2d(self.features(x), self.bins)
        out: Tensor = self.fc(pooled.flatten(1)).tanh()
        return out


class BasicCNN(nn.ModuleDict):
    """Z2CNN of the paper: seven convolutions and a maximum over the image."""

    def __init__(
        self,
        *,
        nf: int = 20,
        p_dropout: float = 0.0,
        pad_mode: str | Sequence[str | None] = (None, None),
        pool: Sequence[bool] = (True, True, False),
        strides: Sequence[int] = (1, 1, 1),
        input_channels: int = 1,
        output_size: int = 10,
    ) -> None:
        super().__init__()
        modes = (pad_mode, pad_mode) if isinstance(pad_mode, str) else pad_mode
        self.padding = [
            mode and lookup({"constant": "constant", "cyclic": "circular"}, mode, "padding") for mode in modes
        ]
        self.p_dropout = p_dropout
        self.pooled = [layer for layer, wanted in enumerate(pool, 1) if wanted]
        for layer, stride in enumerate((*strides, 1, 1, 1), 1):
            self[f"conv{layer}"] = nn.Conv2d(input_channels if layer == 1 else nf, nf, 3, stride, bias=False)
            self[f"bn{layer}"] = nn.BatchNorm2d(nf)
        self["conv7"] = nn.Conv2d(nf, output_size, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(B, classes)` for images `(B, C, H, W)`."""
        for layer in range(1, 7):
            x = F.relu(self[f"bn{layer}"](self[f"conv{layer}"](pad_axes(x, 1, self.padding))))
            if layer in self.pooled:
                x = F.avg_pool2d(x, 2)
            if layer in (3, 6):
                x = F.dropout(x, self.p_dropout, self.training)
        out: Tensor = self["conv7"](pad_axes(x, 1, self.padding))
        return out.amax((2, 3))


def _resnet(
    make: Callable[..., nn.Module],
    *,
    nf: int = 32,
    p_dropout: float = 0.0,
    pad_mode: str | Sequence[str] = "constant",
    in_channels: int = 3,
    output_size: int = 10,
) -> nn.Module:
    """Return a ResNet of the library. Its parameters have the same names as in the authors' code."""
    modes = (pad_mode, pad_mode) if isinstance(pad_mode, str) else pad_mode
    wraps = tuple(lookup({"constant": False, "cyclic": True}, mode, "padding") for mode in modes)
    return make(in_channels, output_size, width=nf, dropout=p_dropout, wraps=wraps)


NETS: dict[str, Callable[..., nn.Module]] = {
    "BasicCNN": BasicCNN,
    "resnet10": partial(_resnet, resnet10),
    "resnet18": partial(_resnet, resnet18),
    "resnet34": partial(_resnet, resnet34),
}


def pad_axes(x: Tensor, amount: int, modes: Sequence[str | None]) -> Tensor:
    """Pad the last axes of `x` by `amount` samples on each side; `modes` starts with the last axis."""
    for axis, mode in enumerate(modes):
        if mode is not None:
            sides = [0, 0] * len(modes)
            sides[2 * axis : 2 * axis + 2] = amount, amount
            x = F.pad(x, sides, mode=mode)
    return x
