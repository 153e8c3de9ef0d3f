r"""Measurements of self-consistency, $f(T_\theta\phi) = f(\phi) + \theta$, and invariance, $L(T_\theta\phi) = L(\phi)$.

`self_consistency` compares predicted with true changes of pose. `invariance` compares outputs. `assert_equivariant`
raises an error if the self-consistency is poor. All three take any module or callable, and transform the images. Each
test image is sampled once from a larger image and filtered, so that interpolation does not affect the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from typing_extensions import TypedDict, Unpack

from equivariant_transformers.arguments import real_number, whole_number
from equivariant_transformers.audit.results import Invariance, SelfConsistency
from equivariant_transformers.geometry.groups import Group, group
from equivariant_transformers.geometry.motion import group_warp
from equivariant_transformers.geometry.resampling import check_images, outside
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer
from equivariant_transformers.nn.layers import EquivariantTransformer, SpatialTransformer
from equivariant_transformers.text import quote

Function = Callable[[Tensor], Any]
Groups = str | Group | Sequence[str | Group]
Theta = Tensor | Sequence[float]
Comparison = Callable[[Any, Any, Warp], Tensor]

_ENLARGEMENT = 4
_VALUES = 9  # number of values of theta for a range
_MOST_PIXELS = 2**14  # per side of a test image
_MARGIN = 2  # pixels at the edge of an image that interpolation mixes with the fill value


class Rendering(TypedDict, total=False):
    """Options for the transformed test images. All fields are optional."""

    size: tuple[int, int] | None
    """Size (height, width) of the test images, which are sampled from larger `images`. By default, test images have the
    size of `images` and are sampled from a four-fold bicubic enlargement. Another aspect ratio crops the images or
    adds fill, as in `Warp.image`."""
    fill: float | None
    """Fill value outside the images. The default is the `fill` of the layer, else the mean of each image's border."""
    batch_size: int
    """Number of images per batch; 64 by default."""


def self_consistency(
    layer: Function, images: Tensor, theta: Theta, *, group: Groups | None = None, **rendering: Unpack[Rendering]
) -> SelfConsistency:
    r"""Measure the self-consistency of predicted poses: $f(T_\theta\phi) - f(\phi)$ against $\theta$.

    Each parameter is audited with its own group acting on the images. In a stack, only the first layer is guaranteed to
    be self-consistent. The input of a later layer depends on the layers before it. If a stack has several iterations,
    the first iteration is audited.

    Args:
        layer: a layer, a `Canonicalizer`, or a callable that maps images to poses `(B,)` or `(B, k)`, or to an object
            with such poses as `.pose`. A module is run in evaluation mode, and its mode is restored afterwards.
        images: `(B, C, H, W)`.
        theta: values `(n,)` of the parameter, or a pair (low, high) for nine evenly spaced values.
        group: name or `Group` of the transformation, one per parameter; by default the groups of the layer.
        rendering: options for the transformed images, see `Rendering`.

    >>> x = torch.linspace(-1, 1, 32)
    >>> blob = torch.exp(-20 * ((x - 0.1) ** 2 + x[:, None] ** 2))[None, None]
    >>> centroid = lambda images: -(images.sum((1, 2)) * x).sum(-1) / images.sum((1, 2, 3))
    >>> result = self_consistency(centroid, blob, (-0.3, 0.3), group="x_translation")
    >>> round(result.slope.item(), 3), result.rms.item() < 1e-3
    (1.0, True)
    """
    layer = layer.canonicalizer if isinstance(layer, Canonicalized) else layer
    groups = _own_groups(layer) if group is None else _as_groups(group)
    values = _values(theta)
    iterations = layer.iterations if isinstance(layer, Canonicalizer) else 1

    def change(reference: Any, moved: Any, warp: Warp) -> Tensor:
        return _pose(moved, len(groups), iterations) - _pose(reference, len(groups), iterations)

    predicted = []
    for parameter, acting in enumerate(groups):
        changes = _compare(layer, images, acting, values, change, **rendering)  # (n, B, k)
        error = acting.compose(changes[..., parameter], -values[:, None])  # within half a period of 0
        predicted.append(values[:, None] + error)
    return SelfConsistency(tuple(acting.name for acting in groups), values, torch.stack(predicted))


def invariance(
    layer: Function, images: Tensor, theta: Theta, *, group: str | Group | None = None, **rendering: Unpack[Rendering]
) -> Invariance:
    r"""Measure the change of the output when `group` acts on the images: $L(T_\theta\phi)$ against $L(\phi)$.

    For layers and canonicalizers, the canonical images are compared at the pixels that are valid in both, except for a
    margin of two pixels. The interpolation of the layer adds an error of several per cent on sharp images, even if the
    pose is exact. For models that return a tensor `(B, ...)`, the outputs are compared. See `Invariance` for the
    formula and `self_consistency` for the arguments.

    >>> result = invariance(nn.Flatten(), torch.rand(2, 1, 16, 16), (0.1, 0.5), group="rotation")
    >>> result.overall > 0.1
    True
    """
    acting, *others = _own_groups(layer) if group is None else _as_groups(group)
    if others:
        raise ValueError(f"invariance is measured for one group at a time, got {1 + len(others)}; pass one as group=")
    values = _values(theta)
    sums = _compare(layer, images, acting, values, _difference, **rendering)  # (n, B, 2 or 3)
    difference, reference, *changed = sums.unbind(-1)
    return Invariance(acting.name, values, difference, reference, changed[0].bool() if changed else None)


def assert_equivariant(
    layer: Function,
    images: Tensor,
    theta: Theta,
    *,
    group: Groups | None = None,
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
    self-consistency: 9 values of theta from -1 to 1, images: 4; errors relative to that range
    parameter    slope   (95 %)     rms   median
    x_shear      0.000 ± 0.000   0.3227   0.2500
    """
    for name, limit in (("slope", slope), ("median", median), ("rms", rms)):
        if real_number(name, limit) < 0:
            raise ValueError(f"{name} is the largest allowed error and must be at least 0, got {limit}")
    result = self_consistency(layer, images, theta, group=group, **rendering)
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
    *,
    size: tuple[int, int] | None = None,
    fill: float | None = None,
    batch_size: int = 64,
) -> Tensor:
    r"""Return `(n, B, m)`, `comparison` of $L(\phi)$, $L(T_\theta\phi)$ and $T_\theta$ for all theta and images."""
    _check(layer, images)
    batch_size = whole_number("batch_size", batch_size)
    height, width = images.shape[-2:] if size is None else _size(size)
    device = next(_tensors(layer), images).device
    theta = torch.cat((theta.new_zeros(1), theta)).to(torch.promote_types(images.dtype, torch.float32))
    warps = [group_warp(acting, value) for value in theta.to(device)]
    fill = _own_background(layer) if fill is None else real_number("fill", fill)
    columns = []
    with _evaluating(layer):
        for start in range(0, len(images), batch_size):
            originals = images[start : start + batch_size].to(device)
            if size is None:
                large = (_ENLARGEMENT * height, _ENLARGEMENT * width)
                originals = Warp.identity().image(originals, size=large, mode="bicubic", padding="border")
            value = outside(originals, fill)
            outputs = (  # a generator: memory does not grow with the number of thetas
                layer(warp.image(originals, size=(height, width), fill=value, antialias=True)) for warp in warps
            )
            reference = next(outputs)
            rows = [comparison(reference, moved, warp) for moved, warp in zip(outputs, warps[1:], strict=True)]
            if len(rows[0]) != len(originals):
                raise ValueError(
                    f"the layer returned {len(rows[0])} outputs for {len(originals)} images, not one per image"
                )
            columns.append(torch.stack(rows))
    return torch.cat(columns, 1)


def _pose(output: Any, parameters: int, iterations: int) -> Tensor:
    """Return the pose `(B, parameters)` of the first iteration in the output of a layer."""
    pose = getattr(output, "pose", output)
    if not isinstance(pose, Tensor) or pose.ndim not in (1, 2):
        raise TypeError(f"the layer must return poses (B,) or (B, k), or an object with .pose; got {_shape(pose)}")
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
        raise TypeError(f"the layer must return a tensor (B, ...) or a Canonicalization, got {_shape(reference)}")
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


def _values(theta: Theta) -> Tensor:
    """Return the values `(n,)` of theta in float64, evenly spaced for a range."""
    try:
        if isinstance(theta, Tensor) and theta.is_complex():
            raise TypeError  # replaced by the error below
        dense = theta.detach().to_dense() if isinstance(theta, Tensor) else theta
        values = torch.as_tensor(dense, dtype=torch.float64, device="cpu")
        if not isinstance(theta, Tensor) and values.shape == (2,):
            low, high = values.tolist()
            values = torch.linspace(low, high, _VALUES, dtype=torch.float64, device="cpu")
    except (OverflowError, RuntimeError, TypeError, ValueError):
        values = torch.empty(0, device="cpu")
    if values.ndim != 1 or not values.numel() or not values.isfinite().all() or values.min() == values.max():
        raise ValueError(
            f"theta must be at least two distinct finite values (n,), or a range (low, high); got {quote(theta)}"
        )
    return values


def _size(size: Any) -> tuple[int, int]:
    """Return the height and width of the test images."""
    try:
        height, width = size
    except (TypeError, ValueError):
        raise ValueError(
            f"size must be (height, width), or None for the size of the images; got {quote(size)}"
        ) from None
    return whole_number("height", height, most=_MOST_PIXELS), whole_number("width", width, most=_MOST_PIXELS)


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


def _own_background(layer: Function) -> float | None:
    parts = layer.modules() if isinstance(layer, nn.Module) else (layer,)
    found = (getattr(part, "fill", None) for part in parts)
    return next((float(value) for value in found if isinstance(value, (int, float))), None)


def _tensors(layer: Function) -> Iterator[Tensor]:
    if isinstance(layer, nn.Module):
        yield from layer.parameters()
        yield from layer.buffers()


@contextmanager
def _evaluating(layer: Function) -> Iterator[None]:
    """Disable gradients and switch to evaluation mode; restore the mode of every submodule afterwards."""
    modes = [(part, part.training) for part in layer.modules()] if isinstance(layer, nn.Module) else []
    try:
        if isinstance(layer, nn.Module):
            layer.eval()
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def _check(layer: Function, images: Tensor) -> None:
    if not callable(layer):
        raise TypeError(f"layer must be a layer or a function of images, got {quote(layer)}")
    if not isinstance(images, Tensor) or images.is_nested or images.ndim != 4 or not len(images):
        raise ValueError(f"images must have the shape (B, C, H, W) with at least one image, got {_shape(images)}")
    check_images(images)
    if images.is_meta:
        raise ValueError("images on the meta device have no pixels: create them on another device")


def _exact(values: Tensor) -> Tensor:
    return values.detach().cpu().double()


def _shape(value: Any) -> str:
    dense = isinstance(value, Tensor) and not value.is_nested
    return f"shape {tuple(value.shape)}" if dense else type(value).__name__
