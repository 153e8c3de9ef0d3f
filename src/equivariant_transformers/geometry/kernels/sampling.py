"""Sampling of images through a homography in one GPU kernel, without a grid in memory.

`Warp.sample` uses the kernel on a GPU, for images that do not require gradients. The backward pass recomputes the
sampling positions and reduces the gradient of each matrix in the same kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from equivariant_transformers.geometry.frame import extent
from equivariant_transformers.geometry.kernels import on_device

_BLOCK = 1024  # points per program


@triton.jit
def _place(
    matrix,
    x,
    y,
    height: tl.constexpr,
    width: tl.constexpr,
    scale_x: tl.constexpr,
    scale_y: tl.constexpr,
):
    """Return the input pixel positions of output points (x, y), and the intermediate values of the backward pass."""
    m0, m1, m2 = tl.load(matrix), tl.load(matrix + 1), tl.load(matrix + 2)
    m3, m4, m5 = tl.load(matrix + 3), tl.load(matrix + 4), tl.load(matrix + 5)
    m6, m7, m8 = tl.load(matrix + 6), tl.load(matrix + 7), tl.load(matrix + 8)
    w = m6 * x + (m7 * y + m8)
    visible = w > 1.1920929e-07 * (tl.abs(m6) + tl.abs(m7) + tl.abs(m8))  # the horizon, as in `Warp`
    w = tl.where(visible, w, 1.0)
    u = (m0 * x + (m1 * y + m2)) / w
    v = (m3 * x + (m4 * y + m5)) / w
    column = tl.where(visible, (u * scale_x + 1) * (0.5 * (width - 1)), -4.0)
    row = tl.where(visible, (v * scale_y + 1) * (0.5 * (height - 1)), -4.0)
    # The bounds keep the conversion to integers defined; pixels this far outside are not read.
    column = tl.minimum(tl.maximum(column, -4.0), width + 4.0)
    row = tl.minimum(tl.maximum(row, -4.0), height + 4.0)
    return column, row, u, v, w, visible


@triton.jit
def _tap(image, row, column, outside, inside, height: tl.constexpr, width: tl.constexpr):
    """Return the pixel at (row, column) minus the fill value `outside`; 0 outside the image."""
    there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return tl.where(there, tl.load(image + row * width + column, mask=there, other=0.0) - outside, 0.0)


@triton.jit
def _forward(
    images,
    matrices,
    points,
    fill,
    result,
    count,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    scale_x: tl.constexpr,
    scale_y: tl.constexpr,
    block: tl.constexpr,
):
    batch = tl.program_id(0)
    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < count
    x = tl.load(points + 2 * place, mask=inside, other=0.0)
    y = tl.load(points + 2 * place + 1, mask=inside, other=0.0)
    column, row, _u, _v, _w, _visible = _place(matrices + 9 * batch, x, y, height, width, scale_x, scale_y)
    left, top = tl.floor(column), tl.floor(row)
    across, down = column - left, row - top
    i, j = top.to(tl.int32), left.to(tl.int32)
    for channel in range(channels):
        which = batch * channels + channel
        image = images + which * height * width
        outside = tl.load(fill + which)
        a = _tap(image, i, j, outside, inside, height, width)
        b = _tap(image, i, j + 1, outside, inside, height, width)
        c = _tap(image, i + 1, j, outside, inside, height, width)
        d = _tap(image, i + 1, j + 1, outside, inside, height, width)
        upper, lower = a + across * (b - a), c + across * (d - c)
        tl.store(result + which * count + place, upper + down * (lower - upper) + outside, mask=inside)


@triton.jit
def _backward(
    images,
    matrices,
    points,
    fill,
    gradient,
    sums,
    count,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    scale_x: tl.constexpr,
    scale_y: tl.constexpr,
    block: tl.constexpr,
):
    batch = tl.program_id(0)
    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < count
    x = tl.load(points + 2 * place, mask=inside, other=0.0)
    y = tl.load(points + 2 * place + 1, mask=inside, other=0.0)
    column, row, u, v, w, visible = _place(matrices + 9 * batch, x, y, height, width, scale_x, scale_y)
    left, top = tl.floor(column), tl.floor(row)
    across, down = column - left, row - top
    i, j = top.to(tl.int32), left.to(tl.int32)
    along_column = tl.zeros((block,), tl.float32)
    along_row = tl.zeros((block,), tl.float32)
    for channel in range(channels):
        which = batch * channels + channel
        image = images + which * height * width
        outside = tl.load(fill + which)
        a = _tap(image, i, j, outside, inside, height, width)
        b = _tap(image, i, j + 1, outside, inside, height, width)
        c = _tap(image, i + 1, j, outside, inside, height, width)
        d = _tap(image, i + 1, j + 1, outside, inside, height, width)
        g = tl.load(gradient + which * count + place, mask=inside, other=0.0)
        along_column += g * ((b - a) + down * ((d - c) - (b - a)))
        along_row += g * ((c - a) + across * ((d - b) - (c - a)))
    seen = inside & visible
    du = tl.where(seen, along_column * (0.5 * (width - 1)) * scale_x / w, 0.0)
    dv = tl.where(seen, along_row * (0.5 * (height - 1)) * scale_y / w, 0.0)
    dw = -(du * u + dv * v)
    out = sums + batch * 9 * tl.num_programs(1) + tl.program_id(1)
    tl.store(out, tl.sum(du * x))
    tl.store(out + 1 * tl.num_programs(1), tl.sum(du * y))
    tl.store(out + 2 * tl.num_programs(1), tl.sum(du))
    tl.store(out + 3 * tl.num_programs(1), tl.sum(dv * x))
    tl.store(out + 4 * tl.num_programs(1), tl.sum(dv * y))
    tl.store(out + 5 * tl.num_programs(1), tl.sum(dv))
    tl.store(out + 6 * tl.num_programs(1), tl.sum(dw * x))
    tl.store(out + 7 * tl.num_programs(1), tl.sum(dw * y))
    tl.store(out + 8 * tl.num_programs(1), tl.sum(dw))


def _scales(images: Tensor) -> tuple[float, float]:
    """Return the factors that map the coordinates x and y of `images` to [-1, 1]; exactly 1 for a square."""
    half_width, half_height = extent((images.shape[-2], images.shape[-1]))
    return 1 / half_width, 1 / half_height


@torch.library.custom_op("equivariant_transformers::sample", mutates_args=())
def sample(images: Tensor, matrices: Tensor, points: Tensor, fill: Tensor) -> Tensor:
    """Sample `images` `(B, C, H, W)` bilinearly at `points` `(P, 2)` moved by `matrices` `(B, 3, 3)`, as `(B, C, P)`.

    All tensors are float32 and contiguous. `fill` `(B, C)` is the value outside the images and beyond the horizon.
    """
    batch, channels, height, width = images.shape
    count = points.shape[0]
    result = images.new_empty(batch, channels, count)
    programs = (batch, triton.cdiv(count, _BLOCK))
    with on_device(images):
        _forward[programs](
            images, matrices, points, fill, result, count, channels, height, width, *_scales(images), _BLOCK
        )
    return result


@sample.register_fake
def _(images: Tensor, matrices: Tensor, points: Tensor, fill: Tensor) -> Tensor:
    return images.new_empty(images.shape[0], images.shape[1], points.shape[0])


@torch.library.custom_op("equivariant_transformers::sample_backward", mutates_args=())
def sample_backward(images: Tensor, matrices: Tensor, points: Tensor, fill: Tensor, gradient: Tensor) -> Tensor:
    """Return the partial gradients of `matrices` in `sample`, `(B, 9, programs)`, to be summed over programs."""
    batch, channels, height, width = images.shape
    count = points.shape[0]
    programs = (batch, triton.cdiv(count, _BLOCK))
    sums = images.new_empty(batch, 9, programs[1])
    with on_device(images):
        _backward[programs](
            images, matrices, points, fill, gradient, sums, count, channels, height, width, *_scales(images), _BLOCK
        )
    return sums


@sample_backward.register_fake
def _(images: Tensor, matrices: Tensor, points: Tensor, fill: Tensor, gradient: Tensor) -> Tensor:
    return images.new_empty(images.shape[0], 9, triton.cdiv(points.shape[0], _BLOCK))


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, gradient: Tensor):
    sums = sample_backward(*ctx.saved_tensors, gradient.contiguous())
    return None, sums.sum(2).reshape(-1, 3, 3), None, None


sample.register_autograd(_differentiate, setup_context=_remember)
