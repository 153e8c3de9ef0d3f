"""Lazy maps of the plane.

A warp maps points of the *output* frame to points of the *input* frame: `warp.image(images)` composes the images with
the warp, and `warp.points(points)` maps points found in the output back to the input. Points are in the coordinates of
`geometry.frame`: x to the right, y down, the same unit in both directions, and [-1, 1] along the longer side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Unpack

from equivariant_transformers.geometry import projective, sampler
from equivariant_transformers.geometry.checks import (
    as_geometry,
    check_dense,
    check_invertible,
    check_points,
    checked_size,
)
from equivariant_transformers.geometry.flows import Flow
from equivariant_transformers.geometry.frame import Size, extent, from_pixels, pixel_centres, same_frame, to_pixels
from equivariant_transformers.geometry.resampling import Sampling, check_images
from equivariant_transformers.geometry.sampler import Target
from equivariant_transformers.geometry.steps import (
    FlowStep,
    Step,
    batch_size,
    check_batches,
    coordinate_dtype,
    follow_steps,
    numbers,
)
from equivariant_transformers.text import quote

_SMALL = 1e-18  # a matrix is divided by its largest entry if this entry lies outside [_SMALL, 1 / _SMALL]


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

    steps: tuple[Step, ...] = ()
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
                check_batches(earlier, step)
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
        return follow_steps(self.steps, *points.unbind(-1))[0].movedim(0, -1).contiguous()

    def visible(self, points: Tensor) -> Tensor:
        """Return a mask `(B, ...)` of the `points` `(B, ..., 2)` that lie in front of the horizon.

        A point that a flow moves out of the plane, or to a coordinate of a million or more, is not visible.
        """
        self._check_points(points, 2)
        places, visible = follow_steps(self.steps, *points.unbind(-1))
        return visible.expand(places.shape[1:])

    def inside(self, points: Tensor, size: Size) -> Tensor:
        """Return a mask `(B or 1, ...)` of the `points` `(..., 2)` that map inside images of `size` (H, W).

        `points` of the output frame are the same for every image, as those of `Chart.grid`. A point that is not
        `visible` is not inside.
        """
        check_points(points, 2)
        points = points.to(torch.promote_types(points.dtype, coordinate_dtype(self.steps)))
        places, visible = follow_steps(self.steps, *points[None].unbind(-1))
        return sampler.inside(places, visible, extent(checked_size(size)))

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
        places, visible = follow_steps(self.steps, x, y)
        low, high = (ends.movedim(0, -1) for ends in (places.amin(-1), places.amax(-1)))
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
        size = own if size is None else checked_size(size)
        frame = size if same_frame(size, own) else own
        return sampler.sample(self.steps, images, Target(None, size, frame), **sampling)[0]

    def sample(
        self,
        images: Tensor,
        points: Tensor,
        **sampling: Unpack[Sampling],
    ) -> Tensor:
        """Sample `images` `(B, C, H, W)` at `points` `(..., h, w, 2)` of the output frame, as `(B, C, ..., h, w)`.

        With the points of `Chart.grid` the result is the warped image in the chart, with the sheets on the third axis.
        """
        return sampler.sample(self.steps, images, _on_points(images, points), **sampling)[0]

    def sample_valid(
        self, images: Tensor, points: Tensor, mask: Tensor | None = None, **sampling: Unpack[Sampling]
    ) -> tuple[Tensor, Tensor]:
        """Return the result of `sample`, and the mask `(B or 1, ..., h, w)` of the samples that show the picture.

        A sample shows the picture if its point is `inside` the images, and inside `mask` `(B, 1, H, W)` where given.
        """
        target = _on_points(images, points)._replace(wants_valid=True, mask=mask)
        samples, valid = sampler.sample(self.steps, images, target, **sampling)
        assert valid is not None
        return samples, valid

    def mask(self, masks: Tensor, *, size: Size | None = None) -> Tensor:
        """Resample label maps `(B, C, H, W)` of any dtype by the warp, with nearest neighbour and 0 outside.

        Labels up to 2**53 are exact.
        """
        check_dense(masks, "masks")
        return self.image(_as_numbers(masks), size=size, mode="nearest").to(masks.dtype)

    def valid(self, size: Size, device: torch.device | str | None = None) -> Tensor:
        """Return a mask `(B, 1, *size)` of the output pixels inside the input image and in front of the horizon."""
        size = checked_size(size)
        centres = torch.broadcast_tensors(*pixel_centres(size, coordinate_dtype(self.steps), device or self._device()))  # type: ignore[no-untyped-call]
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
        labels = _as_numbers(prediction)
        check_images(labels)
        size = (prediction.shape[-2], prediction.shape[-1]) if size is None else checked_size(size)
        return sampler.sample(self.inverse().steps, labels, Target(None, size, size), **sampling)[0].to(
            prediction.dtype
        )

    def _device(self) -> torch.device:
        for step in self.steps:
            return numbers(step).device
        return torch.device("cpu")

    def _check_points(self, points: Tensor, columns: int) -> None:
        """Raise an error unless `points` `(B, ..., columns)` fit the batch of the warp."""
        check_points(points, columns)
        sets = points.shape[0] if points.ndim > 1 else 1
        for step in self.steps:
            warps = batch_size(step)
            if sets != warps and 1 not in (sets, warps):
                raise ValueError(
                    f"points or boxes for {sets} images and {warps} warps: the counts must be equal, or one of them 1"
                )


def _as_numbers(labels: Tensor) -> Tensor:
    """Return label maps as floating-point numbers; labels up to 2**53 are exact."""
    if labels.is_floating_point():
        return labels
    return labels.to(torch.float64 if labels.dtype.itemsize >= 4 else torch.float32)


def _on_points(images: Tensor, points: Tensor) -> Target:
    """Return `points` `(..., h, w, 2)` as the target of sampling `images`, after checking both."""
    check_dense(images, "images")
    check_images(images)
    check_points(points, 2)
    if points.ndim < 3:
        raise ValueError(f"sample needs points of shape (..., h, w, 2), got {tuple(points.shape)}")
    columns = points.shape[-2]
    rows = math.prod(points.shape[:-2])
    return Target(points, (rows, columns), (images.shape[-2], images.shape[-1]))


def _without_extremes(matrix: Tensor) -> Tensor:
    """Divide `matrix` by its largest entry if products of its entries with coordinates could overflow."""
    size = matrix.detach().abs().amax((-2, -1), keepdim=True)
    extreme = (size > 1 / _SMALL) | (size < _SMALL)
    return torch.where(extreme, matrix / size, matrix)
