"""Kernels that sample images through one homography per image, without a grid in memory.

A program computes a tile of output pixels of one image, in all channels. It maps the pixels, reads the four neighbours
of each position, and writes the samples. The backward kernel computes the positions again. The gradients of matrices
and fill values are summed per tile, and the sums do not depend on the order in which programs finish. The gradient of
the images is accumulated by atomic additions, as in `grid_sample`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from equivariant_transformers.geometry.kernels import on_device
from equivariant_transformers.geometry.kernels.tiles import (
    channel_numbers,
    four_pixels,
    neighbours,
    output_pixels,
    positions,
)

PIXELS = 512
"""Number of output pixels in a tile, for images whose channels are separate planes."""
ROW_BYTES = 64
"""Size in bytes of a row of a tile: two sectors, so that stores are whole and rotated reads stay close together."""
WARPS = 4
"""Number of warps per program."""


@triton.jit
def _forward(
    images,
    matrices,
    points,
    fill,
    mask,
    result,
    valid,
    rows,
    columns,
    height,
    width,
    frame_height,
    frame_width,
    tiles,
    tiles_across,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    stride_matrix,
    fill_n,
    fill_c,
    mask_n,
    mask_h,
    mask_w,
    result_n,
    result_c,
    result_p,
    channels,
    group: tl.constexpr,
    channel_block: tl.constexpr,
    tile_width: tl.constexpr,
    pixels: tl.constexpr,
    on_points: tl.constexpr,
    keep: tl.constexpr,
    has_fill: tl.constexpr,
    has_mask: tl.constexpr,
    wants_valid: tl.constexpr,
    threshold: tl.constexpr,
    compute: tl.constexpr,
    epsilon: tl.constexpr,
    big: tl.constexpr,
):
    batch, _tile_number, row, column, exists = output_pixels(
        rows, columns, tiles, tiles_across, tile_width, pixels, big
    )
    _x, _y, _u, _v, _du, _dv, across, down, _visible, inside, fixed = positions(
        matrices + batch * stride_matrix,
        points,
        row,
        column,
        exists,
        rows,
        columns,
        height,
        width,
        frame_height,
        frame_width,
        on_points,
        keep,
        compute,
        epsilon,
    )
    place = row * columns + column
    if wants_valid:
        if has_mask:
            corner, has_a, has_b, has_c, has_d, s, t = neighbours(
                across, down, exists, height, width, mask_h, mask_w, big
            )
            a, b, c, d = four_pixels(
                mask + batch * mask_n, corner, has_a, has_b, has_c, has_d, mask_h, mask_w, 0.0, compute
            )
            share = (1 - t) * ((1 - s) * a + s * b) + t * ((1 - s) * c + s * d)
            inside = inside & (tl.sum(share, 1) > threshold)
        tl.store(valid + batch * rows * columns + place, inside, mask=exists)
    corner, has_a, has_b, has_c, has_d, s, t = neighbours(across, down, exists, height, width, stride_h, stride_w, big)
    for start in tl.static_range(0, group, channel_block):
        channel = channel_numbers(start, group, channel_block, big)
        real = channel < channels
        outside = tl.zeros((1, channel_block), compute)
        if has_fill:
            outside = tl.load(fill + batch * fill_n + channel * fill_c, mask=real, other=0.0).to(compute)
        a, b, c, d = four_pixels(
            images + batch * stride_n + channel * stride_c,
            corner,
            has_a & real,
            has_b & real,
            has_c & real,
            has_d & real,
            stride_h,
            stride_w,
            outside,
            compute,
        )
        value = (1 - t) * ((1 - s) * a + s * b) + t * ((1 - s) * c + s * d)
        if keep:
            value = tl.where(fixed[:, None], a, value)
        where = result + batch * result_n + channel * result_c + place[:, None] * result_p
        tl.store(where, value.to(result.dtype.element_ty), mask=exists[:, None] & real)


@triton.jit
def _backward(
    gradient,
    images,
    matrices,
    points,
    fill,
    image_gradient,
    sums,
    rows,
    columns,
    height,
    width,
    frame_height,
    frame_width,
    tiles,
    tiles_across,
    gradient_n,
    gradient_c,
    gradient_p,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    stride_matrix,
    fill_n,
    fill_c,
    out_n,
    out_c,
    out_h,
    out_w,
    channels,
    group: tl.constexpr,
    channel_block: tl.constexpr,
    tile_width: tl.constexpr,
    pixels: tl.constexpr,
    on_points: tl.constexpr,
    keep: tl.constexpr,
    has_fill: tl.constexpr,
    for_images: tl.constexpr,
    for_matrices: tl.constexpr,
    for_fill: tl.constexpr,
    compute: tl.constexpr,
    epsilon: tl.constexpr,
    big: tl.constexpr,
):
    batch, tile, row, column, exists = output_pixels(rows, columns, tiles, tiles_across, tile_width, pixels, big)
    x, y, u, v, per_u, per_v, across, down, visible, _inside, _fixed = positions(
        matrices + batch * stride_matrix,
        points,
        row,
        column,
        exists,
        rows,
        columns,
        height,
        width,
        frame_height,
        frame_width,
        on_points,
        keep,
        compute,
        epsilon,
    )
    corner, has_a, has_b, has_c, has_d, s, t = neighbours(across, down, exists, height, width, stride_h, stride_w, big)
    target, _a, _b, _c, _d, _s, _t = neighbours(across, down, exists, height, width, out_h, out_w, big)
    place = row * columns + column
    along_x = tl.zeros((pixels,), compute)
    along_y = tl.zeros((pixels,), compute)
    # A row of partial sums for each entry of the matrix in each group of channels, then a row for each channel.
    groups = tl.num_programs(1)
    sums += batch * (9 * groups + channels) * tiles + tile
    for start in tl.static_range(0, group, channel_block):
        channel = channel_numbers(start, group, channel_block, big)
        real = channel < channels
        where = gradient + batch * gradient_n + channel * gradient_c + place[:, None] * gradient_p
        g = tl.load(where, mask=exists[:, None] & real, other=0.0).to(compute)
        if for_matrices:
            outside = tl.zeros((1, channel_block), compute)
            if has_fill:
                outside = tl.load(fill + batch * fill_n + channel * fill_c, mask=real, other=0.0).to(compute)
            a, b, c, d = four_pixels(
                images + batch * stride_n + channel * stride_c,
                corner,
                has_a & real,
                has_b & real,
                has_c & real,
                has_d & real,
                stride_h,
                stride_w,
                outside,
                compute,
            )
            along_x += tl.sum(g * ((1 - t) * (b - a) + t * (d - c)), 1)
            along_y += tl.sum(g * ((1 - s) * (c - a) + s * (d - b)), 1)
        upper, lower = (1 - t) * g, t * g
        if for_images:
            to = image_gradient + batch * out_n + channel * out_c + target
            tl.atomic_add(to, (1 - s) * upper, mask=has_a & real, sem="relaxed")
            tl.atomic_add(to + out_w, s * upper, mask=has_b & real, sem="relaxed")
            tl.atomic_add(to + out_h, (1 - s) * lower, mask=has_c & real, sem="relaxed")
            tl.atomic_add(to + out_h + out_w, s * lower, mask=has_d & real, sem="relaxed")
        if for_fill:
            rest = tl.where(has_a, 0.0, (1 - s) * upper) + tl.where(has_b, 0.0, s * upper)
            rest += tl.where(has_c, 0.0, (1 - s) * lower) + tl.where(has_d, 0.0, s * lower)
            tl.store(sums + (9 * groups + channel) * tiles, tl.sum(rest, 0)[None, :], mask=real)
    if for_matrices:
        seen = exists & visible
        du, dv = tl.where(seen, along_x * per_u, 0.0), tl.where(seen, along_y * per_v, 0.0)
        dw = tl.where(seen, -(du * u + dv * v), 0.0)
        sums += 9 * tl.program_id(1) * tiles
        tl.store(sums, tl.sum(du * x))
        tl.store(sums + 1 * tiles, tl.sum(du * y))
        tl.store(sums + 2 * tiles, tl.sum(du))
        tl.store(sums + 3 * tiles, tl.sum(dv * x))
        tl.store(sums + 4 * tiles, tl.sum(dv * y))
        tl.store(sums + 5 * tiles, tl.sum(dv))
        tl.store(sums + 6 * tiles, tl.sum(dw * x))
        tl.store(sums + 7 * tiles, tl.sum(dw * y))
        tl.store(sums + 8 * tiles, tl.sum(dw))


def forward(
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    mask: Tensor | None,
    result: Tensor,
    valid: Tensor | None,
    frame: tuple[int, int],
    threshold: float,
) -> None:
    """Write the samples of `images` `(B, C, H, W)` to `result` `(B, C, h, w)`, see `operator.sample`.

    The mask `(B, h, w)` of samples inside the images, and where `mask` is above `threshold`, is written to `valid`.
    """
    launch = _Launch(images, result)
    with on_device(images):
        _forward[launch.programs](
            images,
            matrices,
            points,
            fill,
            mask,
            result,
            valid,
            *launch.sizes,
            *frame,
            *launch.tiles,
            *images.stride(),
            matrices.stride(0),
            *_strides(fill, 0, 1),
            *_strides(mask, 0, 2, 3),
            *_strides(result, 0, 1, 3),
            **launch.options(images, matrices, points),
            has_fill=fill is not None,
            has_mask=mask is not None,
            wants_valid=valid is not None,
            threshold=threshold,
        )


def backward(
    gradient: Tensor,
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    image_gradient: Tensor | None,
    frame: tuple[int, int],
    for_matrices: bool,
    for_fill: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Add the gradient of the images to `image_gradient`; return the gradients of matrices `(B, 9)` and fill `(B, C)`.

    `gradient` `(B, C, h, w)` is the gradient of the result of `forward`, with rows that follow each other in memory.
    """
    launch = _Launch(images, gradient)
    count, (batch, channels) = launch.programs[1], images.shape[:2]
    options = launch.options(images, matrices, points)
    dtype = torch.float64 if options["compute"] == tl.float64 else torch.float32
    sums = torch.empty(batch, 9 * count + channels, launch.tiles[0], dtype=dtype, device=images.device)
    with on_device(images):
        _backward[launch.programs](
            gradient,
            images,
            matrices,
            points,
            fill,
            image_gradient,
            sums,
            *launch.sizes,
            *frame,
            *launch.tiles,
            *_strides(gradient, 0, 1, 3),
            *images.stride(),
            matrices.stride(0),
            *_strides(fill, 0, 1),
            *_strides(image_gradient, 0, 1, 2, 3),
            **options,
            has_fill=fill is not None,
            for_images=image_gradient is not None,
            for_matrices=for_matrices,
            for_fill=for_fill,
        )
    matrix_sums = sums[:, : 9 * count].reshape(batch, count, 9, -1).sum((1, 3)) if for_matrices else None
    return matrix_sums, sums[:, 9 * count :].sum(-1) if for_fill else None


class _Launch:
    """Tiles and launch parameters for samples `(B, C, h, w)` of `images` `(B, C, H, W)`."""

    def __init__(self, images: Tensor, samples: Tensor) -> None:
        self.channels = images.shape[1]
        self.together = samples.stride(1) == 1 and self.channels > 1  # the channels of a pixel are neighbours in memory
        self.sizes = (*samples.shape[2:], *images.shape[2:])
        rows, columns = samples.shape[2:]
        self.block = min(triton.next_power_of_2(self.channels), 16) if self.together else 1
        self.group = min(self.channels, self.block if self.together else 4)
        self.pixels = max(PIXELS // self.block, 32)
        row = max(ROW_BYTES // (samples.element_size() * self.block), 8)
        self.width = min(row, triton.next_power_of_2(columns))
        across, down = triton.cdiv(columns, self.width), triton.cdiv(rows, self.pixels // self.width)
        self.tiles = (across * down, across)
        self.programs = (images.shape[0] * across * down, triton.cdiv(self.channels, self.group))
        self.big = 2 * max(_span(images), _span(samples), 2 * rows * columns) >= 2**31

    def options(self, images: Tensor, matrices: Tensor, points: Tensor | None) -> dict[str, object]:
        """Return the keyword arguments that both kernels share."""
        wide = torch.float64 in (images.dtype, matrices.dtype)
        return {
            "channels": self.channels,
            "group": self.group,
            "channel_block": self.block,
            "tile_width": self.width,
            "pixels": self.pixels,
            "on_points": points is not None,
            "keep": points is None and self.sizes[:2] == self.sizes[2:],
            "compute": tl.float64 if wide else tl.float32,
            "epsilon": torch.finfo(torch.float64 if wide else torch.float32).eps,
            "big": self.big,
            "num_warps": WARPS,
        }


def _span(images: Tensor) -> int:
    """Return the largest offset in memory between two pixels of one image, in elements."""
    return sum((size - 1) * stride for size, stride in zip(images.shape[1:], images.stride()[1:], strict=True))


def _strides(tensor: Tensor | None, *axes: int) -> tuple[int, ...]:
    return tuple(0 if tensor is None else tensor.stride(axis) for axis in axes)
