r"""Layers that remove a pose: $L(\phi)(x) = \phi(T_{f(\phi)}^{-1} x)$."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers.arguments import real_number
from equivariant_transformers.geometry import projective
from equivariant_transformers.geometry.atlas import CHARTS, paper_chart, picture_chart
from equivariant_transformers.geometry.atlas import chart as find_chart
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.geometry.motion import group_warp, remove_pose
from equivariant_transformers.geometry.reduction import Pyramid
from equivariant_transformers.geometry.resampling import check_images, outside
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.buffers import Exact
from equivariant_transformers.nn.canonicalization import Canonicalization, Step, sample_on, sample_valid_on
from equivariant_transformers.nn.posterior import PosteriorPredictor
from equivariant_transformers.nn.prediction import Prediction, check_channels
from equivariant_transformers.nn.predictors import PREDICTORS, DirectPredictor, SoftmaxPredictor
from equivariant_transformers.text import quote

PoseRange = tuple[float, float]


class ChartGrid(Exact):
    """Grid of a chart as a buffer."""

    grid: Tensor

    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self.sampled = chart
        self.keep_exact("grid", chart.grid)

    def extra_repr(self) -> str:
        return self.sampled.name


class ChartSampler(ChartGrid):
    """Sample images in the coordinates of a chart, with its sheets as channels, in front of any network.

    Args:
        chart: a chart or its name.
        fill: fill value outside the images; None uses the mean of each image's border.

    >>> ChartSampler("x_perspective")(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 6, 64, 64])
    """

    def __init__(self, chart: str | Chart, *, fill: float | None = None) -> None:
        super().__init__(find_chart(chart))
        self.fill = check_fill(fill)

    def forward(self, images: Tensor) -> Tensor:
        """Return samples `(B, C * sheets, *chart.size)` of images `(B, C, H, W)`."""
        check_images(images)
        fill = outside(images, self.fill)
        return sample_on(Pyramid(images), Warp.identity(), self.grid, fill).flatten(1, 2)


class _Transformer(ChartGrid):
    """Base class of the layers, which differ in the sampled chart and in the predictor."""

    widths: Tensor

    def __init__(
        self,
        chart: Chart,
        sampled: Chart,
        predictor: nn.Module,
        in_channels: int,
        pose_range: PoseRange | Sequence[PoseRange] | None,
        fill: float | None,
    ) -> None:
        super().__init__(sampled)
        if not isinstance(predictor, nn.Module):
            raise TypeError(f"predictor must be a module that returns a Prediction, got {quote(predictor)}")
        check_channels(in_channels=in_channels)
        self.chart = chart
        self.predictor = predictor
        self.in_channels = in_channels
        self.pose_ranges = _pose_ranges(pose_range, len(chart.groups))
        self.fill = check_fill(fill)
        self.keep_exact("widths", chart.pose_widths)

    def extra_repr(self) -> str:
        options = {"in_channels": self.in_channels, "pose_range": self.pose_ranges, "fill": self.fill}
        given = (f"{name}={value}" for name, value in options.items() if value is not None)
        return ", ".join([self.chart.name, *given])

    def predict(self, images: Pyramid, warp: Warp, fill: float | Tensor) -> Prediction:
        """Return the prediction for `images` sampled through `warp`."""
        prediction = self._read(images, warp, fill)
        if not isinstance(prediction, Prediction):
            raise TypeError(f"the predictor of a layer must return a Prediction, got a {type(prediction).__name__}")
        return prediction if self.pose_ranges is None else prediction._replace(pose=self.limited(prediction.pose))

    def limited(self, pose: Tensor) -> Tensor:
        """Return `pose` `(B, k)` within the limits of the layer."""
        if self.pose_ranges is None:
            return pose
        columns = zip(pose.unbind(-1), self.pose_ranges, strict=True)
        return torch.stack([column.clamp(*limits) for column, limits in columns], -1)

    def _read(self, images: Pyramid, warp: Warp, fill: float | Tensor) -> Any:
        """Return the output of the predictor.

        A `PosteriorPredictor` reads a reduced copy of large images, whose pixels are not much closer to each other than
        the samples of the chart. In training, it reads an image of pixels in which the content is moved by a small warp
        that does not change the pose (`Nuisance`) and turned by a random amount, and subtracts the amount. If the chart
        were sampled from the input, its pixel grid would be turned together with the content, and the predictor would
        learn to read the angle of the grid.
        """
        if not getattr(self.predictor, "needs_valid", False):
            return self._predicted(sample_on(images, warp, self.grid, fill))
        if isinstance(self.predictor, PosteriorPredictor):
            images, to_reduced = images.reduced()
            warp = to_reduced.compose(warp)
        if not isinstance(self.predictor, PosteriorPredictor) or not self.training:
            seen, valid = sample_valid_on(images, warp, self.grid, fill)
            return self._predicted(seen, valid=valid)
        warp = warp.compose(self.predictor.nuisance.random(images.images))
        turns = self.predictor.random_turns(images.images)
        if turns is not None:
            low, high = self.sampled.ranges[0]
            theta = turns.to(torch.float32) * ((high - low) / self.grid.shape[-2])
            warp = warp.compose(group_warp(self.chart.groups[0], theta))
        rendered = Pyramid(warp.image(images.images, fill=fill))
        seen, valid = sample_valid_on(rendered, Warp.identity(), self.grid, fill)
        return self._predicted(seen, valid=valid & self._valid(images, warp), turns=turns)

    def _predicted(self, seen: Tensor, **options: Tensor | None) -> Any:
        weight = next(self.predictor.parameters(), seen)
        return self.predictor(seen.to(weight.dtype), **options)

    def _valid(self, images: Pyramid, warp: Warp) -> Tensor:
        """Return the mask `(B or 1, sheets, h, w)` of the samples of the chart that show the picture."""
        return warp.sample_valid(images.images[:, :1].detach(), self.grid, images.mask)[1]

    def forward(self, images: Tensor) -> Canonicalization:
        """Return the canonicalization of images `(B, C, H, W)`."""
        check_input(images, self.in_channels)
        return run_layers([self], images, Warp.identity(), outside(images, self.fill))


class EquivariantTransformer(_Transformer):
    """Layer that removes the pose of one group, or of two commuting groups, equivariantly.

    The predicted pose follows the transformations of the input.

    Args:
        chart: canonical coordinates, or the name of a group or chart. A name selects the chart with the ranges of the
            predictor: those for photographs, the library's, or the paper's.
        in_channels: channels of the images.
        predictor: `consistent` for a pose that is self-consistent for any weights; `posterior`, the default of a
            `Canonicalizer`, for photographs, which starts at the identity; `centre`, for the chart `cartesian` alone,
            for a centre that turns with content on an even ground; `softmax` for the predictor of the paper; or a
            module for the chart that returns a `Prediction`.
        channels: number of features of the predictor.
        pose_range: (low, high) limits of the pose, one pair per parameter; None does not limit the pose.
        fill: fill value outside the images; None uses the mean of each image's border.

    >>> layer = EquivariantTransformer("x_shear", in_channels=1)
    >>> out = layer(torch.rand(2, 1, 32, 32))
    >>> out.pose.shape, out.image.shape
    (torch.Size([2, 1]), torch.Size([2, 1, 32, 32]))
    """

    def __init__(
        self,
        chart: str | Chart,
        in_channels: int = 1,
        *,
        predictor: str | nn.Module = "consistent",
        channels: int = 32,
        pose_range: PoseRange | Sequence[PoseRange] | None = None,
        fill: float | None = None,
    ) -> None:
        if isinstance(predictor, nn.Module):
            chart = find_chart(chart)
        else:
            kind = lookup(PREDICTORS, predictor, "predictor")
            if kind is DirectPredictor:
                raise ValueError("the direct predictor takes the image and not a chart: use SpatialTransformer")
            chart = _chart_of(chart, kind)
            predictor = kind(chart, in_channels, channels=channels)
        super().__init__(chart, chart, predictor, in_channels, pose_range, fill)


class SpatialTransformer(_Transformer):
    """Layer that removes a pose regressed from the image, the paper's baseline. It is the identity at initialisation.

    The arguments are the same as for `EquivariantTransformer`. The chart defines the group and the largest pose. The
    default predictor is a `DirectPredictor`. A name selects the chart with the paper's ranges.

    >>> layer = SpatialTransformer("rotation", in_channels=3)
    >>> images = torch.rand(2, 3, 32, 32)
    >>> torch.equal(layer(images).image, images)
    True
    """

    def __init__(
        self,
        chart: str | Chart,
        in_channels: int = 1,
        *,
        predictor: nn.Module | None = None,
        channels: int = 32,
        pose_range: PoseRange | Sequence[PoseRange] | None = None,
        fill: float | None = None,
    ) -> None:
        chart = _chart_of(chart, DirectPredictor)
        if predictor is None:
            predictor = DirectPredictor(chart, in_channels, channels=channels)
        sampled = CHARTS["cartesian"].replace(size=chart.size)
        super().__init__(chart, sampled, predictor, in_channels, pose_range, fill)


Layer = EquivariantTransformer | SpatialTransformer


def make_layer(
    chart: str | Chart,
    in_channels: int = 1,
    *,
    predictor: str,
    channels: int = 32,
    size: tuple[int, int] = (64, 64),
    strides: tuple[int, int] = (2, 1),
) -> Layer:
    """Return a layer for a group or chart, with the predictor of the given name.

    The `posterior` predictor uses the chart for photographs, and the `consistent` and `centre` predictors the library's
    chart. The paper's predictors, `softmax` and `direct`, sample `size` points, the size of the image, over the paper's
    ranges. `strides` are the strides of their two convolutions.
    """
    kind = lookup(PREDICTORS, predictor, "predictor")
    if kind is SoftmaxPredictor:
        chart = _chart_of(chart, kind, size)
        reader = SoftmaxPredictor(chart, in_channels, channels=channels, strides=strides)
        return EquivariantTransformer(chart, in_channels, predictor=reader)
    if kind is DirectPredictor:
        chart = _chart_of(chart, kind, size).replace(size=size)  # it samples the image
        regressor = DirectPredictor(chart, in_channels, channels=channels, strides=strides)
        return SpatialTransformer(chart, in_channels, predictor=regressor)
    return EquivariantTransformer(chart, in_channels, predictor=predictor, channels=channels)


def run_layers(
    layers: Sequence[_Transformer],
    images: Tensor,
    start: Warp,
    fill: float | Tensor,
    *,
    mask: Tensor | None = None,
    min_confidence: float | None = None,
    pose_noise: float = 0.0,
) -> Canonicalization:
    """Apply `layers` in order to `images` `(B, C, H, W)` warped by `start`.

    `mask` `(B, 1, H, W)` is False for padding; None if there is none.
    """
    steps: list[Step] = []
    warp, pyramid = start, Pyramid(images, mask)
    for layer in layers:
        pose, confidence, heatmaps, evidence = layer.predict(pyramid, warp, fill)
        if min_confidence is not None:
            pose = pose * (confidence / min_confidence).clamp(max=1)
        if pose_noise:
            pose = pose + pose_noise * layer.widths * torch.randn_like(pose)
        warp = warp.compose(remove_pose(layer.chart.groups, pose))
        steps.append(Step(layer, pose, confidence, heatmaps, warp, evidence))  # type: ignore[arg-type]
    return Canonicalization(images, tuple(steps), fill, start, mask)


def check_input(images: Tensor, channels: int) -> None:
    """Raise an error unless `images` are valid input for a network with `channels` input channels.

    Images on the CPU must be finite. On other devices this is not checked, because it would wait for the device.
    """
    check_images(images)
    if images.shape[1] != channels:
        hint = "; move the channels with images.permute(0, 3, 1, 2)" if images.shape[3] == channels else ""
        raise ValueError(
            f"the layer takes images with {channels} channels (B, {channels}, H, W), got images of shape "
            f"{tuple(images.shape)}{hint}"
        )
    if images.is_meta and not torch.compiler.is_compiling():
        raise ValueError("images on the meta device have no pixels: create them on another device")
    # A finite sum, which is cheap, implies finite pixels.
    if projective.can_inspect(images) and not math.isfinite(images.detach().sum()) and not images.isfinite().all():
        where = (~images.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        raise ValueError(f"images must be finite, but images {where[:8]} contain NaN or infinite pixels")


def _chart_of(chart: str | Chart, kind: type[nn.Module], size: tuple[int, int] = (64, 64)) -> Chart:
    """Return the chart for a predictor of this `kind`. The paper's predictors use the paper's ranges for a name."""
    if isinstance(chart, str) and kind in (SoftmaxPredictor, DirectPredictor):
        return paper_chart(chart, size)
    return picture_chart(chart) if isinstance(chart, str) and kind is PosteriorPredictor else find_chart(chart)


def _pose_ranges(pose_range: Any, poses: int) -> tuple[PoseRange, ...] | None:
    if pose_range is None:
        return None
    try:
        pairs = torch.as_tensor(pose_range, dtype=torch.float64, device="cpu")
    except (OverflowError, RuntimeError, TypeError, ValueError):
        pairs = torch.empty(0, device="cpu")
    pairs = pairs[None] if poses == 1 and pairs.ndim == 1 else pairs
    if pairs.shape != (poses, 2) or not (pairs[:, 0] < pairs[:, 1]).all():
        raise ValueError(
            f"pose_range must be (low, high) with low < high for each of {poses} parameters, got {quote(pose_range)}"
        )
    return tuple((low, high) for low, high in pairs.tolist())


def check_fill(value: Any) -> float | None:
    """Return `value` as a finite float, or None for the mean of each image's border."""
    if value is None:
        return None
    number = real_number("fill", value)
    if abs(number) > torch.finfo(torch.float32).max:
        raise ValueError(f"fill must be finite, or None for the mean of each image's border; got {quote(value)}")
    return number
