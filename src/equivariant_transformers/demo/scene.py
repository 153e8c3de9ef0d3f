"""Everything that the demo shows, as plain values: functions of a digit, a pose and two networks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from equivariant_transformers.data.projective_mnist_set import POSE_NAMES
from equivariant_transformers.data.synthesis import pose_matrix
from equivariant_transformers.demo.poses import Pose, room
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.groups import group as find_group
from equivariant_transformers.geometry.projective import wrap
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.nn.canonicalization import Canonicalization


@dataclass(frozen=True)
class Axis:
    """A layer's evidence along one pose axis of its chart. Positions run from 0 to 1 over the axis."""

    group: str
    pose: float
    marker: float
    """Where the pose puts the content."""
    zero: float
    """Where a pose of 0 puts it."""
    positions: list[float]
    weights: list[float]


@dataclass(frozen=True)
class LayerView:
    """One layer at work on the picture."""

    seen: Tensor
    """What it looked at, `(C, h, w)` of bytes: its chart, the sheets below each other."""
    sheets: int
    axes: list[Axis]
    groups: tuple[str, ...]
    image: Tensor
    """The picture afterwards, `(C, H, W)` of bytes."""


@dataclass(frozen=True)
class Scene:
    """The picture in one pose, and what the networks make of it. Images are `(C, H, W)` of bytes."""

    distorted: Tensor
    layers: list[LayerView]
    canonical: Tensor
    classes: tuple[str, ...]
    shares: list[float]
    """The probability of each class."""
    plain_shares: list[float] | None
    """The same of the network without layers."""


@dataclass(frozen=True)
class Orbit:
    """What changes while one group moves the picture on. Lists are as long as `thetas`."""

    group: str
    here: float
    """The group's parameter in the picture as it is shown."""
    thetas: list[float]
    """Its parameters on the orbit: the picture is moved on by theta - here."""
    name: str
    """The class whose probability is followed."""
    shares: list[float]
    plain_shares: list[float] | None
    predicted: list[float] | None
    """What the layers for this group say, less what they say here, plus `here`; None if there is no such layer."""
    shifts_in: str | None
    """The chart in which the classifier looks, if the group is a shift there."""


def check(model: Classifier, plain: Classifier | None, side: int) -> None:
    """Raise a `ValueError` if the demo cannot show these networks with digits of `side` pixels."""
    if not model.card.config.layers:
        raise ValueError("the model has no layers to show: choose one that was trained with --layers")
    if min(model.card.size) < side:
        raise ValueError(f"the model takes images of {model.card.size} pixels; the demo needs at least {side} x {side}")
    if plain and _takes(plain) != _takes(model):
        raise ValueError(f"the plain network takes {_takes(plain)} and the model {_takes(model)}: they must agree")


def classifier_chart(model: Classifier) -> Chart | None:
    """The coordinates in which the classifier looks at the canonical image; None if at the image itself."""
    chart = model.module.chart
    return chart.sampled if chart else None


@torch.inference_mode()
def make_scene(model: Classifier, plain: Classifier | None, digit: Tensor, pose: Pose) -> Scene:
    """The `digit` `(28, 28)` of bytes in a `pose`, layer by layer."""
    images = _seen_through(model, digit, _matrix(pose))
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
    r"""The `digit` `(28, 28)` in a `pose`, moved on by `group` over all of its range: $\phi$ to $T_\theta\phi$.

    The probability is that of class `label`, or else of the class that the model sees in the `pose` itself.
    """
    here = pose[group]
    thetas = torch.linspace(*room(group, pose), samples)
    steps = torch.cat((thetas - here, torch.zeros(1)))  # the last is the picture as it is
    images = _seen_through(model, digit, _matrix(pose) @ find_group(group).matrix(steps))
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
    """The transformation `(1, 3, 3)` of Projective MNIST."""
    return pose_matrix(torch.tensor([[pose[name] for name in POSE_NAMES]]), POSE_NAMES)


def _seen_through(model: Classifier, digit: Tensor, matrices: Tensor) -> Tensor:
    """The `digit` seen through `matrices` `(B, 3, 3)`, as bytes `(B, C, H, W)`: on a canvas as in Projective MNIST."""
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
    """The `heatmap` `(samples,)` of pose axis `number` of a chart; it may skip samples of the chart."""
    low, high = chart.ranges[number]
    ticks = chart.axes()[number]
    zero = (chart.centre[number] - low) / (high - low)
    marker = zero - pose / (high - low)
    return Axis(
        group=chart.groups[number].name,
        pose=pose,
        marker=marker % 1 if chart.periodic[number] else min(max(marker, 0.0), 1.0),
        zero=zero,
        positions=((ticks[:: math.ceil(len(ticks) / len(heatmap))] - low) / (high - low)).tolist(),
        weights=heatmap.tolist(),
    )
