"""Complete networks of the paper: layers, coordinates and a classifier."""

from __future__ import annotations

from collections.abc import Sequence

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.geometry.atlas import classifier_chart
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.limits import MOST_CHANNELS, MOST_CLASSES, MOST_ITERATIONS, MOST_LAYERS, MOST_SIDE
from equivariant_transformers.models.backbones import Network, make_backbone
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer
from equivariant_transformers.nn.layers import make_layer
from equivariant_transformers.nn.predictors import PREDICTORS


def build(
    network: str | Network = "z2cnn",
    *,
    layers: Sequence[str] = (),
    iterations: int = 1,
    chart: str | None = None,
    predictor: str = "consistent",
    in_channels: int = 1,
    classes: int = 10,
    size: tuple[int, int] = (64, 64),
    strides: tuple[int, int] = (2, 1),
    dropout: float = 0.3,
    fill: float | None = None,
    pose_noise: float = 0.0,
    pretrained: bool = False,
) -> Canonicalized:
    """Return a network of the paper, from normalised images `(B, in_channels, *size)` to logits `(B, classes)`.

    Args:
        network: name of a classifier in `NETWORKS`, `timm:NAME` or `torchvision:NAME` for a classifier of these
            libraries, or a function from the numbers of input channels and classes to a module.
        layers: charts of the layers, in order; at most 32. Each layer removes the pose of its chart. If the chart has
            two groups, both poses are removed together. Without layers, the image is not transformed.
        iterations: number of times the layers are run on their own result, with the same weights; at most 32.
        chart: coordinates of the classifier's input; None for the image itself.
        predictor: `consistent`, and `centre`, which is for `cartesian` alone, sample the library's charts. `softmax`,
            the paper's predictor, and `direct`, the Spatial Transformer's, use the paper's ranges and the size of the
            image.
        in_channels: channels of the images, at most 1024.
        classes: number of logits, at most 100,000.
        size: height and width of the images, at most 1024 each.
        strides: strides of the convolutions of the paper's predictors; (1, 1) on SVHN.
        dropout: dropout rate of the classifier, for classifiers of the library other than the capsule network.
        fill: fill value outside the normalised images; None for the mean of each image's border.
        pose_noise: pose noise in training, as a share of the range of each chart.
        pretrained: start from the pretrained weights of timm or torchvision, with a last layer of random weights.

    >>> import torch
    >>> model = build("z2cnn", layers=["x_shear", "hyperbolic_rotation"], chart="log_polar")
    >>> model(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 10])
    """
    if isinstance(layers, str):
        raise ValueError(f"layers must be a list of names, got {layers!r}; did you mean [{layers!r}]?")
    height, width = size
    for name, value, most in (
        ("in_channels", in_channels, MOST_CHANNELS),
        ("classes", classes, MOST_CLASSES),
        ("the height", height, MOST_SIDE),
        ("the width", width, MOST_SIDE),
        ("iterations", iterations, MOST_ITERATIONS),
        ("the number of layers", len(layers) or 1, MOST_LAYERS),
    ):
        whole_number(name, value, most=most)
    sampled = None if chart is None else classifier_chart(chart, size)
    sheets, wraps = (1, (False, False)) if sampled is None else (sampled.sheets, sampled.periodic)
    options = {"size": size} if network == "capsule" else {"dropout": dropout, "wraps": wraps}
    classifier = make_backbone(network, in_channels * sheets, classes, pretrained=pretrained, **options)
    lookup(PREDICTORS, predictor, "predictor")
    made = [make_layer(name, in_channels, predictor=predictor, size=size, strides=strides) for name in layers]
    canonicalizer = Canonicalizer(made, in_channels, iterations=iterations, fill=fill, pose_noise=pose_noise)
    return Canonicalized(classifier, canonicalizer, chart=sampled)
