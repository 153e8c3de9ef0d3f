r"""Layers that remove a pose: $L(\phi)(x) = \phi(T_{f(\phi)}^{-1} x)$, and stacks of them around any network.

A stack carries one lazy warp: each layer looks at the input through the warp so far, sampled once straight onto its
chart, and appends its own inverse transformation. The input is sampled once more for the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equivariant_transformers.charts import CHARTS, Chart, chart
from equivariant_transformers.pose import DirectPredictor, Prediction, predictor
from equivariant_transformers.resampling import check_images
from equivariant_transformers.warp import FlowStep, Warp

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
    background: float

    @property
    def image(self) -> Tensor:
        """The canonical images `(B, C, H, W)`, sampled once from the input."""
        return self.warp.image(self.images, background=self.background)

    @property
    def valid(self) -> Tensor:
        """Which pixels of the canonical images come from inside the input, `(B, 1, H, W)`."""
        size = (self.images.shape[-2], self.images.shape[-1])
        return self.warp.valid(size, self.images.device).expand(self.images.shape[0], -1, -1, -1)

    def on(self, grid: Tensor) -> Tensor:
        """The canonical images at the points of `grid` `(..., h, w, 2)`, sampled once from the input."""
        return _look(self.images, self.warp, grid, self.background)


# So that torch.export can return these.
for _type in (FlowStep, Warp, Canonicalization):
    torch.export.register_dataclass(_type)


class EquivariantTransformer(nn.Module):
    """Removes the pose of one group, or of two that commute, in a way that follows every transformation of the input.

    Args:
        chart: canonical coordinates, or the name of a group or chart.
        in_channels: channels of the images.
        predictor: how the pose is read: `consistent` whatever the weights, or `softmax` as in the paper.
        channels: features in the predictor.
        bound: (low, high) limits for every pose of the layer; None leaves it free.
        background: the value of the images outside their frame.

    >>> layer = EquivariantTransformer("x_shear", in_channels=1)
    >>> out = layer(torch.rand(2, 1, 32, 32))
    >>> out.pose.shape, out.image.shape
    (torch.Size([2, 1]), torch.Size([2, 1, 32, 32]))
    """

    grid: Tensor

    def __init__(
        self,
        chart: str | Chart,
        in_channels: int = 1,
        *,
        predictor: str = "consistent",
        channels: int = 32,
        bound: Bounds | None = None,
        background: float = 0.0,
    ) -> None:
        super().__init__()
        self.chart = _chart(chart)
        self.in_channels = in_channels
        self.bound = _checked(bound)
        self.background = background
        self.predictor = _predictor_class(predictor)(self.chart, in_channels, channels=channels)
        self.register_buffer("grid", self.chart.grid(), persistent=False)

    def predict(self, images: Tensor, warp: Warp) -> Prediction:
        """The pose of `images` `(B, C, H, W)` seen through `warp`."""
        return _bounded(self.predictor(_look(images, warp, self.grid, self.background)), self.bound)

    def forward(self, images: Tensor) -> Canonicalization:
        """`(B, C, H, W)` to the canonical images and everything about them."""
        return _canonicalize([self], images, passes=1, gate=None)


class SpatialTransformer(nn.Module):
    """Removes a pose that an ordinary network reads off the image, the paper's baseline. It begins as the identity.

    The arguments are those of `EquivariantTransformer`; the chart gives the group and how large a pose can be.

    >>> layer = SpatialTransformer("rotation", in_channels=3)
    >>> images = torch.rand(2, 3, 32, 32)
    >>> torch.equal(layer(images).image, images)
    True
    """

    grid: Tensor

    def __init__(
        self,
        chart: str | Chart,
        in_channels: int = 1,
        *,
        channels: int = 32,
        bound: Bounds | None = None,
        background: float = 0.0,
    ) -> None:
        super().__init__()
        self.chart = _chart(chart)
        self.in_channels = in_channels
        self.bound = _checked(bound)
        self.background = background
        self.predictor = DirectPredictor(self.chart, in_channels, channels=channels)
        self.register_buffer("grid", CHARTS["cartesian"].replace(size=self.chart.size).grid(), persistent=False)

    def predict(self, images: Tensor, warp: Warp) -> Prediction:
        """The pose of `images` `(B, C, H, W)` seen through `warp`."""
        return _bounded(self.predictor(_look(images, warp, self.grid, self.background)), self.bound)

    def forward(self, images: Tensor) -> Canonicalization:
        """`(B, C, H, W)` to the transformed images and everything about them."""
        return _canonicalize([self], images, passes=1, gate=None)


Layer = EquivariantTransformer | SpatialTransformer


class Canonicalizer(nn.Module):
    """A stack of layers that resamples the image once.

    Args:
        layers: names or charts, each for an `EquivariantTransformer`, or layers of either kind.
        in_channels: channels of the images.
        predictor: of the layers that are made here.
        channels: of the layers that are made here.
        background: the value of the images outside their frame.
        passes: how often the stack is run, with the same weights, on its own result.
        gate: shrinks a pose in proportion to its confidence below this value; None leaves poses as they are.

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
        background: float = 0.0,
        passes: int = 1,
        gate: float | None = None,
    ) -> None:
        super().__init__()
        if not layers:
            raise ValueError("a canonicalizer needs at least one layer")
        if passes < 1:
            raise ValueError(f"passes must be at least 1, got {passes}")
        if gate is not None and not 0 < gate <= 1:
            raise ValueError(f"a gate is a confidence in (0, 1], or None; got {gate}")
        self.passes = passes
        self.gate = gate
        self.layers = nn.ModuleList(
            layer
            if isinstance(layer, (EquivariantTransformer, SpatialTransformer))
            else EquivariantTransformer(
                layer, in_channels, predictor=predictor, channels=channels, background=background
            )
            for layer in layers
        )

    def forward(self, images: Tensor) -> Canonicalization:
        """`(B, C, H, W)` to the canonical images and everything about them."""
        return _canonicalize(list(self.layers), images, self.passes, self.gate)  # type: ignore[arg-type]


class Canonicalized(nn.Module):
    """Any network behind a canonicalizer: only its input changes.

    Args:
        backbone: takes images `(B, C, h, w)`.
        canonicalizer: a `Canonicalizer` or one layer.
        chart: coordinates in which the backbone sees the canonical image, the image's own by default.

    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> model = Canonicalized(backbone, Canonicalizer(["x_shear"], in_channels=1), chart="log_polar")
    >>> model(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 10])
    """

    grid: Tensor | None

    def __init__(
        self, backbone: nn.Module, canonicalizer: Canonicalizer | Layer, chart: str | Chart | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.canonicalizer = canonicalizer
        self.chart = None if chart is None else _chart(chart)
        self.register_buffer("grid", None if self.chart is None else self.chart.grid(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """The backbone's output for the canonical images."""
        out: Canonicalization = self.canonicalizer(images)
        seen = out.image if self.grid is None else out.on(self.grid).flatten(1, 2)  # sheets as channels
        result: Tensor = self.backbone(seen)
        return result


def _canonicalize(layers: list[Layer], images: Tensor, passes: int, gate: float | None) -> Canonicalization:
    _check(images, layers[0].in_channels)
    warp = Warp.identity()
    names: list[str] = []
    found: list[Prediction] = []
    for layer in layers * passes:
        prediction = layer.predict(images, warp)
        if gate is not None:
            certain = (prediction.confidence / gate).clamp(max=1)
            prediction = prediction._replace(pose=prediction.pose * certain)
        warp = warp.compose(_removal(layer.chart, prediction.pose))
        found.append(prediction)
        names += [group.name for group in layer.chart.groups]
    return Canonicalization(
        images,
        warp,
        torch.cat([prediction.pose for prediction in found], -1),
        tuple(names),
        torch.cat([prediction.confidence for prediction in found], -1),
        tuple(heatmap for prediction in found for heatmap in prediction.heatmaps),
        layers[0].background,
    )


def _removal(chart: Chart, pose: Tensor) -> Warp:
    """The inverse transformation of `pose` `(B, k)`; the groups of a chart commute."""
    warp = Warp.identity()
    for group, theta in zip(chart.groups, pose.unbind(-1), strict=True):
        step = Warp.flow(group.transform, -theta) if group.generator is None else Warp((group.matrix(-theta),))
        warp = warp.compose(step)
    return warp


def _look(images: Tensor, warp: Warp, grid: Tensor, background: float) -> Tensor:
    """`images` through `warp` at `grid` `(..., h, w, 2)`, filtered first if they are much finer than the grid."""
    height, width = images.shape[-2:]
    finer = height > 1.5 * grid.shape[-3] or width > 1.5 * grid.shape[-2]
    return warp.sample(images, grid, background=background, antialias=finer)


def _bounded(prediction: Prediction, bound: Bounds | None) -> Prediction:
    return prediction if bound is None else prediction._replace(pose=prediction.pose.clamp(*bound))


def _checked(bound: Bounds | None) -> Bounds | None:
    if bound is not None and not bound[0] < bound[1]:
        raise ValueError(f"a bound is (low, high) with low < high, got {bound}")
    return bound


def _chart(name: str | Chart) -> Chart:
    return chart(name)


def _predictor_class(name: str) -> type[nn.Module]:
    return predictor(name)


def _check(images: Tensor, channels: int) -> None:
    check_images(images)
    if images.shape[1] != channels:
        raise ValueError(f"the layer was made for {channels} channels, got images of shape {tuple(images.shape)}")
    if _can_look_at(images) and images.isnan().any():
        where = images.isnan().flatten(1).any(1).nonzero().flatten().tolist()
        raise ValueError(f"images {where[:8]} contain NaN pixels")


def _can_look_at(images: Tensor) -> bool:
    """Whether values may be inspected: not while a graph is traced or captured, nor under a transform."""
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and images.is_cuda):
        return False
    return type(images) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(images)
