"""Stacks of layers, and networks behind a stack.

A stack composes one lazy warp. Each layer samples the input once through the warp so far, directly onto its chart, and
composes its inverse transformation with the warp. The input is sampled once more for the result.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers.arguments import real_number, whole_number
from equivariant_transformers.geometry.atlas import chart as find_chart
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.resampling import masked_fill, outside
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.limits import MOST_ITERATIONS
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.nn.corners import can_lose_corners, cover_corners
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
from equivariant_transformers.nn.posterior import PosteriorPredictor
from equivariant_transformers.nn.prediction import check_channels
from equivariant_transformers.nn.recording import Recorder
from equivariant_transformers.text import quote


class Canonicalizer(nn.Module):
    """Stack of layers that resamples the image once. An empty stack is the identity.

    Args:
        layers: names, charts or layers.
        in_channels: channels of the images.
        predictor: predictor of the layers that are given by name or chart. The default, `posterior`, starts at the
            identity and is made for photographs; train it with `alignment_loss`. `consistent` follows transformations
            of the input for any weights. `softmax` and `direct` are the paper's predictors. `centre` is for the chart
            `cartesian` alone: give that layer as an `EquivariantTransformer`.
        channels: number of features of these predictors.
        fill: fill value outside the images; None uses the mean of each image's border.
        iterations: number of times the stack is applied to its own result, with shared weights.
        min_confidence: confidence below which a pose is scaled down in proportion; None leaves poses unchanged.
        pose_noise: standard deviation of the noise added to the poses in training, as a fraction of the range of each
            chart. It augments the aligned images, which vary little, for the network behind the stack.

    On a GPU, calls that recur are recorded as CUDA graphs and replayed, which takes a fraction of the time. See
    `nn.recording`, and the attribute `cuda_graph`.

    >>> canonicalizer = Canonicalizer(["x_shear", "hyperbolic_rotation"], in_channels=1)
    >>> canonicalizer(torch.rand(2, 1, 32, 32)).names
    ('x_shear', 'hyperbolic_rotation')
    """

    cuda_graph: bool = True
    """False to run every call on a GPU as usual, without CUDA graphs."""

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
        self._recorder = Recorder()

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = {"_recorder": Recorder(), **state}  # a module pickled by version 0.1 has none
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        options = {
            "fill": (self.fill, None),
            "iterations": (self.iterations, 1),
            "min_confidence": (self.min_confidence, None),
            "pose_noise": (self.pose_noise, 0.0),
        }
        given = (f"{name}={value}" for name, (value, default) in options.items() if value != default)
        return ", ".join([f"in_channels={self.in_channels}", *given])

    def forward(self, images: Tensor, start: Warp | None = None, mask: Tensor | None = None) -> Canonicalization:
        """Return the canonicalization of images `(B, C, H, W)` that are warped by `start`.

        `mask` `(B, 1, H, W)` is True where the images show the picture, and False for padding. Padding is replaced by
        the fill value, and has no effect on the poses.
        """
        check_input(images, self.in_channels)
        start = start or Warp.identity()
        matrices = [step for step in start.steps if isinstance(step, Tensor)]
        flows = len(matrices) < len(start.steps) or any(group.flow for group in self._groups())
        usual = mask is not None or not self.cuda_graph or not len(self.layers) or torch.compiler.is_compiling()
        if flows or usual:
            return self._run(images, start, mask)
        out: Canonicalization = self._recorder(
            self, lambda images, *steps: self._run(images, Warp(steps)), (images, *matrices), self._options()
        )
        return out

    def _run(self, images: Tensor, start: Warp, mask: Tensor | None = None) -> Canonicalization:
        fill = outside(images, self.fill) if mask is None else masked_fill(images, mask, self.fill)
        if mask is not None:
            images = torch.where(mask, images, fill)
        return run_layers(
            [*self.layers] * self.iterations,
            images,
            start,
            fill,
            mask=mask,
            min_confidence=self.min_confidence,
            pose_noise=self.pose_noise if self.training else 0.0,
        )

    def _options(self) -> tuple[object, ...]:
        """Return the values, besides weights and modes, on which a result depends."""
        own = (self.fill, self.iterations, self.min_confidence, self.pose_noise)
        return (*own, *(getattr(layer, "pose_ranges", None) for layer in self.layers), *self._groups())

    def _groups(self) -> list[Group]:
        return [group for layer in self.layers for group in layer.chart.groups]  # type: ignore[union-attr]


class Canonicalized(nn.Module):
    """Network whose input is replaced by the canonical image.

    Args:
        backbone: module that takes images `(B, C, h, w)`.
        canonicalizer: a `Canonicalizer`, one layer, a name or chart, or a list of these. For names and charts, a
            `Canonicalizer` with the default options is made. The number of channels is taken from the first module of
            the backbone that has weights, which must then be a convolution.
        chart: coordinates in which the canonical image is sampled for the backbone; pixel coordinates by default.

    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> model = Canonicalized(backbone, Canonicalizer(["x_shear"], in_channels=1), chart="log_polar")
    >>> model.eval()(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 10])
    >>> Canonicalized(backbone, "rotation").canonicalizer.in_channels
    1
    """

    def __init__(
        self,
        backbone: nn.Module,
        canonicalizer: Canonicalizer | Layer | str | Chart | Sequence[str | Chart | Layer],
        chart: str | Chart | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise TypeError(f"backbone must be a module, got {quote(backbone)}")
        if isinstance(backbone, (Canonicalizer, EquivariantTransformer, SpatialTransformer)):
            raise TypeError(
                f"backbone must be the network behind the layers, got a {type(backbone).__name__}; write "
                "Canonicalized(backbone, canonicalizer)"
            )
        sampled = None if chart is None else find_chart(chart)
        if isinstance(canonicalizer, (str, Chart, EquivariantTransformer, SpatialTransformer)):
            canonicalizer = [canonicalizer]
        if isinstance(canonicalizer, (list, tuple)):
            given = [
                layer.in_channels
                for layer in canonicalizer
                if isinstance(layer, (EquivariantTransformer, SpatialTransformer))
            ]
            channels = given[0] if given else _image_channels(backbone, sampled)
            if channels is None:
                raise TypeError(
                    "the channels of the images are unknown, because the backbone does not start with a convolution of "
                    f"images; write Canonicalizer({quote(list(canonicalizer))}, in_channels=3)"
                )
            canonicalizer = Canonicalizer(canonicalizer, channels)
        if not isinstance(canonicalizer, nn.Module):
            raise TypeError(
                f"canonicalizer must be a Canonicalizer, a layer, or names such as ['rotation'], got "
                f"{quote(canonicalizer)}"
            )
        self.backbone = backbone
        self.canonicalizer = canonicalizer
        self.chart = None if sampled is None else ChartGrid(sampled)

    def forward(self, images: Tensor, start: Warp | None = None, mask: Tensor | None = None) -> Tensor:
        """Return the output of the backbone for the canonical images of `images` `(B, C, H, W)` warped by `start`.

        `mask` `(B, 1, H, W)` is False for padding, see `Canonicalizer.forward`. In training, a warning is given if
        the layers cannot learn from this output, because their predictor learns from `alignment_loss`.
        """
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            _warn_of_untrained(self.canonicalizer)
        return self.read(self.canonicalizer(images, start, mask))

    def read(self, out: Canonicalization) -> Tensor:
        """Return the output of the backbone for the result of the canonicalizer.

        Behind a layer for photographs that turns images, a backbone in training reads half of the canonical images
        without corners: images that are turned back later lack them.
        """
        if not isinstance(out, Canonicalization):
            raise TypeError(f"the canonicalizer must return a Canonicalization, got a {type(out).__name__}")
        points = None if self.chart is None else self.chart.grid
        seen = out.image if points is None else out.on(points)
        if self.backbone.training and can_lose_corners(out):
            seen = cover_corners(seen, out, points)
        result: Tensor = self.backbone(seen if points is None else seen.flatten(1, 2))  # sheets as channels
        return result


def _warn_of_untrained(canonicalizer: nn.Module) -> None:
    """Warn if the output of a network in training gives no gradient to weights of its layers that are to be trained."""
    predictors = [part for part in canonicalizer.modules() if isinstance(part, PosteriorPredictor) and part.training]
    if any(weight.requires_grad for part in predictors for weight in part.parameters()):
        warnings.warn(
            "model(images) in training does not train the layers: the predictor posterior learns from "
            "et.alignment_loss alone. Use out = model.canonicalizer(images, augment.random(images)), model.read(out) "
            "and et.alignment_loss(out), or predictor='consistent'. Keep a trained canonicalizer in eval() mode",
            stacklevel=3,
        )


def _image_channels(backbone: nn.Module, chart: Chart | None) -> int | None:
    """Return the channels of the images that `backbone` reads on `chart`, whose sheets are channels of its input.

    None unless its first module with weights is a convolution of such an input.
    """
    leaves = (part for part in backbone.modules() if not [*part.children()])
    first = next((part for part in leaves if [*part.parameters()]), None)
    sheets = 1 if chart is None else chart.sheets
    return first.in_channels // sheets if isinstance(first, nn.Conv2d) and first.in_channels % sheets == 0 else None
