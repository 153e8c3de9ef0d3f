r"""Networks that predict the pose from an image sampled on a chart.

A predictor takes images `(B, C, sheets, H, W)`, sampled on the grid of a chart, and returns a `Prediction`.
Self-consistency is $f(T_\theta\phi) = f(\phi) + \theta$. Content that moves by $-\theta$ along the pose axis of the
chart has a pose that is larger by $\theta$. A predictor therefore returns *minus* the position of the content, relative
to the centre of the chart.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.projective import at_least_float32
from equivariant_transformers.nn.buffers import Exact
from equivariant_transformers.nn.centre import CentrePredictor
from equivariant_transformers.nn.conv import CentredActivation, Evidence, ScaleNorm, pad
from equivariant_transformers.nn.kernels import Features, operations, plain
from equivariant_transformers.nn.posterior import PosteriorPredictor
from equivariant_transformers.nn.prediction import PoseReader, Prediction, check_channels, weights_of
from equivariant_transformers.nn.visibility import Window

_SLOPE = 0.1  # negative slope of the paper's leaky ReLUs
_PULL = 0.25  # initial weight at pose 0 on a periodic axis, relative to the sum of the heat map


class ConsistentPredictor(Exact):
    r"""Predictor whose pose is self-consistent for any weights.

    Self-consistency has three causes:

    - Every layer maps 0 to 0, and the first kernels sum to zero along the pose axis. The features depend on the change
      of the image along the flow of the group. A constant region or a fixed point of the group does not contribute, and
      cannot hold back the centre of the heat map.
    - Rows of the chart, which are orbits of the group, are averaged with weights for how much of each row lies in the
      image (`Chart.row_weights`). Circular orbits also fade out towards the largest circle inside the image (`window`).
    - The heat map is a power $|h|^p$ of the evidence with a learned exponent $p > 1$. It is 0 where the evidence is 0,
      and its selectivity is learned. For small $p$, an edge has a weight that depends on its height and not on its
      width in the chart.
    """

    blur: Tensor
    row_weights: Tensor

    def __init__(self, chart: Chart, in_channels: int, *, channels: int = 32) -> None:
        super().__init__()
        check_channels(in_channels=in_channels, channels=channels)
        self.chart = chart
        self.poses = len(chart.groups)
        self.needs_valid = self.poses == 1 and chart.periodic[0]
        stride = (2, 1) if self.poses == 1 else (1, 1)  # pose axes keep their resolution
        self.conv1 = nn.Conv2d(in_channels * chart.sheets, channels, 3, stride=stride, bias=False)
        self.norm1 = ScaleNorm(channels)
        self.activation1 = CentredActivation(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=_padding(chart.periodic), bias=False)
        self.norm2 = ScaleNorm(channels)
        self.activation2 = CentredActivation(channels)
        self.maps = nn.ModuleList(Evidence(channels) for _ in range(self.poses))
        self.log_excess = nn.Parameter(torch.full((self.poses,), math.log(0.25)))  # initially p = 1.25
        self.bias = nn.Parameter(torch.zeros(self.poses))
        if min(chart.size) < 4:
            raise ValueError(f"a chart must have at least 4 x 4 samples for a predictor, got {chart.size}")
        fixed: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # independent of torch's defaults
        blur = torch.softmax(-torch.arange(-3.0, 4.0, **fixed).square() / 2, 0)
        weights = chart.row_weights()[:: stride[0]] if self.poses == 1 else torch.ones(chart.size[0], **fixed)
        if not weights.sum() > 0:
            raise ValueError(f"the ranges {chart.ranges} of chart {chart.name!r} must overlap the image")
        self.keep_exact("blur", blur.to)
        self.keep_exact("row_weights", (weights / weights.sum()).to)
        self.window = Window(chart)
        self.reader = PoseReader(chart)

    def forward(self, images: Tensor, valid: Tensor | None = None) -> Prediction:
        """Return the prediction for images `(B, C, sheets, H, W)`.

        `valid` `(B or 1, sheets, H, W)` is a mask of the samples inside the images. It is used if `needs_valid`.
        """
        periodic = self.chart.periodic
        if self.needs_valid and valid is not None:  # the weight of a row does not change its derivative along the row
            images = images * self.window(valid)[:, None].to(images.dtype)
        x = images.flatten(1, 2)  # sheets as channels
        x = x - x[..., :1, :1]  # the first layer cancels constants; this cancels them to the last bit
        x = pad(x, (4, 1) if self.poses == 1 else (4, 4), periodic)
        for axis in (-1, -2)[: self.poses]:
            x = self._smooth(x, axis)
        maps = []
        for axis, (profile, conv) in enumerate(zip(self._pooled(x), self.maps, strict=True)):
            evidence = conv(_pad_profile(profile, periodic[axis]))[:, 0]  # (B, samples)
            maps.append(weights_of(evidence, 1 + at_least_float32(self.log_excess[axis]).exp()))
        prediction: Prediction = self.reader(maps, self.bias)
        return prediction

    def _pooled(self, x: Tensor) -> list[Tensor]:
        """Return the features `(B, channels, samples)` along each pose axis for the input `x` of the first layer."""
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
        """Return `kernels` with zero mean along the pose axes."""
        return kernels - kernels.mean((-1,) if self.poses == 1 else (-2, -1), keepdim=True)

    def _smooth(self, x: Tensor, axis: int) -> Tensor:
        """Smooth `x` with a Gaussian of one sample, which removes three samples at each end.

        Finer detail cannot be followed on the grid.
        """
        samples = x.shape[axis] - len(self.blur) + 1
        wide = at_least_float32(x)
        shifted = [weight * wide.narrow(axis, k, samples) for k, weight in enumerate(self.blur.unbind())]
        return sum(shifted[1:], shifted[0]).to(x.dtype)


class SoftmaxPredictor(Exact):
    """Predictor of the paper: features, maximum over the invariant axis, softmax, centroid.

    The softmax gives weight to empty regions, which do not move with the image. Self-consistency is therefore learned
    and not exact. A flat heat map has pose 0 on an axis that is not periodic. On a periodic axis its centre is
    undefined, so a learned weight is added at pose 0.
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
        self.reader = PoseReader(chart, strides[0] * strides[1])

    def forward(self, images: Tensor) -> Prediction:
        """Return the prediction for images `(B, C, sheets, H, W)`."""
        x = images.transpose(1, 2).flatten(0, 1)  # sheets as images
        pooled = self.trunk(x).strongest(self.poses, self.chart.sheets)
        maps = [
            torch.softmax(conv(_pad_profile(profile, wraps))[:, 0], -1)
            for profile, conv, wraps in zip(pooled, self.maps, self.chart.periodic, strict=False)
        ]  # (B, samples) each
        prediction: Prediction = self.reader(maps, torch.tanh(self.bias) * self.widths / 2, self.pull)
        return prediction


class DirectPredictor(Exact):
    """Predictor of the Spatial Transformer: the paper's features, pooled and regressed. Initial poses are 0."""

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
        """Return the prediction for images `(B, C, 1, H, W)`."""
        x = F.adaptive_max_pool2d(self.trunk(images.flatten(2, 3)).images(), 3).flatten(1)
        pose = torch.tanh(at_least_float32(self.head(x))) * self.widths / 2
        return Prediction(pose, torch.ones_like(pose), ())


class _Trunk(nn.Module):
    """Two 3x3 convolutions of the paper, each with batch normalisation and leaky ReLU.

    Axes that are not periodic are padded with zeros.
    """

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
        """Return features of shape `(B, channels, h, w)` for `x` `(B, C, H, W)`."""
        compute = operations(x, *self.convs)
        (conv1, conv2), (norm1, norm2) = self.convs, self.norms
        x = compute.batch_normalised(x, conv1, norm1, slope=_SLOPE, wraps=self.periodic).value()  # type: ignore[arg-type]
        return compute.batch_normalised(x, conv2, norm2, slope=_SLOPE, wraps=self.periodic)  # type: ignore[arg-type]


Predictor = PosteriorPredictor | ConsistentPredictor | CentrePredictor | SoftmaxPredictor | DirectPredictor

PREDICTORS: dict[str, type[Predictor]] = {
    "posterior": PosteriorPredictor,
    "consistent": ConsistentPredictor,
    "centre": CentrePredictor,
    "softmax": SoftmaxPredictor,
    "direct": DirectPredictor,
}
"""Pose predictors by name. `centre` is for the chart `cartesian` alone."""


def _padding(periodic: tuple[bool, bool]) -> tuple[int, int]:
    """Return the zero padding (along H, along W) of a convolution, 0 for each `periodic` axis (along W, along H)."""
    return (0 if periodic[1] else 1, 0 if periodic[0] else 1)


def _pad_profile(profile: Tensor, wraps: bool) -> Tensor:
    """Pad `(B, channels, samples)` with one sample at each end."""
    return pad(profile[:, :, None], (1, 0), (wraps, False), "constant")[:, :, 0]
