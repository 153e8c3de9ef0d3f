"""Kernel for the gradients of samples: of the images, the matrices and the fill values."""

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
def _spread(to, upper, lower, right, weights, g, exist, whole: tl.constexpr):
    """Add the gradients `g` of samples to four pixels each."""
    if whole:
        tl.atomic_add(to + upper, weights[0] * g, sem="relaxed")
        tl.atomic_add(to + upper + right, weights[1] * g, sem="relaxed")
        tl.atomic_add(to + lower, weights[2] * g, sem="relaxed")
        tl.atomic_add(to + lower + right, weights[3] * g, sem="relaxed")
    else:
        tl.atomic_add(to + upper, weights[0] * g, mask=exist[0], sem="relaxed")
        tl.atomic_add(to + upper + right, weights[1] * g, mask=exist[1], sem="relaxed")
        tl.atomic_add(to + lower, weights[2] * g, mask=exist[2], sem="relaxed")
        tl.atomic_add(to + lower + right, weights[3] * g, mask=exist[3], sem="relaxed")


@triton.jit
def backward_kernel(
    gradient,
    images,
    matrices,
    points,
    fill,
    image_gradient,
    matrix_sums,
    fill_sums,
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
    has_fill: tl.constexpr,
    for_images: tl.constexpr,
    for_matrices: tl.constexpr,
    for_fill: tl.constexpr,
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
    """Add the gradients of the samples of a tile in `count` blocks of `block` channels, see `sampling.backward`."""
    sizes = (rows, columns, height, width)
    tile = (tile_width, strips * pixels // tile_width)
    batch, number, first_row, first_column = output_tile(sizes, tile, big)
    matrix = load_matrix(matrices + batch * stride_matrix, compute)
    scale = lens(height, width, frame_height, frame_width, compute)
    first = tl.program_id(1).to(tl.int64) * count  # block of channels
    images += (batch * stride_n + first * stride_c) * block
    step = blocks if together else 1  # from a pixel to the next, in blocks
    gradient_c = 1 if together else rows * columns
    out_c = 1 if together else height * width
    gradient += (batch * blocks * rows * columns + first * gradient_c) * block
    if for_images:
        image_gradient += (batch * blocks * height * width + first * out_c) * block
    if has_fill:
        fill += batch * fill_n + first * block * fill_c
    if for_matrices:
        matrix_sums += 9 * (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1))
    if for_fill:
        sums_c = tl.cdiv(rows, tile[1]) * tl.cdiv(columns, tile[0]) * strips
        fill_sums += (batch * blocks + first) * block * sums_c + number * strips
    channel = tl.arange(0, block)[None, :]
    easy = False
    if not on_points:
        easy = is_whole(matrix, scale, first_row, first_column, sizes, tile, compute, epsilon)
    for whole in tl.static_range(2):  # the same twice: with borders and without
        if easy == (whole == 1):
            row, column = strip_pixels(tile_width, patch_width, pixels)
            row, column = first_row + row, first_column + column
            ux, uy, u0, vx, vy, v0, wx, wy, w0 = (tl.zeros((pixels,), compute),) * 9
            for strip in range(strips):
                exists, x, y, u, v, per_u, per_v, visible, _inside, _fixed, i, j, exist, s, t = mapped(
                    matrix, scale, points, row, column, sizes, whole, on_points, keep, compute, epsilon, big
                )
                weights = weights_of(s, t)
                place = (row * columns + column)[:, None] * step * block + channel
                upper = (i * width + j) * step * block + channel
                lower = ((i + 1) * width + j) * step * block + channel
                upper_x, lower_x, left_y, right_y = (tl.zeros((pixels, block), compute),) * 4
                for k in tl.static_range(count):
                    where = gradient + k * block * gradient_c + place
                    g = (tl.load(where) if whole else tl.load(where, mask=exists[:, None], other=0.0)).to(compute)
                    if for_matrices:
                        image = images + k * block * stride_c
                        a, b, c, d = four_pixels(image, i, j, exist, stride_h, stride_w, whole, block, compute)
                        if has_fill and not whole:
                            outside = tl.load(fill + (k * block + channel) * fill_c).to(compute)
                            a, b = tl.where(exist[0], a, outside), tl.where(exist[1], b, outside)
                            c, d = tl.where(exist[2], c, outside), tl.where(exist[3], d, outside)
                        upper_x += g * (b - a)
                        lower_x += g * (d - c)
                        left_y += g * (c - a)
                        right_y += g * (d - b)
                    if for_images:
                        to = image_gradient + k * block * out_c
                        _spread(to, upper, lower, step * block, weights, g, exist, whole)
                    if for_fill:
                        to_fill = fill_sums + (k * block + tl.arange(0, block)) * sums_c + strip
                        if whole:
                            tl.store(to_fill, tl.zeros((block,), compute))
                        else:
                            rest = tl.where(exist[0], 0.0, weights[0]) + tl.where(exist[1], 0.0, weights[1])
                            rest += tl.where(exist[2], 0.0, weights[2]) + tl.where(exist[3], 0.0, weights[3])
                            tl.store(to_fill, tl.sum(rest * g, 0))
                if for_matrices:
                    du = tl.sum((1 - t) * upper_x + t * lower_x, 1) * per_u
                    dv = tl.sum((1 - s) * left_y + s * right_y, 1) * per_v
                    dw = -(du * u + dv * v)
                    if not whole:
                        seen = exists & visible
                        du, dv, dw = tl.where(seen, du, 0.0), tl.where(seen, dv, 0.0), tl.where(seen, dw, 0.0)
                    ux += du * x
                    uy += du * y
                    u0 += du
                    vx += dv * x
                    vy += dv * y
                    v0 += dv
                    wx += dw * x
                    wy += dw * y
                    w0 += dw
                row += pixels // tile_width
            if for_matrices:
                sums = (ux, uy, u0, vx, vy, v0, wx, wy, w0)
                for k in tl.static_range(9):
                    tl.store(matrix_sums + k, tl.sum(sums[k]))
