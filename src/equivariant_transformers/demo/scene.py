"""Values that the demo shows, computed from a digit, a pose and two networks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from equivariant_transformers.data.projective_mnist_set import POSE_NAMES
from equivariant_transformers.data.synthesis import pose_matrix
from equivariant_transformers.demo.poses import Pose, increases, room
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.groups import group as find_group
from equivariant_transformers.geometry.projective import wrap
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.nn.canonicalization import Canonicalization


@dataclass(frozen=True)
class Axis:
    """Heat map of a layer along one pose axis of its chart. Positions run from 0 to 1 over the axis.

    A larger parameter moves the content of a chart towards smaller coordinates. The axis is mirrored where needed so
    that the predicted pose moves in the direction of the group's slider.
    """

    group: str
    pose: float
    marker: float
    """Position of the predicted pose."""
    zero: float
    """Position of a pose of 0."""
    positions: list[float]
    weights: list[float]


@dataclass(frozen=True)
class LayerView:
    """Input and output of one layer."""

    seen: Tensor
    """Picture in the layer's chart, mirrored like its axes: `(C, h, w)` of bytes, with the sheets below each other."""
    sheets: int
    axes: list[Axis]
    groups: tuple[str, ...]
    image: Tensor
    """Picture after the layer, `(C, H, W)` of bytes."""


@dataclass(frozen=True)
class Scene:
    """Picture in one pose, and the outputs of the networks. Images are `(C, H, W)` of bytes."""

    distorted: Tensor
    layers: list[LayerView]
    canonical: Tensor
    classes: tuple[str, ...]
    shares: list[float]
    """Probability of each class."""
    plain_shares: list[float] | None
    """Probability of each class for the network without layers."""


@dataclass(frozen=True)
class Orbit:
    """Outputs while one group transforms the picture further. Lists are as long as `thetas`."""

    group: str
    here: float
    """Parameter of the group in the current picture."""
    thetas: list[float]
    """Parameters on the orbit: the picture is transformed further by theta - here."""
    name: str
    """Class whose probability is plotted."""
    shares: list[float]
    plain_shares: list[float] | None
    predicted: list[float] | None
    """Predicted pose of the group minus the predicted pose here, plus `here`; None if no layer predicts the group."""
    shifts_in: str | None
    """Chart of the classifier's input, if the group is a translation in it."""


def check(model: Classifier, plain: Classifier | None, side: int) -> None:
    """Raise a `ValueError` if the demo cannot show these networks with digits of `side` pixels."""
    if not model.card.config.layers:
        raise ValueError("the model has no layers to show; choose a model that was trained with --layers")
    if min(model.card.size) < side:
        raise ValueError(f"the model takes images of {model.card.size} pixels; the demo needs at least {side} x {side}")
    if plain and _takes(plain) != _takes(model):
        raise ValueError(
            "the plain network and the model must have the same channels, size and classes, "
            f"got {_takes(plain)} and {_takes(model)}"
        )


def classifier_chart(model: Classifier) -> Chart | None:
    """Return the chart of the classifier's input; None if the input is the canonical image itself."""
    chart = model.module.chart
    return chart.sampled if chart else None


@torch.inference_mode()
def make_scene(model: Classifier, plain: Classifier | None, digit: Tensor, pose: Pose) -> Scene:
    """Run the networks on a `digit` `(28, 28)` of bytes in a `pose`."""
    images = seen_through(model, digit, _matrix(pose))
    out, logits = _run(model, images)
    return Scene(
        distorted=images[0],
        layers=[_view(model, out, number) for number in range(len(out.steps))],
        canonical=model.to_bytes(out.image)[0],
        classes=model.card.classes,
        shares=logits[0].softmax(0).tolist(),
        plain_shares=plain(images)[0].softmax(0).tolist() if plain else None,
    )


@torch.inference_mode()
def make_orbit(
    model: Classifier,
    plain: Classifier | None,
    digit: Tensor,
    pose: Pose,
    group: str,
    *,
    label: int | None = None,
    samples: int = 33,
) -> Orbit:
    r"""Run the networks on a `digit` `(28, 28)` in a `pose`, transformed by `group` over its range: $T_\theta\phi$.

    The probability is that of class `label`, or of the class that the model predicts in the `pose` itself.
    """
    here = pose[group]
    thetas = torch.linspace(*room(group, pose), samples)
    steps = torch.cat((thetas - here, torch.zeros(1)))  # the last step is the picture in `pose` itself
    images = seen_through(model, digit, _matrix(pose) @ find_group(group).matrix(steps))
    out, logits = _run(model, images)
    followed = int(logits[-1].argmax()) if label is None else label
    view = classifier_chart(model)
    predicted = None
    if group in out.names:
        total = out.pose[:, [name == group for name in out.names]].sum(1)
        change = wrap(total - total[-1], find_group(group).period)
        predicted = (here + change[:-1]).tolist()
    return Orbit(
        group=group,
        here=here,
        thetas=thetas.tolist(),
        name=model.card.classes[followed],
        shares=logits.softmax(1)[:-1, followed].tolist(),
        plain_shares=plain(images[:-1]).softmax(1)[:, followed].tolist() if plain else None,
        predicted=predicted,
        shifts_in=view.name if view and find_group(group) in view.groups else None,
    )


def _takes(model: Classifier) -> tuple[int, tuple[int, int], tuple[str, ...]]:
    return model.card.in_channels, model.card.size, model.card.classes


def _matrix(pose: Pose) -> Tensor:
    """Return the transformation `(1, 3, 3)` of a pose of Projective MNIST."""
    return pose_matrix(torch.tensor([[pose[name] for name in POSE_NAMES]]), POSE_NAMES)


def seen_through(model: Classifier, digit: Tensor, matrices: Tensor) -> Tensor:
    """Return the `digit` under `matrices` `(B, 3, 3)` on a canvas as in Projective MNIST: `(B, C, H, W)` of bytes."""
    height, width = model.card.size
    top, left = (height - digit.shape[0]) // 2, (width - digit.shape[1]) // 2
    canvas = pad(digit.float(), (left, width - digit.shape[1] - left, top, height - digit.shape[0] - top))
    seen = Warp.projective(matrices).image(canvas[None, None], mode="sharp_bicubic")
    return seen.round().clamp(0, 255).to(torch.uint8).expand(-1, model.card.in_channels, -1, -1)


def _run(model: Classifier, images: Tensor) -> tuple[Canonicalization, Tensor]:
    out = model.canonicalize(images)
    return out, model.module.read(out)


def _view(model: Classifier, out: Canonicalization, number: int) -> LayerView:
    step = out.steps[number]
    chart = step.layer.chart
    seen = out.after(number).on(step.layer.grid)  # (B, C, sheets, h, w)
    seen = seen.flip([-1 - place for place, group in enumerate(chart.groups) if increases(group.name)])
    return LayerView(
        seen=model.to_bytes(seen.flatten(2, 3))[0],
        sheets=seen.shape[2],
        axes=[
            _axis(chart, number, heatmap[0], pose)
            for number, (heatmap, pose) in enumerate(zip(step.heatmaps, step.pose[0].tolist(), strict=False))
        ],
        groups=tuple(group.name for group in chart.groups),
        image=model.to_bytes(out.after(number + 1).image)[0],
    )


def _axis(chart: Chart, number: int, heatmap: Tensor, pose: float) -> Axis:
    """Return the axis `number` of a chart with its `heatmap` `(samples,)`, which may be coarser than the chart."""
    low, high = chart.ranges[number]
    ticks = chart.axes()[number]
    name = chart.groups[number].name
    places = (ticks[:: math.ceil(len(ticks) / len(heatmap))] - low) / (high - low)
    zero, moved = (chart.centre[number] - low) / (high - low), -pose / (high - low)
    if increases(name):
        places, heatmap, zero, moved = 1 - places.flip(0), heatmap.flip(0), 1 - zero, -moved
    marker = zero + moved
    return Axis(
        group=name,
        pose=pose,
        marker=marker % 1 if chart.periodic[number] else min(max(marker, 0.0), 1.0),
        zero=zero,
        positions=places.tolist(),
        weights=heatmap.tolist(),
    )
