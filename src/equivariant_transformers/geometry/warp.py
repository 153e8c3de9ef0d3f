"""Lazy maps of the plane.

A warp maps points of the *output* frame to points of the *input* frame: `warp.image(images)` composes the images with
the warp, and `warp.points(points)` maps points found in the output back to the input. Points are in the coordinates of
`geometry.frame`: x to the right, y down, the same unit in both directions, and [-1, 1] along the longer side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from equivariant_transformers.geometry import kernels, projective
from equivariant_transformers.geometry.checks import (
    as_geometry,
    check_dense,
    check_invertible,
    check_points,
    checked_size,
)
from equivariant_transformers.geometry.flows import Flow, far, follow
from equivariant_transformers.geometry.frame import Size, extent, from_pixels, pixel_centres, same_frame, to_pixels
from equivariant_transformers.geometry.resampling import Sampling, check_images, resample
from equivariant_transformers.text import quote

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

        The sign of a matrix matters: points mapped to a third coordinate w <= 0 lie beyond the horizon. Matrices on the
        CPU must be invertible; on other devices this is not checked.
        """
        if not isinstance(matrix, Tensor) or matrix.shape[-2:] != (3, 3) or matrix.ndim not in (2, 3):
            given = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"a projective warp takes matrices of shape (B, 3, 3) or (3, 3), got {given}")
        matrix = as_geometry(matrix)
        if projective.can_inspect(matrix):
            check_invertible(matrix.detach())
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
        return Warp((FlowStep(flow, as_geometry(theta)),))

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

    def points(self, points: Tensor, *, size: Size | None = None) -> Tensor:
        """Map `points` `(B, ..., 2)` of the output frame to points of the input frame.

        With the `size` (H, W) of the images, points are in pixels: pixel centres are at whole numbers, and (0, 0) is
        the centre of the first pixel. The result is undefined for points that are not `visible`.
        """
        self._check_points(points, 2)
        if size is not None:
            size = checked_size(size)
            return to_pixels(self.points(from_pixels(points, size)), size)
        x, y, _ = self._map(*points.unbind(-1))
        return torch.stack((x, y), -1)

    def visible(self, points: Tensor) -> Tensor:
        """Return a mask `(B, ...)` of the `points` `(B, ..., 2)` that lie in front of the horizon.

        A point that a flow moves out of the plane, or to a coordinate of a million or more, is not visible.
        """
        self._check_points(points, 2)
        visible = self._map(*points.unbind(-1))[2]
        return visible.expand(torch.broadcast_shapes(visible.shape, points.shape[:-1]))  # type: ignore[no-untyped-call]

    def inside(self, points: Tensor, size: Size) -> Tensor:
        """Return a mask `(B or 1, ...)` of the `points` `(..., 2)` that map inside images of `size` (H, W).

        `points` of the output frame are the same for every image, as those of `Chart.grid`. A point that is not
        `visible` is not inside.
        """
        check_points(points, 2)
        x, y, visible = self._map(*points.to(torch.promote_types(points.dtype, self._dtype()))[None].unbind(-1))
        limit = 1 + 16 * torch.finfo(x.dtype).eps
        right, bottom = extent(checked_size(size))
        return visible & (x.abs() <= limit * right) & (y.abs() <= limit * bottom)

    def boxes(self, boxes: Tensor, *, size: Size | None = None) -> Tensor:
        """Return the axis-aligned hulls in the input frame of `boxes` `(B, ..., 4)` as (left, top, right, bottom).

        With the `size` (H, W) of the images, boxes are in pixels, as in `points`. The hull of a box that reaches the
        horizon is the whole plane: (-inf, -inf, inf, inf).
        """
        self._check_points(boxes, 4)
        if size is not None:
            size = checked_size(size)
            return to_pixels(self.boxes(from_pixels(boxes, size)), size)
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
        size: Size | None = None,
        **sampling: Unpack[Sampling],
    ) -> Tensor:
        """Resample `images` `(B, C, H, W)` by the warp to `(B, C, *size)`; `size` defaults to the size of the images.

        The result shows the frame of a picture of `size`. A change of the aspect ratio therefore crops or adds fill
        and never stretches. Images whose aspect ratio agrees with `size` up to rounding are taken to cover the same
        frame at another resolution.

        A batch of one image is broadcast to the batch of the warp. See `Sampling` for the options. The identity returns
        `images` bit for bit.
        """
        check_dense(images, "images")
        check_images(images)
        own = (images.shape[-2], images.shape[-1])
        if size is None:
            return self._picture(images, own, extent(own), **sampling)
        size = checked_size(size)
        return self._picture(images, size, extent(size if same_frame(size, own) else own), **sampling)

    def sample(
        self,
        images: Tensor,
        points: Tensor,
        **sampling: Unpack[Sampling],
    ) -> Tensor:
        """Sample `images` `(B, C, H, W)` at `points` `(..., h, w, 2)` of the output frame, as `(B, C, ..., h, w)`.

        With the points of `Chart.grid` the result is the warped image in the chart, with the sheets on the third axis.
        """
        check_dense(images, "images")
        check_images(images)
        check_points(points, 2)
        if points.ndim < 3:
            raise ValueError(f"sample needs points of shape (..., h, w, 2), got {tuple(points.shape)}")
        matrix = self._matrix_for_kernel(images, points) if sampling.keys() <= {"fill"} else None
        if matrix is not None:
            return _sample_in_one_kernel(images, matrix, points, sampling.get("fill", 0.0))
        x, y, visible = self._map(*points.to(self._dtype(images))[None].unbind(-1))
        return resample(images, x, y, visible, **sampling)

    def mask(self, masks: Tensor, *, size: Size | None = None) -> Tensor:
        """Resample label maps `(B, C, H, W)` of any dtype by the warp, with nearest neighbour and 0 outside.

        Labels up to 2**53 are exact.
        """
        check_dense(masks, "masks")
        return self.image(_as_numbers(masks), size=size, mode="nearest").to(masks.dtype)

    def valid(self, size: Size, device: torch.device | str | None = None) -> Tensor:
        """Return a mask `(B, 1, *size)` of the output pixels inside the input image and in front of the horizon."""
        size = checked_size(size)
        centres = torch.broadcast_tensors(*pixel_centres(size, self._dtype(), device or self._device()))  # type: ignore[no-untyped-call]
        return self.inside(torch.stack(centres, -1)[0], size)[:, None]

    def restore(self, prediction: Tensor, *, size: Size | None = None, **sampling: Unpack[Sampling]) -> Tensor:
        """Map a dense `prediction` `(B, C, h, w)` in the output frame back to the input frame, as `(B, C, *size)`.

        `size` is the size of the input, and by default that of the prediction. A prediction of any resolution covers
        the frame of a picture of `size`. Integer and boolean predictions are label maps and use nearest-neighbour
        interpolation.
        """
        check_dense(prediction, "predictions")
        if not prediction.is_floating_point():
            sampling = {"mode": "nearest"}
        numbers = _as_numbers(prediction)
        check_images(numbers)
        size = (prediction.shape[-2], prediction.shape[-1]) if size is None else checked_size(size)
        return self.inverse()._picture(numbers, size, extent(size), **sampling).to(prediction.dtype)

    def _picture(self, images: Tensor, size: Size, frame: tuple[float, float], **sampling: Unpack[Sampling]) -> Tensor:
        """Resample `images` that span `frame` to a picture of `size`."""
        x, y = pixel_centres(size, self._dtype(images), images.device)
        source_x, source_y, visible = self._map(x, y)
        result = resample(images, source_x, source_y, visible, frame=frame, **sampling)
        if size != images.shape[-2:]:
            return result
        # A pixel that maps exactly to itself keeps its exact value, with the gradient of the interpolation.
        fixed = (visible & (source_x == x) & (source_y == y))[:, None]
        exact = images.detach() + (result - result.detach()) if result.requires_grad else images
        return torch.where(fixed, exact, result)

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
        check_points(points, columns)
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


def _as_numbers(labels: Tensor) -> Tensor:
    """Return label maps as floating-point numbers; labels up to 2**53 are exact."""
    if labels.is_floating_point():
        return labels
    return labels.to(torch.float64 if labels.dtype.itemsize >= 4 else torch.float32)


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
