r"""Measurements of self-consistency, $f(T_\theta\phi) = f(\phi) + \theta$, and invariance, $L(T_\theta\phi) = L(\phi)$.

`self_consistency` compares predicted with true changes of pose. `invariance` compares outputs. `assert_equivariant`
raises an error if the self-consistency is poor. All three take any module or callable, and transform the images. Each
test image is sampled once from a larger image and filtered, so that interpolation does not affect the measurement.
By default the whole image moves, frame included. With `crop`, content moves inside a fixed frame that it fills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from typing_extensions import Unpack

from equivariant_transformers.arguments import real_number
from equivariant_transformers.audit.rendering import (
    Function,
    Renderer,
    Rendering,
    Theta,
    check_centre,
    make_renderer,
    pixel_pitch,
    shape_of,
    theta_values,
)
from equivariant_transformers.audit.results import Invariance, SelfConsistency
from equivariant_transformers.geometry.frame import pixel_centres
from equivariant_transformers.geometry.groups import Group, group
from equivariant_transformers.geometry.motion import group_warp
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer
from equivariant_transformers.nn.layers import EquivariantTransformer, SpatialTransformer
from equivariant_transformers.nn.modes import evaluating
from equivariant_transformers.text import quote

Groups = str | Group | Sequence[str | Group]
Comparison = Callable[[Any, Any, Warp], Tensor]

_MARGIN = 2  # pixels at the edge of an image that interpolation mixes with the fill value
_DISC = 0.7  # radius of the disc over which displacements are averaged
_TICKS = 15  # points of the disc along its diameter


def self_consistency(
    layer: Function,
    images: Tensor,
    theta: Theta,
    *,
    group: Groups | None = None,
    centre: tuple[float, float] = (0, 0),
    **rendering: Unpack[Rendering],
) -> SelfConsistency:
    r"""Measure the self-consistency of predicted poses: $f(T_\theta\phi) - f(\phi)$ against $\theta$.

    Each parameter is audited with its own group acting on the images. In a stack, only the first layer is guaranteed to
    be self-consistent. The input of a later layer depends on the layers before it. If a stack has several iterations,
    the first iteration is audited.

    Args:
        layer: a layer, a `Canonicalizer`, or a callable that maps images to poses `(B,)` or `(B, k)`, or to an object
            with such poses as `.pose`. A module is run in evaluation mode, and its mode is restored afterwards.
        images: `(B, C, H, W)`.
        theta: values `(n,)` of the parameter, or a pair (low, high) for nine values. The nine values are evenly spaced;
            with `crop`, they lie between the samples of every chart, see `off_grid`.
        group: name or `Group` of the transformation, one per parameter; by default the groups of the layer.
        centre: point that the group acts about, (dx, dy) in pixels from the centre of the test image.
        rendering: options for the transformed images, see `Rendering`. `crop` gives the strict measurement: content
            moves inside a fixed frame that it fills, as in photographs.

    >>> x = torch.linspace(-1, 1, 32)
    >>> blob = torch.exp(-20 * ((x - 0.1) ** 2 + x[:, None] ** 2))[None, None]
    >>> centroid = lambda images: -(images.sum((1, 2)) * x).sum(-1) / images.sum((1, 2, 3))
    >>> result = self_consistency(centroid, blob, (-0.3, 0.3), group="x_translation")
    >>> round(result.slope.item(), 3), result.rms.item() < 1e-3
    (1.0, True)
    """
    layer = layer.canonicalizer if isinstance(layer, Canonicalized) else layer
    groups = _own_groups(layer) if group is None else _as_groups(group)
    values = theta_values(theta, crop=rendering.get("crop"))
    test = make_renderer(layer, images, **rendering)
    iterations = layer.iterations if isinstance(layer, Canonicalizer) else 1

    def change(reference: Any, moved: Any, warp: Warp) -> Tensor:
        return _pose(moved, len(groups), iterations) - _pose(reference, len(groups), iterations)

    predicted, displacement = [], []
    for parameter, acting in enumerate(groups):
        changes = _compare(layer, images, acting, values, change, test, centre)  # (n, B, k)
        error = acting.compose(changes[..., parameter], -values[:, None])  # within half a period of 0
        predicted.append(values[:, None] + error)
        displacement.append(_displacement(acting, error, test.size))
    names = tuple(acting.name for acting in groups)
    return SelfConsistency(names, values, torch.stack(predicted), torch.stack(displacement))


def invariance(
    layer: Function,
    images: Tensor,
    theta: Theta,
    *,
    group: str | Group | None = None,
    centre: tuple[float, float] = (0, 0),
    **rendering: Unpack[Rendering],
) -> Invariance:
    r"""Measure the change of the output when `group` acts on the images: $L(T_\theta\phi)$ against $L(\phi)$.

    For layers and canonicalizers, the canonical images are compared at the pixels that are valid in both, except for a
    margin of two pixels. The interpolation of the layer adds an error of several per cent on sharp images, even if the
    pose is exact. For models that return a tensor `(B, ...)`, the outputs are compared. See `Invariance` for the
    formula and `self_consistency` for the arguments.

    >>> result = invariance(torch.nn.Flatten(), torch.rand(2, 1, 16, 16), (0.1, 0.5), group="rotation")
    >>> result.overall > 0.1
    True
    """
    acting, *others = _own_groups(layer) if group is None else _as_groups(group)
    if others:
        raise ValueError(f"invariance is measured for one group at a time, got {1 + len(others)}; pass one as group=")
    values = theta_values(theta, crop=rendering.get("crop"))
    test = make_renderer(layer, images, **rendering)
    sums = _compare(layer, images, acting, values, _difference, test, centre)  # (n, B, 2 or 3)
    difference, reference, *changed = sums.unbind(-1)
    return Invariance(acting.name, values, difference, reference, changed[0].bool() if changed else None)


def assert_equivariant(
    layer: Function,
    images: Tensor,
    theta: Theta,
    *,
    group: Groups | None = None,
    centre: tuple[float, float] = (0, 0),
    slope: float = 0.05,
    median: float = 0.02,
    rms: float = 0.05,
    **rendering: Unpack[Rendering],
) -> SelfConsistency:
    """Raise an `AssertionError` with the measurements unless every parameter is self-consistent, else return them.

    The slope may differ from 1 by at most `slope`. The median and rms errors, relative to the range of theta, may be at
    most `median` and `rms`. See `self_consistency` for the other arguments.

    >>> constant = lambda images: torch.zeros(len(images))
    >>> assert_equivariant(constant, torch.rand(4, 1, 16, 16), (-1, 1), group="x_shear", median=1, rms=1)
    Traceback (most recent call last):
    ...
    AssertionError: not equivariant: the slope of x_shear is 0, not 1 ± 0.05
    self-consistency: 9 values of theta from -1 to 1, images: 4; rms and median relative to that range
    parameter    slope   (95 %)     rms   median  rms theta  rms pixels
    x_shear      0.000 ± 0.000   0.3227   0.2500     0.6455        1.67
    """
    for name, limit in (("slope", slope), ("median", median), ("rms", rms)):
        if real_number(name, limit) < 0:
            raise ValueError(f"{name} is the largest allowed error and must be at least 0, got {limit}")
    result = self_consistency(layer, images, theta, group=group, centre=centre, **rendering)
    failures = []
    for parameter, name in enumerate(result.names):
        for figure, found, ideal, allowed in (
            ("slope", result.slope, 1, slope),
            ("median error", result.median, 0, median),
            ("rms error", result.rms, 0, rms),
        ):
            value = found[parameter].item()
            if not abs(value - ideal) <= allowed:  # NaN fails too
                beyond = f"not 1 ± {allowed:g}" if ideal else f"above {allowed:g}"
                failures.append(f"the {figure} of {name} is {value:.3g}, {beyond}")
    if failures:
        raise AssertionError(f"not equivariant: {'; '.join(failures)}\n{result}")
    return result


def _compare(
    layer: Function,
    images: Tensor,
    acting: Group,
    theta: Tensor,
    comparison: Comparison,
    test: Renderer,
    centre: tuple[float, float],
) -> Tensor:
    r"""Return `(n, B, m)`, `comparison` of $L(\phi)$, $L(T_\theta\phi)$ and $T_\theta$ for all theta and images."""
    centre = check_centre(centre)
    warps = [test.transformation(acting, value, centre) for value in (theta.new_zeros(()), *theta)]
    columns = []
    with evaluating(layer):
        for _, originals in test.batches(images):
            # a generator: memory does not grow with the number of thetas
            outputs = (layer(test.image(originals, warp)) for warp in warps)
            reference = next(outputs)
            rows = [
                comparison(reference, moved, test.zoom @ warp) for moved, warp in zip(outputs, warps[1:], strict=True)
            ]
            if len(rows[0]) != len(originals):
                raise ValueError(
                    f"the layer returned {len(rows[0])} outputs for {len(originals)} images, not one per image"
                )
            columns.append(torch.stack(rows))
    return torch.cat(columns, 1)


def _displacement(acting: Group, error: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the rms displacement `(n, B)` in pixels by the transformations of `error` `(n, B)`.

    The mean is over the part inside the image of a disc of radius 0.7. A displacement is limited to the longer side.
    """
    x, y = (ticks.flatten() for ticks in pixel_centres(size, error.dtype, error.device))
    ticks = torch.linspace(-_DISC, _DISC, _TICKS, dtype=error.dtype, device=error.device)
    points = torch.cartesian_prod(ticks, ticks)
    inside = (points.norm(dim=-1) <= _DISC) & (points[:, 0].abs() <= x.max()) & (points[:, 1].abs() <= y.max())
    points = points[inside][None]
    warp = group_warp(acting, error.flatten())
    pixels = ((warp.points(points) - points) / error.new_tensor(pixel_pitch(size))).norm(dim=-1)  # (n B, points)
    pixels = torch.where(warp.visible(points), pixels, torch.inf).clamp_max(max(size))
    rms = pixels.square().mean(-1).sqrt().reshape(error.shape)
    return torch.where(error.isfinite(), rms, torch.nan)


def _pose(output: Any, parameters: int, iterations: int) -> Tensor:
    """Return the pose `(B, parameters)` of the first iteration in the output of a layer."""
    pose = getattr(output, "pose", output)
    if not isinstance(pose, Tensor) or pose.ndim not in (1, 2):
        raise TypeError(f"the layer must return poses (B,) or (B, k), or an object with .pose; got {shape_of(pose)}")
    pose = pose[:, None] if pose.ndim == 1 else pose
    if pose.shape[1] != parameters * iterations:
        raise ValueError(
            f"{pose.shape[1] // iterations} pose parameters but {parameters} groups; pass group= one per parameter"
        )
    return _exact(pose[:, :parameters])


def _difference(reference: Any, moved: Any, warp: Warp) -> Tensor:
    """Return the squared difference, the squared reference and, for logits, 1 if the argmax changed: `(B, 2 or 3)`."""
    if isinstance(reference, Canonicalization):
        return _image_difference(reference, moved, warp)
    if not isinstance(reference, Tensor) or reference.ndim == 0:
        raise TypeError(f"the layer must return a tensor (B, ...) or a Canonicalization, got {shape_of(reference)}")
    before, after = (_exact(output).reshape(len(output), -1) for output in (reference, moved))
    columns = [(after - before).square().sum(1), before.square().sum(1)]
    if reference.ndim == 2 and reference.shape[1] > 1:
        columns.append((after.argmax(1) != before.argmax(1)).double())
    return torch.stack(columns, 1)


def _image_difference(reference: Canonicalization, moved: Canonicalization, warp: Warp) -> Tensor:
    """Return the squared difference and variation `(B, 2)` of canonical images over the pixels valid in both."""
    before, after = _exact(reference.image), _exact(moved.image)
    # A pixel is valid if it is sampled inside the test image, at a point that is sampled inside the original.
    through = (warp @ moved.warp).valid((before.shape[-2], before.shape[-1]), moved.images.device)
    known = _exact(reference.valid & moved.valid & through)
    known = (F.avg_pool2d(known, 2 * _MARGIN + 1, stride=1, padding=_MARGIN) > 1 - 1e-6).expand_as(before)
    count = known.sum((1, 2, 3), keepdim=True).clamp_min(1)
    mean = torch.where(known, before, 0).sum((1, 2, 3), keepdim=True) / count
    sums = [torch.where(known, values, 0).square().sum((1, 2, 3)) for values in (after - before, before - mean)]
    return torch.stack(sums, 1)


def _own_groups(layer: Function) -> tuple[Group, ...]:
    if isinstance(layer, Canonicalizer):
        return tuple(acting for part in layer.layers for acting in _own_groups(part))
    if isinstance(layer, (EquivariantTransformer, SpatialTransformer)):
        return layer.chart.groups
    name = getattr(layer, "__name__", type(layer).__name__)
    raise ValueError(f"{name} does not define the group of its pose: pass group=, one per parameter")


def _as_groups(groups: Groups) -> tuple[Group, ...]:
    if isinstance(groups, (str, Group)):
        return (group(groups),)
    if not isinstance(groups, Sequence) or not groups:
        raise ValueError(f"group must be a group or its name, or one per parameter; got {quote(groups)}")
    return tuple(group(one) for one in groups)


def _exact(values: Tensor) -> Tensor:
    return values.detach().cpu().double()
