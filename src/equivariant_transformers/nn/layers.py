r"""Layers that remove a pose: $L(\phi)(x) = \phi(T_{f(\phi)}^{-1} x)$, and stacks of them around any network.

A stack carries one lazy warp: each layer looks at the input through the warp so far, sampled once straight onto its
chart, and appends its own inverse transformation. The input is sampled once more for the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from equivariant_transformers.geometry.charts import CHARTS, Chart
from equivariant_transformers.geometry.charts import chart as find_chart
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.geometry.projective import can_inspect
from equivariant_transformers.geometry.resampling import check_images, outside, smooth
from equivariant_transformers.geometry.warp import FlowStep, Warp
from equivariant_transformers.nn.augment import Looking, RandomViews, Reach, motion
from equivariant_transformers.nn.buffers import Exact
from equivariant_transformers.nn.predictors import PREDICTORS, DirectPredictor, Prediction

Bounds = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Canonicalization:
    """What a layer or a stack made of a batch of images."""

    images: Tensor
    """The input, `(B, C, H, W)`."""
    warp: Warp
    """From the canonical frame to the input's: `warp.points` and `warp.restore` take predictions back."""
    pose: Tensor
    """`(B, k)`, one column a parameter in the order of the layers."""
    names: tuple[str, ...]
    """The group of each of the `k` parameters."""
    confidence: Tensor
    """`(B, k)`, from 0 to 1."""
    heatmaps: tuple[Tensor, ...]
    """`(B, samples)` for each parameter of an equivariant layer, along its chart's pose axis."""
    background: float | Tensor
    """The value outside the input, a number or `(B, C, 1, 1)`."""
    start: Warp = field(default_factory=Warp)
    """What the layers saw the input through: the random `views` of a stack in training, otherwise the identity."""

    @property
    def image(self) -> Tensor:
        """The canonical images `(B, C, H, W)`, by one sampling of the input at each access."""
        return self.warp.image(self.images, background=self.background)

    @property
    def valid(self) -> Tensor:
        """Which pixels of the canonical images come from inside the input, `(B, 1, H, W)`."""
        size = (self.images.shape[-2], self.images.shape[-1])
        return self.warp.valid(size, self.images.device).expand(self.images.shape[0], -1, -1, -1)

    def on(self, grid: Tensor) -> Tensor:
        """The canonical images at the points of `grid` `(..., h, w, 2)`, by one sampling of the input."""
        return _look(self.images, self.warp, grid, self.background)


# So that torch.export can return these.
_pytree.register_pytree_node(
    FlowStep,
    lambda step: ([step.theta], step.flow),
    lambda leaves, flow: FlowStep(flow, *leaves),
    serialized_type_name="equivariant_transformers.FlowStep",
)
for _type in (Warp, Canonicalization):
    torch.export.register_dataclass(_type)


class _OnChart(Exact):
    """The grid of a chart."""

    grid: Tensor

    def __init__(self, view: Chart) -> None:
        super().__init__()
        self.view = view
        self.keep_exact("grid", view.grid)


class InChart(_OnChart):
    """Images seen in a chart's coordinates, its sheets as channels: goes in front of any network.

    Args:
        chart: coordinates, or their name.
        background: the value of the images outside their frame; None takes the mean of each image's border.

    >>> InChart("x_perspective")(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 6, 64, 64])
    """

    def __init__(self, chart: str | Chart, *, background: float | None = None) -> None:
        super().__init__(find_chart(chart))
        self.background = background

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` to `(B, C * sheets, *chart.size)`."""
        return _look(images, Warp.identity(), self.grid, outside(images, self.background)).flatten(1, 2)


class _Transformer(_OnChart):
    """What both kinds of layer share; they differ in what they look at and in how they read the pose."""

    widths: Tensor

    def __init__(
        self,
        chart: Chart,
        view: Chart,
        predictor: nn.Module,
        in_channels: int,
        bound: Bounds | Sequence[Bounds] | None,
        background: float | None,
    ) -> None:
        super().__init__(view)
        self.chart = chart
        self.predictor = predictor
        self.in_channels = in_channels
        self.bounds = _bounds(bound, len(chart.groups))
        self.background = background
        self.keep_exact("widths", chart.pose_widths)

    def predict(self, images: Tensor, warp: Warp, background: float | Tensor) -> Prediction:
        """The pose of `images` `(B, C, H, W)` seen through `warp`."""
        seen = _look(images, warp, self.grid, background)
        weight = next(self.predictor.parameters(), seen)
        prediction: Prediction = self.predictor(seen.to(weight.dtype))
        if self.bounds is None:
            return prediction
        columns = zip(prediction.pose.unbind(-1), self.bounds, strict=True)
        return prediction._replace(pose=torch.stack([column.clamp(*bound) for column, bound in columns], -1))

    def forward(self, images: Tensor) -> Canonicalization:
        """`(B, C, H, W)` to the canonical images and everything about them."""
        return _canonicalize([self], images, Warp.identity(), self.background, passes=1, gate=None, jitter=0.0)


class EquivariantTransformer(_Transformer):
    """Removes the pose of one group, or of two that commute, in a way that follows every transformation of the input.

    Args:
        chart: canonical coordinates, or the name of a group or chart.
        in_channels: channels of the images.
        predictor: how the pose is read: `consistent` whatever the weights, `softmax` as in the paper, or a module made
            for the chart that returns a `Prediction`.
        channels: features in the predictor.
        bound: (low, high) limits of the pose, one pair for each parameter; None leaves it free.
        background: the value of the images outside their frame; None takes the mean of each image's border.

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
        bound: Bounds | Sequence[Bounds] | None = None,
        background: float | None = None,
    ) -> None:
        chart = find_chart(chart)
        if not isinstance(predictor, nn.Module):
            kind = lookup(PREDICTORS, predictor, "predictor")
            if kind is DirectPredictor:
                raise ValueError("the direct predictor reads the image, not a chart: use SpatialTransformer")
            predictor = kind(chart, in_channels, channels=channels)
        super().__init__(chart, chart, predictor, in_channels, bound, background)


class SpatialTransformer(_Transformer):
    """Removes a pose that an ordinary network reads off the image, the paper's baseline. It begins as the identity.

    The arguments are those of `EquivariantTransformer`; the chart gives the group and how large a pose can be. By
    default the predictor is a `DirectPredictor`.

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
        bound: Bounds | Sequence[Bounds] | None = None,
        background: float | None = None,
    ) -> None:
        chart = find_chart(chart)
        view = CHARTS["cartesian"].replace(size=chart.size)
        if predictor is None:
            predictor = DirectPredictor(chart, in_channels, channels=channels)
        super().__init__(chart, view, predictor, in_channels, bound, background)


Layer = EquivariantTransformer | SpatialTransformer


class Canonicalizer(nn.Module):
    """A stack of layers that resamples the image once.

    Args:
        layers: names or charts, each for an `EquivariantTransformer`, or layers of either kind.
        in_channels: channels of the images.
        predictor: of the layers that are made here.
        channels: of the layers that are made here.
        background: the value of the images outside their frame; None takes the mean of each image's border.
        passes: how often the stack is run, with the same weights, on its own result.
        gate: shrinks a pose in proportion to its confidence below this value; None leaves poses as they are.
        jitter: standard deviation of the noise that training adds to the poses, as a share of the range of each chart.
            Well aligned images are few images; with some noise the network behind learns more from them.
        views: by group how far training moves each image at random before the layers see it, see `RandomViews`.

    >>> canonicalizer = Canonicalizer(["x_shear", "hyperbolic_rotation"], in_channels=1)
    >>> canonicalizer(torch.rand(2, 1, 32, 32)).names
    ('x_shear', 'hyperbolic_rotation')
    """

    def __init__(
        self,
        layers: Sequence[str | Chart | Layer],
        in_channels: int = 1,
        *,
        predictor: str = "consistent",
        channels: int = 32,
        background: float | None = None,
        passes: int = 1,
        gate: float | None = None,
        jitter: float = 0.0,
        views: Reach | None = None,
    ) -> None:
        super().__init__()
        if isinstance(layers, str) or not layers:
            raise ValueError(f"a canonicalizer takes a list of at least one layer, got {layers!r}")
        if passes < 1:
            raise ValueError(f"passes must be at least 1, got {passes}")
        if gate is not None and not 0 < gate <= 1:
            raise ValueError(f"a gate is a confidence in (0, 1], or None; got {gate}")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter is a share of the range of a chart, in [0, 1), got {jitter}")
        made = [
            layer
            if isinstance(layer, (EquivariantTransformer, SpatialTransformer))
            else EquivariantTransformer(layer, in_channels, predictor=predictor, channels=channels)
            for layer in layers
        ]
        if any(layer.in_channels != in_channels for layer in made):
            given = [layer.in_channels for layer in made]
            raise ValueError(f"the layers take {given} channels and the canonicalizer {in_channels}: they must agree")
        backgrounds = {value for value in (background, *(layer.background for layer in made)) if value is not None}
        if len(backgrounds) > 1:
            raise ValueError(
                f"the layers and the canonicalizer have backgrounds {sorted(backgrounds)}: they must agree"
            )
        self.layers = nn.ModuleList(made)
        self.background = backgrounds.pop() if backgrounds else None
        self.passes = passes
        self.gate = gate
        self.jitter = jitter
        self.views = RandomViews(views or {})

    def forward(self, images: Tensor, start: Warp | None = None) -> Canonicalization:
        """`(B, C, H, W)` to the canonical images and everything about them.

        The layers see the images through `start`: a random view in training and nothing otherwise, if it is None.
        """
        jitter = self.jitter if self.training else 0.0
        start = self.views.draw(images) if start is None else start
        return _canonicalize(list(self.layers), images, start, self.background, self.passes, self.gate, jitter)  # type: ignore[arg-type]


class Canonicalized(Looking):
    """Any network behind a canonicalizer: only its input changes.

    Args:
        backbone: takes images `(B, C, h, w)`.
        canonicalizer: a `Canonicalizer` or one layer.
        chart: coordinates in which the backbone sees the canonical image, the image's own by default.
        looks: in evaluation, over how many views of an image the probabilities of a classifier are averaged. They go
            half as far as the canonicalizer's random `views`, and are always the same; the first is the image as it is.

    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> model = Canonicalized(backbone, Canonicalizer(["x_shear"], in_channels=1), chart="log_polar")
    >>> model(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        backbone: nn.Module,
        canonicalizer: Canonicalizer | Layer,
        chart: str | Chart | None = None,
        *,
        looks: int = 1,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.canonicalizer = canonicalizer
        self.view = None if chart is None else _OnChart(find_chart(chart))
        self.looks = looks

    def random_views(self) -> RandomViews:
        """Those of the canonicalizer; one layer has none."""
        return self.canonicalizer.views if isinstance(self.canonicalizer, Canonicalizer) else RandomViews({})

    def answer(self, images: Tensor, start: Warp | None = None) -> Tensor:
        """The backbone's output for the canonical images."""
        return self.read(self.canonicalizer(images) if start is None else self.canonicalizer(images, start))

    def read(self, out: Canonicalization) -> Tensor:
        """The backbone's output for what the canonicalizer made of some images."""
        seen = out.image if self.view is None else out.on(self.view.grid).flatten(1, 2)  # sheets as channels
        result: Tensor = self.backbone(seen)
        return result


class Viewed(Looking):
    """Any network without layers that is shown random views of its images in training, by one sampling of each.

    Args:
        backbone: takes images `(B, C, h, w)`.
        views: by group how far training moves each image at random, see `RandomViews`.
        chart: coordinates in which the backbone sees the image, the image's own by default.
        background: the value of the images outside their frame; None takes the mean of each image's border.
        looks: as for `Canonicalized`.

    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> model = Viewed(backbone, {"rotation": 3.14}, chart="log_polar", looks=8)
    >>> model.eval()(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        backbone: nn.Module,
        views: Reach,
        chart: str | Chart | None = None,
        *,
        background: float | None = None,
        looks: int = 1,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.views = RandomViews(views)
        self.view = None if chart is None else _OnChart(find_chart(chart))
        self.background = background
        self.looks = looks

    def random_views(self) -> RandomViews:
        """Its own."""
        return self.views

    def answer(self, images: Tensor, start: Warp | None = None) -> Tensor:
        """The backbone's output for what it sees of the images."""
        warp = self.views.draw(images) if start is None else start
        if self.view is not None:
            value = outside(images, self.background)
            images = _look(images, warp, self.view.grid, value).flatten(1, 2)  # sheets as channels
        elif warp.steps:
            images = warp.image(images, background=outside(images, self.background))
        result: Tensor = self.backbone(images)
        return result


def _canonicalize(
    layers: Sequence[_Transformer],
    images: Tensor,
    start: Warp,
    background: float | None,
    passes: int,
    gate: float | None,
    jitter: float,
) -> Canonicalization:
    _check(images, layers[0].in_channels)
    value = outside(images, background)
    names: list[str] = []
    found: list[Prediction] = []
    warp = start
    for layer in [*layers] * passes:
        prediction = layer.predict(images, warp, value)
        if gate is not None:
            certain = (prediction.confidence / gate).clamp(max=1)
            prediction = prediction._replace(pose=prediction.pose * certain)
        if jitter:
            noise = jitter * layer.widths * torch.randn_like(prediction.pose)
            prediction = prediction._replace(pose=prediction.pose + noise)
        warp = warp.compose(removal(layer.chart, prediction.pose))
        found.append(prediction)
        names += [group.name for group in layer.chart.groups]
    return Canonicalization(
        images,
        warp,
        torch.cat([prediction.pose for prediction in found], -1),
        tuple(names),
        torch.cat([prediction.confidence for prediction in found], -1),
        tuple(heatmap for prediction in found for heatmap in prediction.heatmaps),
        value,
        start,
    )


def removal(chart: Chart, pose: Tensor) -> Warp:
    """The inverse transformation of `pose` `(B, k)`; the groups of a chart commute."""
    warp = Warp.identity()
    for group, theta in zip(chart.groups, pose.unbind(-1), strict=True):
        warp = warp.compose(motion(group, -theta))
    return warp


def _look(images: Tensor, warp: Warp, grid: Tensor, background: float | Tensor) -> Tensor:
    """`images` through `warp` at `grid` `(..., h, w, 2)`, smoothed first as far as they are finer than the grid.

    The smoothing is the same everywhere: one that followed the spacing of the grid would not move with the content.
    """
    finer = max(images.shape[-2] / grid.shape[-3], images.shape[-1] / grid.shape[-2], 1.0)
    for level in range(1, 1 + math.floor(math.log2(finer))):
        images = smooth(images, level)
    return warp.sample(images, grid, background=background)


def _bounds(bound: Any, poses: int) -> tuple[Bounds, ...] | None:
    if bound is None:
        return None
    try:
        pairs = [bound] if poses == 1 and isinstance(bound[0], (int, float)) else list(bound)
        checked = tuple((float(low), float(high)) for low, high in pairs)
    except (TypeError, ValueError):
        checked = ()
    if len(checked) != poses or any(not low < high for low, high in checked):
        raise ValueError(f"a bound is a (low, high) pair with low < high for each of {poses} parameters, got {bound}")
    return checked


def _check(images: Tensor, channels: int) -> None:
    check_images(images)
    if images.shape[1] != channels:
        raise ValueError(f"the layer was made for {channels} channels, got images of shape {tuple(images.shape)}")
    if can_inspect(images) and not images.isfinite().all():
        where = (~images.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        raise ValueError(f"images {where[:8]} contain NaN or infinite pixels")
