r"""Networks that read the pose off a chart-sampled image.

Each takes `(B, C, sheets, H, W)`, an image sampled on a chart's grid, and returns a `Prediction`. Self-consistency is
$f(T_\theta\phi) = f(\phi) + \theta$: content that moves by $-\theta$ along the pose axis of the chart has a pose that
is larger by $\theta$, so a predictor returns *minus* where it found the content, relative to the chart's centre.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.projective import at_least_float32, wrap
from equivariant_transformers.nn.buffers import Exact
from equivariant_transformers.nn.conv import CentredActivation, Evidence, ScaleNorm, pad
from equivariant_transformers.nn.kernels import Features, operations, plain

MOST_CHANNELS = 4096
"""The limit on channels of images and on features of a predictor: two layers of 4096 have 1.2 GB of weights."""

_FLOOR = 1e-4
_SLOPE = 0.1  # of the paper's leaky ReLUs
_PULL = 0.25  # at first, to pose 0 on a periodic axis, as a share of the weight of a heat map


class Prediction(NamedTuple):
    """What a predictor found in a batch of `B` images for the `k` parameters of its chart."""

    pose: Tensor
    """`(B, k)`."""
    confidence: Tensor
    """`(B, k)`, from 0 (nothing to see, or spread over the whole range) to 1 (one sharp place)."""
    heatmaps: tuple[Tensor, ...]
    """For each parameter, weights `(B, samples)` whose centre is the pose; they sum to 1, to 0 if nothing is seen."""


class ConsistentPredictor(Exact):
    r"""Reads a pose that is self-consistent whatever the weights.

    Three things make it so. Every layer maps nothing to nothing: the first kernels sum to zero along the pose axis, so
    that the features are built on the change of the image along the group's flow, and a constant background or a fixed
    point of the group leaves no trace that could hold the centre of the heat map back. Rows of the chart (orbits of the
    group) are averaged by how well they are seen (`Chart.row_weights`). The heat map is a power $|h|^p$ of the evidence
    with a learned exponent $p > 1$: it vanishes with the evidence, is as selective as training makes it, and for small
    $p$ counts an edge by its height, however wide it appears in the chart.
    """

    blur: Tensor
    row_weights: Tensor

    def __init__(self, chart: Chart, in_channels: int, *, channels: int = 32) -> None:
        super().__init__()
        check_channels(in_channels=in_channels, channels=channels)
        self.chart = chart
        self.poses = len(chart.groups)
        stride = (2, 1) if self.poses == 1 else (1, 1)  # pose axes keep their resolution
        self.conv1 = nn.Conv2d(in_channels * chart.sheets, channels, 3, stride=stride, bias=False)
        self.norm1 = ScaleNorm(channels)
        self.activation1 = CentredActivation(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=_padding(chart.periodic), bias=False)
        self.norm2 = ScaleNorm(channels)
        self.activation2 = CentredActivation(channels)
        self.maps = nn.ModuleList(Evidence(channels) for _ in range(self.poses))
        self.log_excess = nn.Parameter(torch.full((self.poses,), math.log(0.25)))  # p = 1.25 at first
        self.bias = nn.Parameter(torch.zeros(self.poses))
        if min(chart.size) < 4:
            raise ValueError(f"a chart needs at least 4 x 4 samples to read a pose from, got {chart.size}")
        plain: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the defaults are
        blur = torch.softmax(-torch.arange(-3.0, 4.0, **plain).square() / 2, 0)
        weights = chart.row_weights()[:: stride[0]] if self.poses == 1 else torch.ones(chart.size[0], **plain)
        if not weights.sum() > 0:
            raise ValueError(f"the ranges {chart.ranges} of chart {chart.name!r} show nothing of the image")
        self.keep_exact("blur", blur.to)
        self.keep_exact("row_weights", (weights / weights.sum()).to)

    def forward(self, images: Tensor) -> Prediction:
        """`(B, C, sheets, H, W)` to poses `(B, k)`."""
        periodic = self.chart.periodic
        x = images.flatten(1, 2)  # sheets as channels
        x = x - x[..., :1, :1]  # constants cancel in the first layer; here they cancel to the last bit
        x = pad(x, (4, 1) if self.poses == 1 else (4, 4), periodic)
        for axis in (-1, -2)[: self.poses]:
            x = self._smooth(x, axis)
        maps = []
        for axis, (profile, conv) in enumerate(zip(self._pooled(x), self.maps, strict=True)):
            evidence = conv(_pad_profile(profile, periodic[axis]))[:, 0]  # (B, samples)
            maps.append(_heatmap(evidence, 1 + at_least_float32(self.log_excess[axis]).exp()))
        return _read(maps, self.chart, self.bias)

    def _pooled(self, x: Tensor) -> list[Tensor]:
        """The features `(B, channels, samples)` along each pose axis of what the first layer sees."""
        first, second = self._kernels()
        compute = operations(x, self.conv1, self.conv2) if self.poses == 1 else plain
        x = compute.scale_normalised(x, self.conv1, first, self.norm1, self.activation1).value()
        features = compute.scale_normalised(
            x, self.conv2, second, self.norm2, self.activation2, wraps=self.chart.periodic
        )
        pooled = [features.average(self.row_weights)]
        if self.poses == 2:
            pooled.append(features.images().mean(3))
        return pooled

    def _kernels(self) -> tuple[Tensor, Tensor]:
        second = self.conv2.weight
        return self._derivative(self.conv1.weight), self._derivative(second) if self.chart.order == 2 else second

    def _derivative(self, kernels: Tensor) -> Tensor:
        """`kernels` with zero mean along the pose axes."""
        return kernels - kernels.mean((-1,) if self.poses == 1 else (-2, -1), keepdim=True)

    def _smooth(self, x: Tensor, axis: int) -> Tensor:
        """`x` less three samples at each end, after a Gaussian of one: what is finer cannot be followed on the grid."""
        samples = x.shape[axis] - len(self.blur) + 1
        wide = at_least_float32(x)
        shifted = [weight * wide.narrow(axis, k, samples) for k, weight in enumerate(self.blur.unbind())]
        return sum(shifted[1:], shifted[0]).to(x.dtype)


class SoftmaxPredictor(Exact):
    """The paper's predictor: features, maximum over the invariant axis, softmax, centroid.

    Its softmax gives weight to empty background, which does not move with the image, so it is self-consistent only as
    far as training makes it so. What this weight does on other axes it must do on periodic ones too: a heat map that
    says nothing has pose 0. On a circle its centre could be anywhere, so that some weight, how much is learned, is put
    at 0.
    """

    widths: Tensor

    def __init__(
        self, chart: Chart, in_channels: int, *, channels: int = 32, strides: tuple[int, int] = (2, 1)
    ) -> None:
        super().__init__()
        self.chart = chart
        self.poses = len(chart.groups)
        self.trunk = _Trunk(in_channels, channels, strides, chart.periodic)
        self.maps = nn.ModuleList(Evidence(channels) for _ in range(self.poses))
        self.bias = nn.Parameter(torch.zeros(self.poses))
        self.pull = nn.Parameter(torch.tensor(_PULL)) if any(chart.periodic[: self.poses]) else None
        self.keep_exact("widths", chart.pose_widths)
        self.stride = strides[0] * strides[1]

    def forward(self, images: Tensor) -> Prediction:
        """`(B, C, sheets, H, W)` to poses `(B, k)`."""
        x = images.transpose(1, 2).flatten(0, 1)  # each sheet by itself
        pooled = self.trunk(x).strongest(self.poses, self.chart.sheets)
        maps = [
            torch.softmax(conv(_pad_profile(profile, wraps))[:, 0], -1)
            for profile, conv, wraps in zip(pooled, self.maps, self.chart.periodic, strict=False)
        ]  # of profiles (B, channels, samples)
        return _read(maps, self.chart, torch.tanh(self.bias) * self.widths / 2, self.stride, self.pull)


class DirectPredictor(Exact):
    """The Spatial Transformer's predictor: the paper's features, pooled and regressed; its first poses are zero."""

    widths: Tensor

    def __init__(
        self, chart: Chart, in_channels: int, *, channels: int = 32, strides: tuple[int, int] = (2, 1)
    ) -> None:
        super().__init__()
        self.trunk = _Trunk(in_channels, channels, strides, (False, False))
        self.head = nn.Linear(9 * channels, len(chart.groups))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.keep_exact("widths", chart.pose_widths)

    def forward(self, images: Tensor) -> Prediction:
        """`(B, C, 1, H, W)`, the image itself, to poses `(B, k)`."""
        x = F.adaptive_max_pool2d(self.trunk(images.flatten(2, 3)).images(), 3).flatten(1)
        pose = torch.tanh(at_least_float32(self.head(x))) * self.widths / 2
        return Prediction(pose, torch.ones_like(pose), ())


class _Trunk(nn.Module):
    """The paper's two convolutions: 3x3, batch normalisation, leaky ReLU; zeros around what is not periodic."""

    def __init__(self, in_channels: int, channels: int, strides: tuple[int, int], periodic: tuple[bool, bool]) -> None:
        super().__init__()
        check_channels(in_channels=in_channels, channels=channels)
        self.periodic = periodic
        self.convs = nn.ModuleList(
            nn.Conv2d(width, channels, 3, stride=stride, padding=_padding(periodic), bias=False)
            for width, stride in zip((in_channels, channels), strides, strict=True)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in strides)

    def forward(self, x: Tensor) -> Features:
        """`(B, C, H, W)` to features of `(B, channels, h, w)`."""
        compute = operations(x, *self.convs)
        (conv1, conv2), (norm1, norm2) = self.convs, self.norms
        x = compute.batch_normalised(x, conv1, norm1, slope=_SLOPE, wraps=self.periodic).value()  # type: ignore[arg-type]
        return compute.batch_normalised(x, conv2, norm2, slope=_SLOPE, wraps=self.periodic)  # type: ignore[arg-type]


PREDICTORS: dict[str, type[ConsistentPredictor] | type[SoftmaxPredictor] | type[DirectPredictor]] = {
    "consistent": ConsistentPredictor,
    "softmax": SoftmaxPredictor,
    "direct": DirectPredictor,
}
"""The pose predictors, by name."""


def check_channels(**channels: int) -> None:
    """Raise an error unless each of `channels`, by the name of its argument, is a sensible number of channels."""
    for name, count in channels.items():
        whole_number(name, count, most=MOST_CHANNELS)


def _padding(periodic: tuple[bool, bool]) -> tuple[int, int]:
    """Of a convolution, (along H, along W): zeros around axes that are not `periodic`, (along W, along H)."""
    return (0 if periodic[1] else 1, 0 if periodic[0] else 1)


def _pad_profile(profile: Tensor, wraps: bool) -> Tensor:
    """`(B, channels, samples)` with one more sample at each end."""
    return pad(profile[:, :, None], (1, 0), (wraps, False), "constant")[:, :, 0]


def _heatmap(evidence: Tensor, exponent: Tensor) -> Tensor:
    r"""Weights $|h|^p$ of evidence h `(B, samples)`, scaled to sum to 1; all 0 where there is no evidence."""
    power = evidence.square()
    relative = power / (power.mean(-1, keepdim=True) + 1e-12)
    weights = (relative + _FLOOR) ** (exponent / 2) - _FLOOR ** (exponent / 2)  # the floor keeps the gradient finite
    return weights / (weights.sum(-1, keepdim=True) + 1e-6)


def _read(maps: list[Tensor], chart: Chart, bias: Tensor, stride: int = 1, pull: Tensor | None = None) -> Prediction:
    """The centre of each of `maps` `(B, samples)` along its pose axis of `chart`, as a prediction."""
    found = [_centre(heatmap, chart, axis, stride, pull) for axis, heatmap in enumerate(maps)]
    pose, confidence = (torch.stack(column, -1) for column in zip(*found, strict=True))
    seen = torch.stack([heatmap.sum(-1) for heatmap in maps], -1)  # 0 for an empty image, whose pose is 0
    pose = pose + bias * seen
    wrapped = [
        wrap(column, high - low if periodic else None)
        for column, (low, high), periodic in zip(pose.unbind(-1), chart.ranges, chart.periodic, strict=False)
    ]
    return Prediction(torch.stack(wrapped, -1), confidence, tuple(maps))


def _centre(heatmap: Tensor, chart: Chart, axis: int, stride: int, pull: Tensor | None) -> tuple[Tensor, Tensor]:
    """The pose `(B,)` and confidence `(B,)` of a `heatmap` `(B, samples)` along a pose axis of `chart`.

    `pull` is the weight at pose 0 that is added on a periodic axis.
    """
    low, high = chart.ranges[axis]
    positions = chart.axes(dtype=heatmap.dtype, device=heatmap.device)[axis][::stride] - chart.centre[axis]
    if chart.periodic[axis]:
        turn = 2 * math.pi / (high - low)
        x = (heatmap * torch.cos(turn * positions)).sum(-1)
        y = (heatmap * torch.sin(turn * positions)).sum(-1)
        nowhere = x.square() + y.square() < 1e-10
        x, y = torch.where(nowhere, 1.0, x), torch.where(nowhere, 0.0, y)
        ahead = x if pull is None else x + pull
        return -torch.atan2(y, ahead) / turn, torch.where(nowhere, 0.0, torch.sqrt(x.square() + y.square()))
    mean = (heatmap * positions).sum(-1)
    variance = (heatmap * (positions - mean[:, None]).square()).sum(-1)
    spread = torch.sqrt(variance + 1e-12) / ((high - low) / math.sqrt(12))  # 1 for a flat map
    return -mean, heatmap.sum(-1) * (1 - spread).clamp(0, 1)
