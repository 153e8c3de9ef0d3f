"""Device functions of the sampling kernels: output pixels of a tile, their positions in the input, and its pixels."""

from __future__ import annotations

import triton
import triton.language as tl

_FAR = tl.constexpr(1e18)  # in pixels
_LANES = tl.constexpr(32)  # threads of a warp


@triton.jit
def output_tile(sizes, tile, big: tl.constexpr):
    """Return the image, the number of the tile in it, and the first row and column of the tile of this program."""
    across = tl.cdiv(sizes[1], tile[0])
    tiles = across * tl.cdiv(sizes[0], tile[1])
    batch, number = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row, column = number // across * tile[1], number % across * tile[0]
    if big:
        row = row.to(tl.int64)
    return batch.to(tl.int64), number, row, column


@triton.jit
def strip_pixels(tile_width: tl.constexpr, patch_width: tl.constexpr, pixels: tl.constexpr):
    """Return the row and the column in a tile of each pixel of its first strip, one pixel per thread.

    The pixels of a warp form a patch, since the cost of a gather grows with the rows of the input that it touches.
    """
    place = tl.arange(0, pixels)
    lane, warp = place % _LANES, place // _LANES
    patches: tl.constexpr = tile_width // patch_width
    row = warp // patches * (_LANES // patch_width) + lane // patch_width
    return row, warp % patches * patch_width + lane % patch_width


@triton.jit
def load_matrix(matrix, compute: tl.constexpr):
    """Return the nine entries of a matrix."""
    return (
        tl.load(matrix).to(compute),
        tl.load(matrix + 1).to(compute),
        tl.load(matrix + 2).to(compute),
        tl.load(matrix + 3).to(compute),
        tl.load(matrix + 4).to(compute),
        tl.load(matrix + 5).to(compute),
        tl.load(matrix + 6).to(compute),
        tl.load(matrix + 7).to(compute),
        tl.load(matrix + 8).to(compute),
    )


@triton.jit
def _centre(index, count, other, compute: tl.constexpr):
    """Return the coordinate of pixel `index` along a side of `count` pixels, as `frame.pixel_centres` computes it."""
    one = tl.full((), 1.0, compute)
    end = (count - 1) / (one * (tl.maximum(tl.maximum(count, other), 2) - 1))
    step = 2 * end / tl.maximum(count - 1, 1)
    distance = end - step * tl.minimum(index, count - 1 - index)
    return tl.where(index < count // 2, -distance, distance) * tl.where(count > 1, one, 0 * one)


@triton.jit
def _scale(side, other, one):
    """Return the factor from coordinates of the plane to those in which a side of the picture spans [-1, 1]."""
    return tl.where(side > 1, (tl.maximum(tl.maximum(side, other), 2) - 1) / (one * tl.maximum(side - 1, 1)), one)


@triton.jit
def lens(height, width, frame_height, frame_width, compute: tl.constexpr):
    """Return the scale of coordinates, and the middle of the images in pixels, along x and along y."""
    one = tl.full((), 1.0, compute)
    scales = _scale(frame_width, frame_height, one), _scale(frame_height, frame_width, one)
    return scales[0], scales[1], 0.5 * (width - 1) * one, 0.5 * (height - 1) * one


@triton.jit
def _project(matrix, x, y, whole: tl.constexpr, epsilon: tl.constexpr):
    """Return points moved by `matrix`, the inverse of their third coordinate, and a mask of the visible points."""
    w = matrix[6] * x + (matrix[7] * y + matrix[8])
    visible = w > epsilon * (tl.abs(matrix[6]) + tl.abs(matrix[7]) + tl.abs(matrix[8]))  # as in `steps.follow_steps`
    inverse = 1.0 / (w if whole else tl.where(visible, w, 1.0))
    u = (matrix[0] * x + (matrix[1] * y + matrix[2])) * inverse
    v = (matrix[3] * x + (matrix[4] * y + matrix[5])) * inverse
    return u, v, inverse, visible


@triton.jit
def is_whole(matrix, scale, row, column, sizes, tile, compute: tl.constexpr, epsilon: tl.constexpr):
    """Return True if all pixels of a tile exist and lie between four pixels of the input.

    They do if the corners of the tile do, since a homography keeps convex shapes. The corners keep half a pixel of
    distance from the border, and the bound on w keeps the rounding of positions below that.
    """
    corner = tl.arange(0, 4)
    rows, columns, _height, _width = sizes
    last_row, last_column = row + (tile[1] - 1), column + (tile[0] - 1)
    x = _centre(tl.where(corner % 2 == 0, column, last_column), columns, rows, compute)
    y = _centre(tl.where(corner < 2, row, last_row), rows, columns, compute)
    u, v, inverse, visible = _project(matrix, x, y, False, epsilon)
    total = tl.abs(matrix[0])
    for k in tl.static_range(1, 9):
        total += tl.abs(matrix[k])
    scale_x, scale_y, middle_x, middle_y = scale
    rounding = 128 * epsilon * tl.maximum(scale_x * middle_x, scale_y * middle_y) * total
    inside = (tl.abs(u * scale_x * middle_x) <= middle_x - 0.5) & (tl.abs(v * scale_y * middle_y) <= middle_y - 0.5)
    found = visible & inside & (rounding * inverse < 1)
    return (last_row < rows) & (last_column < columns) & (tl.min(found.to(tl.int32), 0) == 1)


@triton.jit
def _positions(
    matrix,
    scale,
    x,
    y,
    row,
    column,
    height,
    width,
    whole: tl.constexpr,
    keep: tl.constexpr,
    compute: tl.constexpr,
    epsilon: tl.constexpr,
):
    """Return the input pixel positions of points, with everything that the backward pass needs."""
    u, v, inverse, visible = _project(matrix, x, y, whole, epsilon)
    scale_x, scale_y, middle_x, middle_y = scale
    across = u * (scale_x * middle_x) + middle_x
    down = v * (scale_y * middle_y) + middle_y
    limit = 1 + 16 * epsilon
    inside = visible & (tl.abs(u * scale_x) <= limit) & (tl.abs(v * scale_y) <= limit)
    if not whole:
        visible = visible & (tl.abs(across) < _FAR) & (tl.abs(down) < _FAR)  # False for positions that overflow
        inside = inside & visible
        # The bounds keep the conversion to integers defined; pixels this far outside are not read.
        across = tl.minimum(tl.maximum(tl.where(visible, across, -4.0), -4.0), width + 4.0)
        down = tl.minimum(tl.maximum(tl.where(visible, down, -4.0), -4.0), height + 4.0)
    fixed = visible
    if keep:
        fixed = visible & (u == x) & (v == y)  # a pixel that maps exactly to itself keeps its exact value
        across = tl.where(fixed, column.to(compute), across)
        down = tl.where(fixed, row.to(compute), down)
    return u, v, inverse * scale_x * middle_x, inverse * scale_y * middle_y, across, down, visible, inside, fixed


@triton.jit
def _neighbours(across, down, exists, height, width, big: tl.constexpr):
    """Return row and column of the first of four pixels around positions, their existence, and the fractions."""
    left, top = tl.floor(across), tl.floor(down)
    i, j = top.to(tl.int32), left.to(tl.int32)
    first, second = exists & (i >= 0) & (i < height), exists & (i >= -1) & (i < height - 1)
    in_left, in_right = (j >= 0) & (j < width), (j >= -1) & (j < width - 1)
    exist = (
        (first & in_left)[:, None],
        (first & in_right)[:, None],
        (second & in_left)[:, None],
        (second & in_right)[:, None],
    )
    if big:
        i, j = i.to(tl.int64), j.to(tl.int64)
    return i[:, None], j[:, None], exist, (across - left)[:, None], (down - top)[:, None]


@triton.jit
def mapped(
    matrix,
    scale,
    points,
    row,
    column,
    sizes,
    whole: tl.constexpr,
    on_points: tl.constexpr,
    keep: tl.constexpr,
    compute: tl.constexpr,
    epsilon: tl.constexpr,
    big: tl.constexpr,
):
    """Return a mask of existing output pixels, their points, and their positions in the input, see `_positions`."""
    rows, columns, height, width = sizes
    exists = (row < rows) & (column < columns)
    if on_points:
        place = 2 * (row * columns + column)
        x = tl.load(points + place, mask=exists, other=0.0).to(compute)
        y = tl.load(points + place + 1, mask=exists, other=0.0).to(compute)
    else:
        x = _centre(column, columns, rows, compute)
        y = _centre(row, rows, columns, compute)
    u, v, per_u, per_v, across, down, visible, inside, fixed = _positions(
        matrix, scale, x, y, row, column, height, width, whole, keep, compute, epsilon
    )
    i, j, exist, s, t = _neighbours(across, down, exists, height, width, big)
    return exists, x, y, u, v, per_u, per_v, visible, inside, fixed[:, None], i, j, exist, s, t


@triton.jit
def weights_of(s, t):
    """Return the weights of four pixels in samples between them."""
    return (1 - s) * (1 - t), s * (1 - t), (1 - s) * t, s * t


@triton.jit
def four_pixels(
    image, i, j, exist, stride_h, stride_w, whole: tl.constexpr, block: tl.constexpr, compute: tl.constexpr
):
    """Return the four pixels around positions, in `block` neighbouring channels; 0 where the image has no pixel.

    The strides are in blocks, from which the compiler knows that the channels of a pixel can be read at once.
    """
    channel = tl.arange(0, block)[None, :]
    upper = (i * stride_h + j * stride_w) * block + channel
    lower = ((i + 1) * stride_h + j * stride_w) * block + channel
    stride_w *= block
    if whole:
        a, b = tl.load(image + upper), tl.load(image + upper + stride_w)
        c, d = tl.load(image + lower), tl.load(image + lower + stride_w)
    else:
        a = tl.load(image + upper, mask=exist[0], other=0.0)
        b = tl.load(image + upper + stride_w, mask=exist[1], other=0.0)
        c = tl.load(image + lower, mask=exist[2], other=0.0)
        d = tl.load(image + lower + stride_w, mask=exist[3], other=0.0)
    return a.to(compute), b.to(compute), c.to(compute), d.to(compute)
