"""Kernels that smooth images and average blocks of their pixels. They have no gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from equivariant_transformers.geometry.kernels import on_device

_PIXELS = 1024  # of a plane that a program averages
_COLUMNS = 128  # that a program smooths
_ROWS = 8


@triton.jit
def _across(
    image, line, column, width, stride_w, exists, spacing: tl.constexpr, taps: tl.constexpr, compute: tl.constexpr
):
    """Weigh the neighbours of the pixels of a row by `taps`."""
    total = tl.zeros(column.shape, compute)
    for j in tl.static_range(5):
        place = tl.minimum(tl.maximum(column + (j - 2) * spacing, 0), width - 1) * stride_w
        total += taps[j] * tl.load(image + line + place, mask=exists, other=0.0).to(compute)
    return total


@triton.jit
def _smooth(
    images,
    result,
    height,
    width,
    channels,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    spacing: tl.constexpr,
    taps: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    compute: tl.constexpr,
):
    """Weigh neighbours of each pixel by `taps` along both axes, `spacing` pixels apart; the border continues.

    A program computes every `spacing`-th row of a strip, so that neighbouring rows share the sums along their rows.
    """
    wide, high = tl.cdiv(width, columns), tl.cdiv(height, rows * spacing) * spacing
    plane = (tl.program_id(0) // (wide * high)).to(tl.int64)
    strip = tl.program_id(0) // wide % high
    column = tl.program_id(0) % wide * columns + tl.arange(0, columns)
    first = strip // spacing * (rows * spacing) + strip % spacing
    image = images + plane // channels * stride_n + plane % channels * stride_c
    to = result + plane * (height * width) + column
    exists = column < width
    a, b, c, d = (tl.zeros((columns,), compute),) * 4  # sums along the four rows before
    for k in tl.static_range(rows + 4):
        line = tl.minimum(tl.maximum(first + (k - 2) * spacing, 0), height - 1) * stride_h
        e = _across(image, line, column, width, stride_w, exists, spacing, taps, compute)
        if k >= 4:
            row = first + (k - 4) * spacing
            total = taps[0] * a + taps[1] * b + taps[2] * c + taps[3] * d + taps[4] * e
            tl.store(to + row * width, (total / 256).to(result.dtype.element_ty), mask=exists & (row < height))
        a, b, c, d = b, c, d, e


@triton.jit
def _average(
    images,
    result,
    tiles,
    height,
    width,
    out_height,
    out_width,
    channels,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    block: tl.constexpr,
    pixels: tl.constexpr,
    compute: tl.constexpr,
):
    """Average blocks of `block` x `block` pixels, which are smaller at the border."""
    plane = (tl.program_id(0) // tiles).to(tl.int64)
    place = tl.program_id(0) % tiles * pixels + tl.arange(0, pixels)
    image = images + plane // channels * stride_n + plane % channels * stride_c
    row, column, exists = place // out_width, place % out_width, place < out_height * out_width
    total = tl.zeros((pixels,), compute)
    for i in range(block):
        line = row * block + i
        for j in range(block):
            across = column * block + j
            there = exists & (line < height) & (across < width)
            total += tl.load(image + line * stride_h + across * stride_w, mask=there, other=0.0).to(compute)
    count = tl.minimum(height - row * block, block) * tl.minimum(width - column * block, block)
    to = result + plane * (out_height * out_width) + place
    tl.store(to, (total / tl.maximum(count, 1)).to(result.dtype.element_ty), mask=exists)


def fits(images: Tensor) -> bool:
    """Return True if the kernels can index `images` `(B, C, H, W)`: a plane by 32 bits."""
    _, _, height, width = images.shape
    span = (height - 1) * images.stride(2) + (width - 1) * images.stride(3)
    return images.numel() > 0 and span < 2**31 - 2**16


def smooth(images: Tensor, level: int) -> Tensor:
    """Smooth `images` `(B, C, H, W)`, see `resampling.smooth`."""
    batch, channels, height, width = images.shape
    result = images.new_empty(images.shape)
    spacing, columns = 2 ** (level - 1), min(_COLUMNS, triton.next_power_of_2(width))
    strips = triton.cdiv(height, _ROWS * spacing) * spacing
    with on_device(images):
        _smooth[(triton.cdiv(width, columns) * strips * batch * channels,)](
            images, result, height, width, channels, *images.stride(), spacing, (1, 4, 6, 4, 1), _ROWS, columns,
            _compute(images), num_warps=max(1, columns // 32),
        )  # fmt: skip
    return result


def average(images: Tensor, block: int) -> Tensor:
    """Return the means of blocks of `block` x `block` pixels of `images` `(B, C, H, W)`, see `reduction`."""
    batch, channels, height, width = images.shape
    size = triton.cdiv(height, block), triton.cdiv(width, block)
    result = images.new_empty(batch, channels, *size)
    tiles = triton.cdiv(size[0] * size[1], _PIXELS)
    with on_device(images):
        _average[(tiles * batch * channels,)](
            images, result, tiles, height, width, *size, channels, *images.stride(), block, _PIXELS, _compute(images)
        )  # fmt: skip
    return result


def _compute(images: Tensor) -> tl.dtype:
    return tl.float64 if images.dtype == torch.float64 else tl.float32
