"""Lazy maps of the plane.

The image spans [-1, 1] x [-1, 1], with x to the right, y down, and the centres of the corner pixels at the corners. A
warp maps points of the *output* frame to points of the *input* frame: `warp.image(images)` composes the images with
the warp, and `warp.points(points)` maps points found in the output back to the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from equivariant_transformers.geometry import kernels, projective
from equivariant_transformers.geometry.flows import Flow, far, follow
from equivariant_transformers.geometry.resampling import Sampling, check_images, pixel_centres, resample
from equivariant_transformers.text import quote

_MOST_PIXELS = 2**30
_SMALL = 1e-18  # a matrix is divided by its largest entry if this entry lies outside [_SMALL, 1 / _SMALL]


@dataclass(frozen=True, eq=False)
class FlowStep:
    """Step of a warp that is not a matrix: `flow(theta, points)` with theta `(B,)` or `()`."""

    flow: Flow
    theta: Tensor

    def inverse(self) -> FlowStep:
        return FlowStep(self.flow, -self.theta)


@dataclass(frozen=True, eq=False)
class Warp:
    """Batched, lazy, invertible map of the plane.

    Warps compose with `@`, as maps of points: `(a @ b).points(p) == a.points(b.points(p))`. Neighbouring matrices are
    multiplied, so a chain of projective warps is one 3x3 matrix per image. Only `image`, `sample`, `mask` and `restore`
    resample pixels, once per call.

    >>> turn = Warp.projective(torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]))
    >>> turn.image(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    tensor([[[[2., 4.],
              [1., 3.]]]])
    >>> (turn @ turn).points(torch.tensor([1.0, 0.0]))
    tensor([-1., 0.])
    """

    steps: tuple[Tensor | FlowStep, ...] = ()
    """Matrices `(B, 3, 3)` or `(3, 3)` and flow steps; the last step is applied to a point first."""

    @staticmethod
    def identity() -> Warp:
        """Return the identity warp."""
        return Warp()

    @staticmethod
    def projective(matrix: Tensor) -> Warp:
        """Create the warp of homogeneous matrices `(B, 3, 3)`, or of one matrix `(3, 3)` for any batch.

        The sign of a matrix matters: points mapped to a third coordinate w <= 0 lie beyond the horizon.
        """
        if not isinstance(matrix, Tensor) or matrix.shape[-2:] != (3, 3) or matrix.ndim not in (2, 3):
            given = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"a projective warp takes matrices of shape (B, 3, 3) or (3, 3), got {given}")
        matrix = _geometry(matrix)
        if projective.can_inspect(matrix) and not matrix.is_meta:
            _check_invertible(matrix.detach())
        return Warp((_without_extremes(matrix),))

    @staticmethod
    def flow(flow: Flow, theta: Tensor | float) -> Warp:
        """Create the warp of a one-parameter flow `(theta, points) -> points` at theta `(B,)` or `()`."""
        if not callable(flow):
            raise TypeError(f"a flow is a function (theta, points) -> points, got {quote(flow)}")
        if not isinstance(theta, (Tensor, int, float)):
            raise TypeError(f"theta of a flow is a number or a tensor of shape (B,) or (), got {quote(theta)}")
        theta = torch.as_tensor(theta)
        if theta.ndim > 1:
            raise ValueError(f"theta of a flow has shape (B,) or (), got {tuple(theta.shape)}")
        return Warp((FlowStep(flow, _geometry(theta)),))

    @property
    def matrix(self) -> Tensor:
        """Homogeneous matrix `(B, 3, 3)` or `(3, 3)` of a projective warp."""
        if not self.steps:
            return torch.eye(3)
        if len(self.steps) == 1 and isinstance(self.steps[0], Tensor):
            return self.steps[0]
        raise TypeError("this warp contains a flow and has no matrix; use points() or image()")

    def __matmul__(self, other: Warp) -> Warp:
        return self.compose(other) if isinstance(other, Warp) else NotImplemented

    def compose(self, other: Warp) -> Warp:
        """Return `self @ other` in a form that `torch.compile` can trace."""
        steps = list(self.steps)
        for step in other.steps:
            for earlier in self.steps:
                _check_batches(earlier, step)
            last = steps[-1] if steps else None
            if isinstance(step, Tensor) and isinstance(last, Tensor):
                steps[-1] = projective.product(last, step)
            else:
                steps.append(step)
        return Warp(tuple(steps))

    def inverse(self) -> Warp:
        """Return the inverse warp."""
        undone = [projective.inverse(step) if isinstance(step, Tensor) else step.inverse() for step in self.steps]
        return Warp(tuple(reversed(undone)))

    def points(self, points: Tensor) -> Tensor:
        """Map `points` `(B, ..., 2)` of the output frame to points of the input frame.

        The result is undefined for points that are not `visible`.
        """
        self._check_points(points, 2)
        x, y, _ = self._map(*points.unbind(-1))
        return torch.stack((x, y), -1)

    def visible(self, points: Tensor) -> Tensor:
        """Return a mask `(B, ...)` of the `points` `(B, ..., 2)` that lie in front of the horizon.

        A point that a flow moves out of the plane, or further than a million half widths of the image, is not visible.
        """
        self._check_points(points, 2)
        visible = self._map(*points.unbind(-1))[2]
        return visible.expand(torch.broadcast_shapes(visible.shape, points.shape[:-1]))  # type: ignore[no-untyped-call]

    def boxes(self, boxes: Tensor) -> Tensor:
        """Return the axis-aligned hulls in the input frame of `boxes` `(B, ..., 4)` as (left, top, right, bottom).

        The hull of a box that reaches the horizon is the whole plane: (-inf, -inf, inf, inf).
        """
        self._check_points(boxes, 4)
        left, top, right, bottom = boxes[..., None].unbind(-2)
        # A matrix keeps edges straight, so the corners suffice. A flow bends the edges.
        pieces = 16 if any(isinstance(step, FlowStep) for step in self.steps) else 1
        share = torch.arange(pieces, dtype=boxes.dtype, device=boxes.device) / pieces
        across, down = left + (right - left) * share, top + (bottom - top) * share
        x = torch.cat((across, right.expand_as(down), right + left - across, left.expand_as(down)), -1)
        y = torch.cat((top.expand_as(across), down, bottom.expand_as(across), bottom + top - down), -1)
        x, y, visible = self._map(x, y)
        low = torch.stack((x.amin(-1), y.amin(-1)), -1)
        high = torch.stack((x.amax(-1), y.amax(-1)), -1)
        bounded = visible.all(-1)[..., None]
        return torch.cat((torch.where(bounded, low, -torch.inf), torch.where(bounded, high, torch.inf)), -1)

    def image(
        self,
        images: Tensor,
        *,
        size: tuple[int, int] | None = None,
        **sampling: Unpack[Sampling],
    ) -> Tensor:
        """Resample `images` `(B, C, H, W)` by the warp to `(B, C, *size)`; `size` defaults to the size of the images.

        A batch of one image is broadcast to the batch of the warp. See `Sampling` for the options. The identity returns
        `images` bit for bit.
        """
        _check_dense(images, "images")
        check_images(images)
        size = (images.shape[-2], images.shape[-1]) if size is None else _checked_size(size)
        x, y = pixel_centres(size, self._dtype(images), images.device)
        source_x, source_y, visible = self._map(x, y)
        result = resample(images, source_x, source_y, visible, **sampling)
        if size != images.shape[-2:]:
            return result
        # A pixel that maps exactly to itself keeps its exact value, with the gradient of the interpolation.
        fixed = (visible & (source_x == x) & (source_y == y))[:, None]
        exact = images.detach() + (result - result.detach()) if result.requires_grad else images
        return torch.where(fixed, exact, result)

    def sample(
        self,
        images: Tensor,
        points: Tensor,
        **sampling: Unpack[Sampling],
    ) -> Tensor:
        """Sample `images` `(B, C, H, W)` at `points` `(..., h, w, 2)` of the output frame, as `(B, C, ..., h, w)`.

        With the points of `Chart.grid` the result is the warped image in the chart, with the sheets on the third axis.
        """
        _check_dense(images, "images")
        check_images(images)
        _check_points(points, 2)
        if points.ndim < 3:
            raise ValueError(f"sample needs points of shape (..., h, w, 2), got {tuple(points.shape)}")
        matrix = self._matrix_for_kernel(images, points) if sampling.keys() <= {"fill"} else None
        if matrix is not None:
            return _sample_in_one_kernel(images, matrix, points, sampling.get("fill", 0.0))
        x, y, visible = self._map(*points.to(self._dtype(images))[None].unbind(-1))
        return resample(images, x, y, visible, **sampling)

    def mask(self, masks: Tensor, *, size: tuple[int, int] | None = None) -> Tensor:
        """Resample label maps `(B, C, H, W)` of any dtype by the warp, with nearest neighbour and 0 outside.

        Labels up to 2**53 are exact.
        """
        _check_dense(masks, "masks")
        exact = torch.float64 if masks.dtype.itemsize >= 4 else torch.float32
        values = masks if masks.is_floating_point() else masks.to(exact)
        return self.image(values, size=size, mode="nearest").to(masks.dtype)

    def valid(self, size: tuple[int, int], device: torch.device | str | None = None) -> Tensor:
        """Return a mask `(B, 1, *size)` of the output pixels inside the input image and in front of the horizon."""
        x, y, visible = self._map(*pixel_centres(_checked_size(size), self._dtype(), device or self._device()))
        limit = 1 + 16 * torch.finfo(x.dtype).eps
        return (visible & (x.abs() <= limit) & (y.abs() <= limit))[:, None]

    def restore(
        self, prediction: Tensor, *, size: tuple[int, int] | None = None, **sampling: Unpack[Sampling]
    ) -> Tensor:
        """Map a dense `prediction` `(B, C, h, w)` in the output frame back to the input frame, as `(B, C, *size)`.

        Integer and boolean predictions are label maps and use nearest-neighbour interpolation.
        """
        _check_dense(prediction, "predictions")
        back = self.inverse()
        if not prediction.is_floating_point():
            return back.mask(prediction, size=size)
        return back.image(prediction, size=size, **sampling)

    def _matrix_for_kernel(self, images: Tensor, points: Tensor) -> Tensor | None:
        """Return the matrix for the GPU kernel of `sample`; None for flows or images that require gradients."""
        if images.requires_grad or not kernels.can_take(images):
            return None
        if len(self.steps) > 1 or any(isinstance(step, FlowStep) for step in self.steps):
            return None
        matrix = self.matrix if self.steps else torch.eye(3, device=images.device)
        fits = matrix.ndim == 2 or matrix.shape[0] in (1, images.shape[0])
        narrow = all(tensor.dtype == torch.float32 for tensor in (images, points, matrix))
        return matrix if fits and narrow and images.shape[0] > 0 else None

    def _dtype(self, images: Tensor | None = None) -> torch.dtype:
        """Return the dtype of the coordinates: float64 if the warp or the images are float64, else float32."""
        tensors = [step if isinstance(step, Tensor) else step.theta for step in self.steps]
        wide = any(tensor.dtype == torch.float64 for tensor in (*tensors, *([] if images is None else [images])))
        return torch.float64 if wide else torch.float32

    def _device(self) -> torch.device:
        for step in self.steps:
            return step.device if isinstance(step, Tensor) else step.theta.device
        return torch.device("cpu")

    def _check_points(self, points: Tensor, columns: int) -> None:
        """Raise an error unless `points` `(B, ..., columns)` fit the batch of the warp."""
        _check_points(points, columns)
        sets = points.shape[0] if points.ndim > 1 else 1
        for step in self.steps:
            warps = _batch(step)
            if sets != warps and 1 not in (sets, warps):
                raise ValueError(
                    f"points or boxes for {sets} images and {warps} warps: the counts must be equal, or one of them 1"
                )

    def _map(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map points (x, y), batch first, to the input frame, with the mask of points in front of the horizon."""
        dimensions = max(x.ndim, y.ndim)
        visible = torch.ones((), dtype=torch.bool, device=x.device)
        for step in reversed(self.steps):
            numbers = step.theta if isinstance(step, FlowStep) else step
            if numbers.is_meta != x.is_meta and (numbers.is_meta or numbers.ndim in (1, 3)):
                raise TypeError("either the warp or what it maps is on the meta device, where it has no values")
            if isinstance(step, FlowStep):
                theta = step.theta.reshape(-1, *[1] * (dimensions - 1)) if step.theta.ndim else step.theta
                points = torch.stack(torch.broadcast_tensors(x, y), -1)  # type: ignore[no-untyped-call]
                moved_x, moved_y = follow(step.flow, theta, points).unbind(-1)
                stays = torch.maximum(moved_x.abs(), moved_y.abs()) < far(moved_x)
                visible = visible & stays
                x, y = torch.where(stays, moved_x, x), torch.where(stays, moved_y, y)
            else:
                matrix = step.reshape(-1, *[1] * (dimensions - 1), 3, 3) if step.ndim == 3 else step
                x, y, w = projective.homogeneous(matrix, x, y)
                in_front = w > torch.finfo(w.dtype).eps * matrix[..., 2, :].abs().sum(-1)
                visible = visible & in_front
                w = torch.where(in_front, w, 1)
                x, y = x / w, y / w
        return x, y, visible


def _sample_in_one_kernel(images: Tensor, matrix: Tensor, points: Tensor, fill: float | Tensor) -> Tensor:
    from equivariant_transformers.geometry.kernels import sampling

    batch, channels = images.shape[:2]
    if not isinstance(fill, Tensor):
        fill = images.new_full((batch, channels, 1, 1), fill)
    sampled: Tensor = sampling.sample(
        images.contiguous(),
        matrix.expand(batch, 3, 3).contiguous(),
        points.reshape(-1, 2).contiguous(),
        fill.to(images.dtype).expand(batch, channels, 1, 1).reshape(batch, channels).contiguous(),
    )
    return sampled.reshape(batch, channels, *points.shape[:-1])


def _check_dense(tensor: Any, what: str) -> None:
    """Raise a TypeError unless `tensor` is a dense tensor of real numbers."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor, got {type(tensor).__name__}; convert with torch.as_tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{what} must be dense, got a tensor of layout {tensor.layout}; convert with .to_dense()")
    if tensor.is_complex():
        raise TypeError(f"{what} must be real numbers, got {tensor.dtype}; use the real and the imaginary part")


def _check_points(points: Any, columns: int) -> None:
    what, names = ("boxes", "left, top, right, bottom") if columns == 4 else ("points", "x, y")
    _check_dense(points, what)
    if points.ndim == 0 or points.shape[-1] != columns:
        raise ValueError(f"{what} have shape (B, ..., {columns}), as ({names}), got {tuple(points.shape)}")
    if not points.is_floating_point():
        raise TypeError(f"{what} must be floating point, got {points.dtype}; convert with .float()")


def _checked_size(size: Any) -> tuple[int, int]:
    """Return `size` as a tuple (height, width); raise a ValueError if it is not a valid size."""
    try:
        height, width = (count.__index__() for count in size)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise ValueError(f"a size is (height, width), two whole numbers, got {quote(size)}") from None
    if height < 0 or width < 0 or height * width > _MOST_PIXELS:
        raise ValueError(f"a size is (height, width), neither below 0, of at most 2**30 pixels, got {quote(size)}")
    return height, width


def _geometry(tensor: Tensor) -> Tensor:
    _check_dense(tensor, "matrices and theta")
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        raise TypeError(f"a warp needs floating-point numbers, got {tensor.dtype}; convert with .float()")
    return projective.at_least_float32(tensor)


def _batch(step: Tensor | FlowStep) -> int:
    """Number of warps in `step`; 1 for a step that is the same for any batch."""
    if isinstance(step, FlowStep):
        return step.theta.shape[0] if step.theta.ndim else 1
    return step.shape[0] if step.ndim == 3 else 1


def _check_batches(left: Tensor | FlowStep, right: Tensor | FlowStep) -> None:
    many, more = _batch(left), _batch(right)
    if many != more and 1 not in (many, more):
        raise ValueError(f"cannot compose {many} warps with {more}: the counts must be equal, or one of them 1")


def _without_extremes(matrix: Tensor) -> Tensor:
    """Divide `matrix` by its largest entry if products of its entries with coordinates could overflow."""
    size = matrix.detach().abs().amax((-2, -1), keepdim=True)
    extreme = (size > 1 / _SMALL) | (size < _SMALL)
    return torch.where(extreme, matrix / size, matrix)


def _check_invertible(matrix: Tensor) -> None:
    finite = matrix.isfinite().flatten(-2).all(-1)
    scaled = matrix / matrix.abs().amax((-2, -1), keepdim=True)
    volume = torch.linalg.vector_norm(scaled, dim=-1).prod(-1)
    singular = ~(projective.determinant(scaled).abs() > 8 * torch.finfo(matrix.dtype).eps * volume)
    for problem, where in (
        ("NaN or infinite entries", ~finite),
        ("a zero determinant, so it cannot be inverted", singular),
    ):
        if where.any():
            index = where.nonzero()[0].tolist()
            raise ValueError(
                f"warp matrix{f' {index[0]}' if index else ''} has {problem}: {matrix[tuple(index)].tolist()}"
            )
