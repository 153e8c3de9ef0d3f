"""Kernel that samples images through one homography per image, without a grid in memory."""

from __future__ import annotations

import triton
import triton.language as tl

from equivariant_transformers.geometry.kernels.tiles import (
    four_pixels,
    is_whole,
    lens,
    load_matrix,
    mapped,
    output_tile,
    strip_pixels,
    weights_of,
)


@triton.jit
def forward_kernel(
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
    blocks,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    frame_height,
    frame_width,
    stride_matrix,
    fill_n,
    fill_c,
    mask_n,
    has_fill: tl.constexpr,
    has_mask: tl.constexpr,
    wants_valid: tl.constexpr,
    threshold: tl.constexpr,
    together: tl.constexpr,
    count: tl.constexpr,
    block: tl.constexpr,
    tile_width: tl.constexpr,
    patch_width: tl.constexpr,
    pixels: tl.constexpr,
    strips: tl.constexpr,
    on_points: tl.constexpr,
    keep: tl.constexpr,
    compute: tl.constexpr,
    epsilon: tl.constexpr,
    big: tl.constexpr,
):
    """Sample a tile of one image in `count` blocks of `block` channels, see `sampling.forward`."""
    sizes = (rows, columns, height, width)
    tile = (tile_width, strips * pixels // tile_width)
    batch, _tile, first_row, first_column = output_tile(sizes, tile, big)
    matrix = load_matrix(matrices + batch * stride_matrix, compute)
    scale = lens(height, width, frame_height, frame_width, compute)
    first = tl.program_id(1).to(tl.int64) * count  # block of channels
    images += (batch * stride_n + first * stride_c) * block
    result_p = blocks if together else 1
    result_c = 1 if together else rows * columns
    result += (batch * blocks * rows * columns + first * result_c) * block
    if has_fill:
        fill += batch * fill_n + first * block * fill_c
    if has_mask:
        mask += batch * mask_n
    if wants_valid:
        valid += batch * rows * columns
    channel = tl.arange(0, block)[None, :]
    easy = False
    if not on_points:
        easy = is_whole(matrix, scale, first_row, first_column, sizes, tile, compute, epsilon)
    for whole in tl.static_range(2):  # the same twice: with borders and without
        if easy == (whole == 1):
            row, column = strip_pixels(tile_width, patch_width, pixels)
            row, column = first_row + row, first_column + column
            for _ in range(strips):
                exists, _x, _y, _u, _v, _du, _dv, _visible, inside, fixed, i, j, exist, s, t = mapped(
                    matrix, scale, points, row, column, sizes, whole, on_points, keep, compute, epsilon, big
                )
                weights = weights_of(s, t)
                place = row * columns + column
                if wants_valid:
                    if has_mask:
                        a, b, c, d = four_pixels(mask, i, j, exist, width, 1, whole, 1, compute)
                        share = weights[0] * a + weights[1] * b + weights[2] * c + weights[3] * d
                        inside = inside & (tl.sum(share, 1) > threshold)
                    tl.store(valid + place, inside, mask=exists)
                values = ()  # all are read before the first is written
                for k in tl.static_range(count):
                    image = images + k * block * stride_c
                    a, b, c, d = four_pixels(image, i, j, exist, stride_h, stride_w, whole, block, compute)
                    if has_fill and not whole:
                        outside = tl.load(fill + (k * block + channel) * fill_c).to(compute)
                        a, b = tl.where(exist[0], a, outside), tl.where(exist[1], b, outside)
                        c, d = tl.where(exist[2], c, outside), tl.where(exist[3], d, outside)
                    value = weights[0] * a + weights[1] * b + weights[2] * c + weights[3] * d
                    if keep:
                        value = tl.where(fixed, a, value)
                    values += (value.to(result.dtype.element_ty),)  # type: ignore[assignment]
                to = place[:, None] * result_p * block + channel
                for k in tl.static_range(count):
                    where = result + k * block * result_c + to
                    if whole:
                        tl.store(where, values[k])
                    else:
                        tl.store(where, values[k], mask=exists[:, None])
                row += pixels // tile_width
