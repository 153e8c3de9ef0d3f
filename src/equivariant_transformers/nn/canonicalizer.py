"""Stacks of layers, and networks behind a stack.

A stack composes one lazy warp. Each layer samples the input once through the warp so far, directly onto its chart, and
composes its inverse transformation with the warp. The input is sampled once more for the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from equivariant_transformers.arguments import real_number, whole_number
from equivariant_transformers.geometry.atlas import chart as find_chart
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.resampling import masked_fill, outside
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.limits import MOST_ITERATIONS
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.nn.layers import (
    ChartGrid,
    EquivariantTransformer,
    Layer,
    SpatialTransformer,
    check_fill,
    check_input,
    make_layer,
    run_layers,
)
from equivariant_transformers.nn.prediction import check_channels
from equivariant_transformers.text import quote


class Canonicalizer(nn.Module):
    """Stack of layers that resamples the image once. An empty stack is the identity.

    Args:
        layers: names, charts or layers.
        in_channels: channels of the images.
        predictor: predictor of the layers that are given by name or chart. The default, `posterior`, starts at the
            identity and is made for photographs; train it with `alignment_loss`. `consistent` follows transformations
            of the input for any weights. `softmax` and `direct` are the paper's predictors.
        channels: number of features of these predictors.
        fill: fill value outside the images; None uses the mean of each image's border.
        iterations: number of times the stack is applied to its own result, with shared weights.
        min_confidence: confidence below which a pose is scaled down in proportion; None leaves poses unchanged.
        pose_noise: standard deviation of the noise added to the poses in training, as a fraction of the range of each
            chart. It augments the aligned images, which vary little, for the network behind the stack.

    >>> canonicalizer = Canonicalizer(["x_shear", "hyperbolic_rotation"], in_channels=1)
    >>> canonicalizer(torch.rand(2, 1, 32, 32)).names
    ('x_shear', 'hyperbolic_rotation')
    """

    def __init__(
        self,
        layers: Sequence[str | Chart | Layer],
        in_channels: int = 1,
        *,
        predictor: str = "posterior",
        channels: int = 32,
        fill: float | None = None,
        iterations: int = 1,
        min_confidence: float | None = None,
        pose_noise: float = 0.0,
    ) -> None:
        super().__init__()
        if isinstance(layers, str) or not isinstance(layers, Iterable):
            hint = f"; write [{quote(layers)}]" if isinstance(layers, str) else ""
            raise ValueError(f"layers must be a list, got {quote(layers)}{hint}")
        iterations = whole_number("iterations", iterations, most=MOST_ITERATIONS)
        min_confidence = None if min_confidence is None else real_number("min_confidence", min_confidence)
        if min_confidence is not None and not 0 < min_confidence <= 1:
            raise ValueError(f"min_confidence must be in (0, 1], or None; got {min_confidence}")
        pose_noise = real_number("pose_noise", pose_noise)
        if not 0 <= pose_noise < 1:
            raise ValueError(f"pose_noise must be a fraction of the range of a chart, in [0, 1); got {pose_noise}")
        check_channels(in_channels=in_channels)
        fill = check_fill(fill)
        made = [
            layer
            if isinstance(layer, (EquivariantTransformer, SpatialTransformer))
            else make_layer(layer, in_channels, predictor=predictor, channels=channels)
            for layer in layers
        ]
        if any(layer.in_channels != in_channels for layer in made):
            given = [layer.in_channels for layer in made]
            raise ValueError(f"the layers take {given} channels and the canonicalizer {in_channels}: they must agree")
        fills = {value for value in (fill, *(layer.fill for layer in made)) if value is not None}
        if len(fills) > 1:
            raise ValueError(f"the layers and the canonicalizer have fill values {sorted(fills)}: they must agree")
        self.layers = nn.ModuleList(made)
        self.in_channels = in_channels
        self.fill = fills.pop() if fills else None
        self.iterations = iterations
        self.min_confidence = min_confidence
        self.pose_noise = pose_noise

    def forward(self, images: Tensor, start: Warp | None = None, mask: Tensor | None = None) -> Canonicalization:
        """Return the canonicalization of images `(B, C, H, W)` that are warped by `start`.

        `mask` `(B, 1, H, W)` is True where the images show the picture, and False for padding. Padding is replaced by
        the fill value, and has no effect on the poses.
        """
        check_input(images, self.in_channels)
        fill = outside(images, self.fill) if mask is None else masked_fill(images, mask, self.fill)
        if mask is not None:
            images = torch.where(mask, images, fill)
        return run_layers(
            [*self.layers] * self.iterations,
            images,
            start or Warp.identity(),
            fill,
            mask=mask,
            min_confidence=self.min_confidence,
            pose_noise=self.pose_noise if self.training else 0.0,
        )


class Canonicalized(nn.Module):
    """Network whose input is replaced by the canonical image.

    Args:
        backbone: module that takes images `(B, C, h, w)`.
        canonicalizer: a `Canonicalizer`, or one layer.
        chart: coordinates in which the canonical image is sampled for the backbone; pixel coordinates by default.

    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> model = Canonicalized(backbone, Canonicalizer(["x_shear"], in_channels=1), chart="log_polar")
    >>> model(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, backbone: nn.Module, canonicalizer: Canonicalizer | Layer, chart: str | Chart | None = None
    ) -> None:
        super().__init__()
        for name, module in (("backbone", backbone), ("canonicalizer", canonicalizer)):
            if not isinstance(module, nn.Module):
                names = [module] if isinstance(module, str) else module
                listed = name == "canonicalizer" and isinstance(names, (list, tuple))
                hint = f"; write Canonicalizer({quote(list(names))}, in_channels=3)" if listed else ""
                raise TypeError(f"{name} must be a module, got {quote(module)}{hint}")
        if isinstance(canonicalizer, (EquivariantTransformer, SpatialTransformer)):
            canonicalizer = Canonicalizer([canonicalizer], canonicalizer.in_channels)
        self.backbone = backbone
        self.canonicalizer = canonicalizer
        self.chart = None if chart is None else ChartGrid(find_chart(chart))

    def forward(self, images: Tensor, start: Warp | None = None, mask: Tensor | None = None) -> Tensor:
        """Return the output of the backbone for the canonical images of `images` `(B, C, H, W)` warped by `start`.

        `mask` `(B, 1, H, W)` is False for padding, see `Canonicalizer.forward`.
        """
        return self.read(self.canonicalizer(images, start, mask))

    def read(self, out: Canonicalization) -> Tensor:
        """Return the output of the backbone for the result of the canonicalizer."""
        if not isinstance(out, Canonicalization):
            raise TypeError(f"the canonicalizer must return a Canonicalization, got a {type(out).__name__}")
        seen = out.image if self.chart is None else out.on(self.chart.grid).flatten(1, 2)  # sheets as channels
        result: Tensor = self.backbone(seen)
        return result
