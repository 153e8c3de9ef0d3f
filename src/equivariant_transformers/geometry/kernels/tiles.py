"""Device functions of the sampling kernels: output pixels of a tile, their positions in the input, and its pixels."""

from __future__ import annotations

import triton
import triton.language as tl

_FAR = tl.constexpr(1e18)  # in pixels


@triton.jit
def output_pixels(
    rows, columns, tiles, tiles_across, tile_width: tl.constexpr, pixels: tl.constexpr, big: tl.constexpr
):
    """Return the image and the tile of this program, and the row, the column and the existence of each pixel."""
    batch, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    place = tl.arange(0, pixels)
    row = tile // tiles_across * (pixels // tile_width) + place // tile_width
    column = tile % tiles_across * tile_width + place % tile_width
    exists = (row < rows) & (column < columns)
    if big:
        row = row.to(tl.int64)
    return batch.to(tl.int64), tile, row, column, exists


@triton.jit
def channel_numbers(start: tl.constexpr, group: tl.constexpr, channel_block: tl.constexpr, big: tl.constexpr):
    """Return the numbers `(1, channel_block)` of the channels from `start` in the group of this program."""
    channel = tl.program_id(1) * group + start + tl.arange(0, channel_block)[None, :]
    if big:
        channel = channel.to(tl.int64)
    return channel


@triton.jit
def _centre(index, count, other, one):
    """Return the coordinate of pixel `index` along a side of `count` pixels, as `frame.pixel_centres` computes it."""
    end = (count - 1) / (one * (tl.maximum(tl.maximum(count, other), 2) - 1))
    step = 2 * end / tl.maximum(count - 1, 1)
    distance = end - step * tl.minimum(index, count - 1 - index)
    return tl.where(index < count // 2, -distance, distance) * tl.where(count > 1, one, 0 * one)


@triton.jit
def _scale(side, other, one):
    """Return the factor that maps coordinates of which a picture spans one side to [-1, 1]."""
    return tl.where(side > 1, (tl.maximum(tl.maximum(side, other), 2) - 1) / (one * tl.maximum(side - 1, 1)), one)


@triton.jit
def _three(row, compute: tl.constexpr):
    """Return the entries of a row of a matrix."""
    return tl.load(row).to(compute), tl.load(row + 1).to(compute), tl.load(row + 2).to(compute)


@triton.jit
def positions(
    matrix,
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
    on_points: tl.constexpr,
    keep: tl.constexpr,
    compute: tl.constexpr,
    epsilon: tl.constexpr,
):
    """Return the input pixel positions of output pixels, with everything that the backward pass needs."""
    one = tl.full((), 1.0, compute)
    if on_points:
        place = 2 * (row * columns + column)
        x = tl.load(points + place, mask=exists, other=0.0).to(compute)
        y = tl.load(points + place + 1, mask=exists, other=0.0).to(compute)
    else:
        x = _centre(column, columns, rows, one)
        y = _centre(row, rows, columns, one)
    m0, m1, m2 = _three(matrix, compute)
    m3, m4, m5 = _three(matrix + 3, compute)
    m6, m7, m8 = _three(matrix + 6, compute)
    w = m6 * x + (m7 * y + m8)
    visible = w > epsilon * (tl.abs(m6) + tl.abs(m7) + tl.abs(m8))  # the horizon, as in `steps.follow_steps`
    inverse = one / tl.where(visible, w, 1.0)
    u = (m0 * x + (m1 * y + m2)) * inverse
    v = (m3 * x + (m4 * y + m5)) * inverse
    middle_x, middle_y = 0.5 * (width - 1) * one, 0.5 * (height - 1) * one
    scale_x, scale_y = _scale(frame_width, frame_height, one), _scale(frame_height, frame_width, one)
    across = u * (scale_x * middle_x) + middle_x
    down = v * (scale_y * middle_y) + middle_y
    visible = visible & (tl.abs(across) < _FAR) & (tl.abs(down) < _FAR)  # False for positions that overflow
    limit = 1 + 16 * epsilon
    inside = visible & (tl.abs(u * scale_x) <= limit) & (tl.abs(v * scale_y) <= limit)
    # The bounds keep the conversion to integers defined; pixels this far outside are not read.
    across = tl.minimum(tl.maximum(tl.where(visible, across, -4.0), -4.0), width + 4.0)
    down = tl.minimum(tl.maximum(tl.where(visible, down, -4.0), -4.0), height + 4.0)
    if keep:
        fixed = visible & (u == x) & (v == y)  # a pixel that maps exactly to itself keeps its exact value
        across = tl.where(fixed, column.to(compute), across)
        down = tl.where(fixed, row.to(compute), down)
    else:
        fixed = visible
    return x, y, u, v, inverse * scale_x * middle_x, inverse * scale_y * middle_y, across, down, visible, inside, fixed


@triton.jit
def neighbours(across, down, exists, height, width, stride_h, stride_w, big: tl.constexpr):
    """Return offset, existence and fraction of the four pixels around positions, each of shape `(pixels, 1)`."""
    left, top = tl.floor(across), tl.floor(down)
    j, i = left.to(tl.int32), top.to(tl.int32)
    first, second = exists & (i >= 0) & (i < height), exists & (i >= -1) & (i < height - 1)
    in_left, in_right = (j >= 0) & (j < width), (j >= -1) & (j < width - 1)
    if big:
        i, j = i.to(tl.int64), j.to(tl.int64)
    corner = i * stride_h + j * stride_w
    return (
        corner[:, None],
        (first & in_left)[:, None],
        (first & in_right)[:, None],
        (second & in_left)[:, None],
        (second & in_right)[:, None],
        (across - left)[:, None],
        (down - top)[:, None],
    )


@triton.jit
def four_pixels(image, corner, has_a, has_b, has_c, has_d, stride_h, stride_w, outside, compute: tl.constexpr):
    """Return the four pixels around positions, with the value `outside` where the image has no pixel."""
    a = tl.where(has_a, tl.load(image + corner, mask=has_a, other=0.0).to(compute), outside)
    b = tl.where(has_b, tl.load(image + corner + stride_w, mask=has_b, other=0.0).to(compute), outside)
    c = tl.where(has_c, tl.load(image + corner + stride_h, mask=has_c, other=0.0).to(compute), outside)
    d = tl.where(has_d, tl.load(image + corner + stride_h + stride_w, mask=has_d, other=0.0).to(compute), outside)
    return a, b, c, d
