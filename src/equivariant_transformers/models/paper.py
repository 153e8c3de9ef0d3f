"""The paper's complete networks, by name: layers, coordinates and a classifier."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from equivariant_transformers.geometry.charts import Chart, Range
from equivariant_transformers.geometry.charts import chart as find_chart
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.models.affnist import AffNISTCNN
from equivariant_transformers.models.capsule import CapsuleNetwork
from equivariant_transformers.models.resnet import resnet10, resnet18, resnet34
from equivariant_transformers.models.z2cnn import Z2CNN
from equivariant_transformers.nn.augment import Reach
from equivariant_transformers.nn.layers import (
    Canonicalized,
    Canonicalizer,
    EquivariantTransformer,
    InChart,
    Layer,
    SpatialTransformer,
    Viewed,
)
from equivariant_transformers.nn.predictors import PREDICTORS, DirectPredictor, SoftmaxPredictor

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "z2cnn": Z2CNN,
    "affnist": AffNISTCNN,
    "affnist-small": partial(AffNISTCNN, width=64),
    "resnet10": resnet10,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "capsule": CapsuleNetwork,
}
"""The classifiers, by name."""

_IMAGE = (-1.0, 1.0)
_TURN = (-math.pi, math.pi)
_CORNER = math.log(2) / 2  # log of the distance from the centre to a corner
_RADII = (-math.log(10), _CORNER)
_SCALES = (-math.log(10), 0.0)
_RAYS = (-0.99 * math.pi / 2, 0.99 * math.pi / 2)

PAPER_RANGES: dict[str, tuple[Range, Range]] = {
    "x_translation": (_IMAGE, _IMAGE),
    "y_translation": (_IMAGE, _IMAGE),
    "rotation": (_TURN, (0, math.sqrt(2))),
    "dilation": (_RADII, _TURN),
    "x_scale": (_SCALES, _IMAGE),
    "y_scale": (_SCALES, _IMAGE),
    "hyperbolic_rotation": ((-math.log(6), math.log(6)), (-math.sqrt(0.5), math.sqrt(0.5))),
    "x_shear": ((-5, 5), _IMAGE),
    "y_shear": ((-5, 5), _IMAGE),
    "x_perspective": ((1, 7), _RAYS),
    "y_perspective": ((1, 7), _RAYS),
    "cartesian": (_IMAGE, _IMAGE),
    "log_polar": (_TURN, _RADII),
    "log_log": (_SCALES, _SCALES),
}
"""The ranges of both coordinates in which the paper's predictors look, by chart."""


def build(
    network: str = "z2cnn",
    *,
    layers: Sequence[str] = (),
    passes: int = 1,
    chart: str | None = None,
    predictor: str = "consistent",
    in_channels: int = 1,
    classes: int = 10,
    size: tuple[int, int] = (64, 64),
    strides: tuple[int, int] = (2, 1),
    dropout: float = 0.3,
    background: float | None = None,
    jitter: float = 0.0,
    views: Reach | None = None,
    looks: int = 1,
) -> nn.Module:
    """A network of the paper, from normalised images `(B, in_channels, *size)` to logits `(B, classes)`.

    Args:
        network: a classifier of `NETWORKS`.
        layers: charts whose poses are removed, one after the other; those of two groups are removed together.
        passes: how often the layers are run, with the same weights, on their own result.
        chart: coordinates in which the classifier sees the image, its own by default.
        predictor: how the layers read a pose. `consistent` looks in the library's charts; `softmax`, the paper's, and
            `direct`, the Spatial Transformer's, have the paper's ranges and the image's size.
        in_channels: channels of the images.
        classes: how many logits.
        size: height and width of the images.
        strides: of the convolutions of the paper's predictors; (1, 1) on SVHN.
        dropout: of the classifier; capsules have none.
        background: the value of the normalised images outside their frame; None takes the mean of each image's border.
        jitter: noise on the poses in training, as a share of the range of each chart.
        views: by group how far training moves each image at random.
        looks: in evaluation, over how many views of an image the answers are averaged, see `Canonicalized`; 1 without
            `views`.

    >>> import torch
    >>> model = build("z2cnn", layers=["x_shear", "hyperbolic_rotation"], chart="log_polar")
    >>> model(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 10])
    """
    if isinstance(layers, str):
        raise ValueError(f"layers are a list of names, got {layers!r}; did you mean [{layers!r}]?")
    view = None if chart is None else _view(chart, size)
    sheets, wraps = (1, (False, False)) if view is None else (view.sheets, view.periodic)
    options = {"size": size} if network == "capsule" else {"dropout": dropout, "wraps": wraps}
    classifier = lookup(NETWORKS, network, "network")(in_channels * sheets, classes, **options)
    lookup(PREDICTORS, predictor, "predictor")
    if layers:
        made = [_layer(name, predictor, in_channels, size, strides) for name in layers]
        canonicalizer = Canonicalizer(
            made, in_channels, passes=passes, background=background, jitter=jitter, views=views
        )
        return Canonicalized(classifier, canonicalizer, chart=view, looks=looks)
    if views or looks != 1:  # `Viewed` refuses looks without views
        return Viewed(classifier, views or {}, view, background=background, looks=looks)
    return nn.Sequential(InChart(view, background=background), classifier) if view else classifier


def paper_chart(name: str, size: tuple[int, int] = (64, 64)) -> Chart:
    """The chart called `name` as the paper's predictors look at it: a pose of 0 is the middle of its range.

    The sheets of a chart share the height of the image.

    >>> paper_chart("x_perspective").ranges[0]
    (1.0, 7.0)
    """
    chart = find_chart(name)
    height, width = size
    ranges = lookup(PAPER_RANGES, name, "chart")
    return chart.replace(ranges=ranges, origin=None, size=(height // chart.sheets, width))


def _layer(name: str, predictor: str, in_channels: int, size: tuple[int, int], strides: tuple[int, int]) -> Layer:
    if predictor == "consistent":
        return EquivariantTransformer(name, in_channels)
    chart = paper_chart(name, size)
    if predictor == "softmax":
        reader = SoftmaxPredictor(chart, in_channels, strides=strides)
        return EquivariantTransformer(chart, in_channels, predictor=reader)
    chart = chart.replace(size=size)  # it looks at the image
    return SpatialTransformer(chart, in_channels, predictor=DirectPredictor(chart, in_channels, strides=strides))


def _view(name: str, size: tuple[int, int]) -> Chart:
    """The chart that a classifier looks at; log-polar radii begin at 1 / width, as in the paper."""
    chart = find_chart(name).replace(size=size)
    return chart.replace(ranges=(_TURN, (-math.log(size[1]), _CORNER))) if name == "log_polar" else chart
