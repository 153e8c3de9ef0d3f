"""Kernels that normalise, activate and pool the output `(B, H, W, C)` of a convolution, in bfloat16."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from equivariant_transformers.geometry.kernels import on_device
from equivariant_transformers.nn.kernels.launch import BLOCK, LAUNCH, keep, programs

_ROWS = 64  # rows that pooling loads at a time


@triton.jit
def _activate(
    x,
    scale,
    shift,
    result,
    count,
    slope: tl.constexpr,
    centred: tl.constexpr,
    window: tl.constexpr,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    where = tl.program_id(0) * block + tl.arange(0, block)
    there = where < count
    k = where % channels
    a = tl.load(scale + k)
    b = tl.load(shift + k)
    place = where // channels
    column = place % (width // window) * window
    row = place // (width // window) % (height // window) * window
    corner = (place // ((width // window) * (height // window)) * height + row) * width + column
    total = tl.zeros((block,), tl.float32)
    for i in tl.static_range(window):
        for j in tl.static_range(window):
            raw = tl.load(x + (corner + i * width + j) * channels + k, mask=there, other=0.0).to(tl.float32)
            value = raw * a + b
            total += tl.where(value > 0, value, slope * value)
    total = total / (window * window)
    if centred:
        total -= tl.where(b > 0, b, slope * b)
    tl.store(result + where, total.to(tl.bfloat16), mask=there)


@triton.jit
def _activate_backward(
    x,
    scale,
    shift,
    gradient,
    result,
    sums,
    count,
    slope: tl.constexpr,
    window: tl.constexpr,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    k = tl.arange(0, channels)
    a = tl.load(scale + k)[None, :]
    b = tl.load(shift + k)[None, :]
    products = tl.zeros((channels,), tl.float32)
    inner = tl.zeros((channels,), tl.float32)
    outer = tl.zeros((channels,), tl.float32)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        place = start + tl.arange(0, block)
        there = place < count
        row = place // width % height // window
        column = place % width // window
        covered = there & (row < height // window) & (column < width // window)
        reader = (place // (width * height) * (height // window) + row) * (width // window) + column
        g = tl.load(gradient + reader[:, None] * channels + k[None, :], mask=covered[:, None], other=0.0)
        g = g.to(tl.float32) / (window * window)
        where = place[:, None] * channels + k[None, :]
        raw = tl.load(x + where, mask=there[:, None], other=0.0).to(tl.float32)
        before = tl.where(raw * a + b > 0, g, slope * g)
        products += tl.sum(before * raw, 0)
        inner += tl.sum(before, 0)
        outer += tl.sum(g, 0)
        tl.store(result + where, (before * a).to(tl.bfloat16), mask=there[:, None])
    keep(sums, 0, k, products)
    keep(sums, 1, k, inner)
    keep(sums, 2, k, outer)


@triton.jit
def _pool(
    x,
    scale,
    shift,
    row_weights,
    result,
    found,
    slope: tl.constexpr,
    centred: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    chunk: tl.constexpr,
    block: tl.constexpr,
):
    place = tl.program_id(1) * block + tl.arange(0, block)  # position in a row of features
    there = place < width * channels
    a = tl.load(scale + place % channels)[None, :]
    b = tl.load(shift + place % channels)[None, :]
    best = tl.full((block,), 0.0, tl.float32)
    winner = tl.zeros((block,), tl.int32)
    for start in tl.static_range(0, rows, chunk):
        row = start + tl.arange(0, chunk)
        where = (tl.program_id(0) * rows + row)[:, None] * (width * channels) + place[None, :]
        inside = (row < rows)[:, None] & there[None, :]
        value = tl.load(x + where, mask=inside, other=0.0).to(tl.float32) * a + b
        value = tl.where(value > 0, value, slope * value)
        if centred:
            value -= tl.where(b > 0, b, slope * b)
        if row_weights is None:
            top, index = tl.max(tl.where(inside, value, float("-inf")), 0, return_indices=True)
            if start == 0:
                best, winner = top, index
            else:
                winner = tl.where(top > best, start + index, winner)
                best = tl.maximum(top, best)
        else:
            weights = tl.load(row_weights + row % height, mask=row < rows, other=0.0)
            best += tl.sum(value * weights[:, None], 0)
    out = tl.program_id(0) * (width * channels) + place
    tl.store(result + out, best, mask=there)
    if row_weights is None:
        tl.store(found + out, winner.to(tl.int16), mask=there)


@triton.jit
def _pool_backward(
    x,
    scale,
    shift,
    row_weights,
    found,
    gradient,
    result,
    sums,
    count,
    slope: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    k = tl.arange(0, channels)
    a = tl.load(scale + k)[None, :]
    b = tl.load(shift + k)[None, :]
    products = tl.zeros((channels,), tl.float32)
    inner = tl.zeros((channels,), tl.float32)
    outer = tl.zeros((channels,), tl.float32)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        place = start + tl.arange(0, block)
        there = (place < count)[:, None]
        row = place // width % rows
        pooled = (place // (width * rows) * width + place % width)[:, None] * channels + k[None, :]
        g = tl.load(gradient + pooled, mask=there, other=0.0)
        if row_weights is None:
            g = tl.where(tl.load(found + pooled, mask=there, other=0).to(tl.int32) == row[:, None], g, 0.0)
        else:
            g *= tl.load(row_weights + row % height)[:, None]
        where = place[:, None] * channels + k[None, :]
        raw = tl.load(x + where, mask=there, other=0.0).to(tl.float32)
        before = tl.where(raw * a + b > 0, g, slope * g)
        products += tl.sum(before * raw, 0)
        inner += tl.sum(before, 0)
        outer += tl.sum(g, 0)
        tl.store(result + where, (before * a).to(tl.bfloat16), mask=there)
    keep(sums, 0, k, products)
    keep(sums, 1, k, inner)
    keep(sums, 2, k, outer)


@torch.library.custom_op("equivariant_transformers::activate", mutates_args=())
def activate(x: Tensor, scale: Tensor, shift: Tensor, slope: float, centred: bool, window: int) -> Tensor:
    """Normalise features `(B, H, W, C)` by `scale` and `shift` `(C,)`, activate them, and average over windows."""
    batch, height, width, channels = x.shape
    result = x.new_empty(batch, height // window, width // window, channels)
    count = result.numel()
    with on_device(x):
        _activate[(triton.cdiv(count, 1024),)](
            x, scale, shift, result, count, slope, centred, window, channels, height, width, 1024, **LAUNCH
        )
    return result


@activate.register_fake
def _(x, scale, shift, slope, centred, window):
    return x.new_empty(x.shape[0], x.shape[1] // window, x.shape[2] // window, x.shape[3])


@torch.library.custom_op("equivariant_transformers::activate_backward", mutates_args=())
def activate_backward(
    x: Tensor, scale: Tensor, shift: Tensor, slope: float, window: int, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the features of `activate`, and sums `(3, C, programs)` for `_affine_gradients`."""
    _, height, width, channels = x.shape
    count = x.numel() // channels
    result = torch.empty_like(x)
    sums = scale.new_empty(3, channels, programs(count))
    with on_device(x):
        _activate_backward[(sums.shape[2],)](
            x, scale, shift, gradient, result, sums, count, slope, window, channels, height, width, BLOCK, **LAUNCH
        )
    return result, sums


@activate_backward.register_fake
def _(x, scale, shift, slope, window, gradient):
    return torch.empty_like(x), scale.new_empty(3, x.shape[3], programs(x.numel() // x.shape[3]))


def _remember_activation(ctx, inputs, output) -> None:
    x, scale, shift, ctx.slope, ctx.centred, ctx.window = inputs
    ctx.save_for_backward(x, scale, shift)


def _differentiate_activation(ctx, gradient: Tensor):
    x, scale, shift = ctx.saved_tensors
    features, sums = activate_backward(x, scale, shift, ctx.slope, ctx.window, gradient.contiguous())
    return features, *_affine_gradients(sums, shift, ctx.slope, ctx.centred), None, None, None


def _affine_gradients(sums: Tensor, shift: Tensor, slope: float, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients `(C,)` of the scale and the shift from partial sums `(3, C, programs)`."""
    products, inner, outer = (part.sum(1) for part in sums.unbind(0))
    return products, inner - torch.where(shift > 0, 1.0, slope) * outer if centred else inner


activate.register_autograd(_differentiate_activation, setup_context=_remember_activation)


@torch.library.custom_op("equivariant_transformers::pool", mutates_args=())
def pool(
    x: Tensor, scale: Tensor, shift: Tensor, slope: float, centred: bool, row_weights: Tensor | None, sheets: int
) -> tuple[Tensor, Tensor]:
    """Normalise and activate features `(B * sheets, H, W, C)`, and return the maxima `(B, W, C)` over sheets and rows.

    With `row_weights` `(H,)`, the result is a weighted sum instead. The second output holds the rows of the maxima.
    """
    images, height, width, channels = x.shape
    rows = sheets * height
    result = x.new_empty(images // sheets, width, channels, dtype=torch.float32)
    found = x.new_empty(result.shape if row_weights is None else (0,), dtype=torch.int16)
    chunk = min(triton.next_power_of_2(rows), _ROWS)
    block = 4096 // chunk
    with on_device(x):
        _pool[(images // sheets, triton.cdiv(width * channels, block))](
            x, scale, shift, row_weights, result, found, slope, centred, channels, rows, height, width, chunk, block,
            **LAUNCH,
        )  # fmt: skip
    return result, found


@pool.register_fake
def _(x, scale, shift, slope, centred, row_weights, sheets):
    result = x.new_empty(x.shape[0] // sheets, x.shape[2], x.shape[3], dtype=torch.float32)
    return result, x.new_empty(result.shape if row_weights is None else (0,), dtype=torch.int16)


@torch.library.custom_op("equivariant_transformers::pool_backward", mutates_args=())
def pool_backward(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    slope: float,
    row_weights: Tensor | None,
    sheets: int,
    found: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the features of `pool`, and sums `(3, C, programs)` for `_affine_gradients`."""
    _, height, width, channels = x.shape
    count = x.numel() // channels
    result = torch.empty_like(x)
    sums = scale.new_empty(3, channels, programs(count))
    with on_device(x):
        _pool_backward[(sums.shape[2],)](
            x, scale, shift, row_weights, found, gradient, result, sums, count, slope, channels, sheets * height,
            height, width, BLOCK, **LAUNCH,
        )  # fmt: skip
    return result, sums


@pool_backward.register_fake
def _(x, scale, shift, slope, row_weights, sheets, found, gradient):
    return torch.empty_like(x), scale.new_empty(3, x.shape[3], programs(x.numel() // x.shape[3]))


def _remember_pool(ctx, inputs, output) -> None:
    x, scale, shift, ctx.slope, ctx.centred, row_weights, ctx.sheets = inputs
    ctx.save_for_backward(x, scale, shift, row_weights, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate_pool(ctx, gradient: Tensor, _found):
    x, scale, shift, row_weights, found = ctx.saved_tensors
    features, sums = pool_backward(x, scale, shift, ctx.slope, row_weights, ctx.sheets, found, gradient.contiguous())
    return features, *_affine_gradients(sums, shift, ctx.slope, ctx.centred), None, None, None, None


pool.register_autograd(_differentiate_pool, setup_context=_remember_pool)
