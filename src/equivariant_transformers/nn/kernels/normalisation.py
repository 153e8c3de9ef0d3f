"""Device functions and kernels of batch normalisation and SiLU, launched by `blocks`.

Features are `(B, C, H, W)` in the memory format channels last. A program processes all channels of some positions. The
shortcut, which is the input of the block, and the result are padded with copies of the opposite ends. Sums over
positions are partial sums per program, see `launch`, and do not depend on the order of the programs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equivariant_transformers.nn.kernels.launch import keep


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
def activate_kernel(
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
def moments_kernel(
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
def statistics_kernel(
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
def moments_backward_kernel(
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
def activate_backward_kernel(
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
