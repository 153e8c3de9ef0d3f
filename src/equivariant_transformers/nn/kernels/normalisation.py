"""Kernels for batch normalisation and SiLU, with a shortcut and with padding that wraps around.

Features are `(B, C, H, W)` in the memory format channels last. A program processes all channels of some positions. The
shortcut, which is the input of the block, and the result are padded with copies of the opposite ends. Sums over
positions are partial sums per program, see `launch`, and do not depend on the order of the programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from equivariant_transformers.geometry.kernels import on_device
from equivariant_transformers.nn.conv import channels_last, pad
from equivariant_transformers.nn.kernels.launch import keep, programs
from equivariant_transformers.nn.kernels.plain import Padding, Prepared

_VALUES = 2048  # that a program processes at a time


@triton.jit
def _normalised(y, mean, variance, weight, bias, channel, exists, epsilon: tl.constexpr, compute: tl.constexpr):
    """Return values `y` standardised, scaled and shifted; `y` standardised; and the derivative of the first."""
    centre = tl.load(mean + channel, mask=exists, other=0.0).to(compute)[None, :]
    spread = tl.load(variance + channel, mask=exists, other=1.0).to(compute) + tl.full((), epsilon, compute)
    inverse = 1 / tl.sqrt(spread)[None, :]
    scale = tl.load(weight + channel, mask=exists, other=0.0).to(compute)[None, :]
    shift = tl.load(bias + channel, mask=exists, other=0.0).to(compute)[None, :]
    standard = (y - centre) * inverse
    return standard * scale + shift, standard, scale * inverse


@triton.jit
def _activate(
    y,
    shortcut,
    mean,
    variance,
    weight,
    bias,
    result,
    count,
    epsilon: tl.constexpr,
    has_shortcut: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    own: tl.constexpr,
    around: tl.constexpr,
    lanes: tl.constexpr,
    block: tl.constexpr,
    compute: tl.constexpr,
):
    """Normalise and activate `y`, add the shortcut, which is padded by `own`, and pad the result by `around`."""
    out_height: tl.constexpr = height + 2 * around[1]
    out_width: tl.constexpr = width + 2 * around[0]
    place = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, lanes)
    exists = channel < channels
    there = (place < count)[:, None] & exists[None, :]
    batch = place // (out_width * out_height)
    row = (place // out_width % out_height + height - around[1]) % height
    column = (place % out_width + width - around[0]) % width
    where = ((batch * height + row) * width + column)[:, None] * channels + channel[None, :]
    value = tl.load(y + where, mask=there, other=0.0).to(compute)
    value, _, _ = _normalised(value, mean, variance, weight, bias, channel, exists, epsilon, compute)
    value = tl.where(there, value, 0.0)
    value = value / (1 + tl.exp(-value))
    if has_shortcut:
        line = (batch * (height + 2 * own[1]) + row + own[1]) * (width + 2 * own[0]) + column + own[0]
        value += tl.load(shortcut + line[:, None] * channels + channel[None, :], mask=there, other=0.0).to(compute)
    to = place[:, None] * channels + channel[None, :]
    tl.store(result + to, value.to(result.dtype.element_ty), mask=there)


@triton.jit
def _moments(
    y,
    origin,
    sums,
    count,
    channels: tl.constexpr,
    lanes: tl.constexpr,
    block: tl.constexpr,
    compute: tl.constexpr,
):
    """Sum differences of `y` from an `origin` for each channel, and their squares."""
    channel = tl.arange(0, lanes)
    exists = channel < channels
    middle = tl.load(origin + channel, mask=exists, other=0.0).to(compute)[None, :]
    first = tl.zeros((lanes,), compute)
    second = tl.zeros((lanes,), compute)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        place = start + tl.arange(0, block)
        there = (place < count)[:, None] & exists[None, :]
        where = place[:, None] * channels + channel[None, :]
        difference = tl.where(there, tl.load(y + where, mask=there, other=0.0).to(compute) - middle, 0.0)
        first += tl.sum(difference, 0)
        second += tl.sum(difference * difference, 0)
    keep(sums, 0, channel, first)
    keep(sums, 1, channel, second)


@triton.jit
def _statistics(
    sums,
    mean,
    variance,
    running_mean,
    running_variance,
    batches,
    count,
    parts,
    rate: tl.constexpr,
    lanes: tl.constexpr,
    many: tl.constexpr,
    compute: tl.constexpr,
):
    """Return mean and variance of a channel from sums of differences from the running mean, and update the latter."""
    channel = tl.program_id(0)
    part = tl.arange(0, many)
    first = tl.sum(tl.load(sums + channel * parts + part, mask=part < parts, other=0.0)) / count
    second = tl.sum(tl.load(sums + (lanes + channel) * parts + part, mask=part < parts, other=0.0)) / count
    one = tl.full((), 1.0, compute)
    before = tl.load(running_mean + channel).to(compute)
    spread = tl.load(running_variance + channel).to(compute)
    found = tl.maximum(second - first * first, 0.0)
    tl.store(mean + channel, before + first)
    tl.store(variance + channel, found)
    tl.store(running_mean + channel, (before + rate * one * first).to(running_mean.dtype.element_ty))
    unbiased = found * count / tl.maximum(count - one, one)
    tl.store(
        running_variance + channel, (spread + rate * one * (unbiased - spread)).to(running_variance.dtype.element_ty)
    )
    if channel == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def _folded(
    gradient,
    batch,
    row,
    column,
    channel,
    there,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    around: tl.constexpr,
    compute: tl.constexpr,
):
    """Return the sum of the `gradient` of all copies of a position in a result padded by `around`."""
    out_height: tl.constexpr = height + 2 * around[1]
    out_width: tl.constexpr = width + 2 * around[0]
    copies_down: tl.constexpr = 1 if around[1] == 0 else 3
    copies_across: tl.constexpr = 1 if around[0] == 0 else 3
    total = tl.zeros(there.shape, compute)
    for i in tl.static_range(copies_down):
        for j in tl.static_range(copies_across):
            line = row + around[1] + (i - copies_down // 2) * height
            place = column + around[0] + (j - copies_across // 2) * width
            inside = (line >= 0) & (line < out_height) & (place >= 0) & (place < out_width)
            where = ((batch * out_height + line) * out_width + place)[:, None] * channels + channel[None, :]
            total += tl.load(gradient + where, mask=there & inside[:, None], other=0.0).to(compute)
    return total


@triton.jit
def _slope(value, there):
    """Return the derivative of SiLU."""
    share = 1 / (1 + tl.exp(-tl.where(there, value, 0.0)))
    return share * (1 + value * (1 - share))


@triton.jit
def _moments_backward(
    gradient,
    y,
    mean,
    variance,
    weight,
    bias,
    sums,
    count,
    epsilon: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    around: tl.constexpr,
    lanes: tl.constexpr,
    block: tl.constexpr,
    compute: tl.constexpr,
):
    """Sum the gradients of normalised values for each channel, and their products with the standardised values."""
    channel = tl.arange(0, lanes)
    exists = channel < channels
    first = tl.zeros((lanes,), compute)
    second = tl.zeros((lanes,), compute)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        place = start + tl.arange(0, block)
        there = (place < count)[:, None] & exists[None, :]
        batch, row, column = place // (width * height), place // width % height, place % width
        value = tl.load(y + place[:, None] * channels + channel[None, :], mask=there, other=0.0).to(compute)
        value, standard, _ = _normalised(value, mean, variance, weight, bias, channel, exists, epsilon, compute)
        g = _folded(gradient, batch, row, column, channel, there, height, width, channels, around, compute)
        g *= _slope(value, there)
        first += tl.sum(g, 0)
        second += tl.sum(tl.where(there, g * standard, 0.0), 0)
    keep(sums, 0, channel, first)
    keep(sums, 1, channel, second)


@triton.jit
def _activate_backward(
    gradient,
    y,
    mean,
    variance,
    weight,
    bias,
    totals,
    y_gradient,
    shortcut_gradient,
    count,
    number,
    epsilon: tl.constexpr,
    has_shortcut: tl.constexpr,
    training: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    own: tl.constexpr,
    around: tl.constexpr,
    lanes: tl.constexpr,
    block: tl.constexpr,
    compute: tl.constexpr,
):
    """Return the gradients of `y` and of the shortcut, of which the padding by `own` has gradient 0."""
    own_height: tl.constexpr = height + 2 * own[1]
    own_width: tl.constexpr = width + 2 * own[0]
    place = tl.program_id(0) * block + tl.arange(0, block)
    channel = tl.arange(0, lanes)
    exists = channel < channels
    batch = place // (own_width * own_height)
    row = place // own_width % own_height - own[1]
    column = place % own_width - own[0]
    inside = (place < count) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    there = inside[:, None] & exists[None, :]
    where = ((batch * height + row) * width + column)[:, None] * channels + channel[None, :]
    value = tl.load(y + where, mask=there, other=0.0).to(compute)
    value, standard, factor = _normalised(value, mean, variance, weight, bias, channel, exists, epsilon, compute)
    g = _folded(gradient, batch, row, column, channel, there, height, width, channels, around, compute)
    if has_shortcut:
        to = place[:, None] * channels + channel[None, :]
        written = (place < count)[:, None] & exists[None, :]
        tl.store(shortcut_gradient + to, g.to(shortcut_gradient.dtype.element_ty), mask=written)
    g *= _slope(value, there)
    if training:
        first = tl.load(totals + channel, mask=exists, other=0.0)[None, :]
        second = tl.load(totals + lanes + channel, mask=exists, other=0.0)[None, :]
        g -= (first + standard * second) / number
    tl.store(y_gradient + where, (g * factor).to(y_gradient.dtype.element_ty), mask=there)


def prepared(x: Tensor, around: Padding) -> Prepared:
    """Pad features `x` `(B, C, H, W)` by wrapping around."""
    padded = pad(x, around, (True, True))
    return Prepared(padded, padded)


def activated(y: Tensor, norm: nn.BatchNorm2d, shortcut: Tensor | None, own: Padding, around: Padding) -> Prepared:
    """Normalise `y` `(B, C, H, W)`, apply SiLU, add the shortcut, and pad the result, see `BlockOperations`."""
    weights = (norm.weight, norm.bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (y, shortcut, *weights)):
        padded: Tensor = _Activated.apply(y, shortcut, *weights, norm, own, around)
    else:
        y = channels_last(y)
        padded = _forward(y, shortcut, *_used_statistics(y, norm), norm, own, around)
    return Prepared(padded, padded)


def _forward(
    y: Tensor,
    shortcut: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    norm: nn.BatchNorm2d,
    own: Padding,
    around: Padding,
) -> Tensor:
    batch, channels, height, width = y.shape
    shape = (batch, channels, height + 2 * around[1], width + 2 * around[0])
    result = torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
    count = result.numel() // channels
    lanes, block = _blocks(channels)
    shortcut = None if shortcut is None else channels_last(shortcut)
    with on_device(y):
        _activate[(triton.cdiv(count, block),)](
            y, shortcut, mean, variance, norm.weight, norm.bias, result, count, norm.eps, shortcut is not None,
            height, width, channels, own, around, lanes, block, _compute(y),
        )  # fmt: skip
    return result


def _used_statistics(y: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance `(C,)` by which `norm` normalises `y`. In training, update the running ones."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    if not norm.training:
        return norm.running_mean, norm.running_var
    channels = y.shape[1]
    count = y.numel() // channels
    lanes, block = _blocks(channels)
    parts = programs(count, block)
    dtype = _torch_compute(y)
    sums = torch.empty(2, lanes, parts, dtype=dtype, device=y.device)
    mean, variance = torch.empty(2, channels, dtype=dtype, device=y.device).unbind()
    with on_device(y):
        _moments[(parts,)](y, norm.running_mean, sums, count, channels, lanes, block, _compute(y))
        _statistics[(channels,)](
            sums, mean, variance, norm.running_mean, norm.running_var, norm.num_batches_tracked, count, parts,
            norm.momentum, lanes, triton.next_power_of_2(parts), _compute(y),
        )  # fmt: skip
    return mean, variance


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
        own: Padding,
        around: Padding,
    ) -> Tensor:
        y = channels_last(y)
        mean, variance = _used_statistics(y, norm)
        if not norm.training:
            mean, variance = mean.clone(), variance.clone()  # training may change them before the backward pass
        ctx.save_for_backward(y, mean, variance, weight, bias)
        ctx.training, ctx.epsilon, ctx.own, ctx.around = norm.training, norm.eps, own, around
        ctx.shortcut = None if shortcut is None else shortcut.dtype
        return _forward(y, shortcut, mean, variance, norm, own, around)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        y, mean, variance, weight, bias = ctx.saved_tensors
        batch, channels, height, width = y.shape
        own = ctx.own if ctx.shortcut is not None else (0, 0)
        count = y.numel() // channels
        lanes, block = _blocks(channels)
        gradient = channels_last(gradient)
        parts = programs(count, block)
        sums = torch.empty(2, lanes, parts, dtype=_torch_compute(y), device=y.device)
        shape = (batch, channels, height + 2 * own[1], width + 2 * own[0])
        y_gradient = torch.empty_like(y)
        shortcut_gradient = None
        if ctx.shortcut is not None:
            shortcut_gradient = torch.empty(
                shape, dtype=ctx.shortcut, device=y.device, memory_format=torch.channels_last
            )
        places = shape[0] * shape[2] * shape[3]
        common = (height, width, channels)
        with on_device(y):
            _moments_backward[(parts,)](
                gradient, y, mean, variance, weight, bias, sums, count, ctx.epsilon, *common, ctx.around, lanes, block,
                _compute(y),
            )  # fmt: skip
            totals = sums.sum(2)
            _activate_backward[(triton.cdiv(places, block),)](
                gradient, y, mean, variance, weight, bias, totals, y_gradient, shortcut_gradient, places, count,
                ctx.epsilon, shortcut_gradient is not None, ctx.training, *common, own, ctx.around, lanes, block,
                _compute(y),
            )  # fmt: skip
        for_bias, for_weight = totals[:, :channels]
        return y_gradient, shortcut_gradient, for_weight.to(weight.dtype), for_bias.to(bias.dtype), None, None, None


def _blocks(channels: int) -> tuple[int, int]:
    """Return the number of channels that a program has room for, and the number of positions."""
    lanes = max(16, triton.next_power_of_2(channels))
    return lanes, max(1, _VALUES // lanes)


def _torch_compute(y: Tensor) -> torch.dtype:
    return torch.float64 if y.dtype == torch.float64 else torch.float32


def _compute(y: Tensor) -> tl.dtype:
    return tl.float64 if y.dtype == torch.float64 else tl.float32
