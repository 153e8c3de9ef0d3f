"""Convolution, normalisation, activation and pooling of features in few GPU kernels, forwards and backwards.

Features are `(B, H, W, C)` in bfloat16, as a convolution left them; whoever reads them normalises and activates them.
What has to be added up over all places is added up on the way, by a fixed number of programs with sums of their own, so
that results do not depend on which program ends first. Convolutions of features are cuDNN's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 128  # places a program works on at a time
_PROGRAMS = 528  # four for each multiprocessor of a large GPU
_ROWS = 64  # rows that pooling reads at a time
_LAUNCH = {"num_warps": 4, "num_stages": 1}
# A geometry is (height, width, out_height, out_width, stride_h, stride_w, pad_h, pad_w, wrap_h, wrap_w).


@triton.jit
def _source(place, i, j, geometry: tl.constexpr):
    """The place of the input that tap (i, j) reads for a `place` of the output, and whether there is one."""
    height, width, out_height, out_width = geometry[0], geometry[1], geometry[2], geometry[3]
    column = place % out_width * geometry[5] + j - geometry[7]
    row = place // out_width % out_height * geometry[4] + i - geometry[6]
    if geometry[9]:
        column = (column + width) % width
    if geometry[8]:
        row = (row + height) % height
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return (place // (out_width * out_height) * height + row) * width + column, inside


@triton.jit
def _target(place, i, j, geometry: tl.constexpr):
    """The place of the output that reads a `place` of the input through tap (i, j), and whether there is one."""
    height, width, out_height, out_width = geometry[0], geometry[1], geometry[2], geometry[3]
    column = place % width + geometry[7] - j
    row = place // width % height + geometry[6] - i
    if geometry[9]:
        column = (column + width) % width
    if geometry[8]:
        row = (row + height) % height
    reached = (row >= 0) & (column >= 0) & (row % geometry[4] == 0) & (column % geometry[5] == 0)
    row, column = row // geometry[4], column // geometry[5]
    inside = reached & (row < out_height) & (column < out_width)
    return (place // (width * height) * out_height + row) * out_width + column, inside


@triton.jit
def _patches(x, place, there, t, channels: tl.constexpr, geometry: tl.constexpr):
    """What the taps `t` of all channels of images `(B, channels, H, W)` read for output places, `(places, taps)`."""
    tap = t[None, :]
    source, inside = _source(place[:, None], tap % 9 // 3, tap % 3, geometry)
    pixels = geometry[0] * geometry[1]
    where = source + (source // pixels * (channels - 1) + tap // 9) * pixels
    return tl.load(x + where, mask=inside & there[:, None] & (tap < 9 * channels), other=0.0).to(tl.bfloat16)


@triton.jit
def _convolve(
    x,
    weight,
    y,
    sums,
    count,
    channels: tl.constexpr,
    features: tl.constexpr,
    taps: tl.constexpr,
    block: tl.constexpr,
    geometry: tl.constexpr,
):
    c = tl.arange(0, features)
    t = tl.arange(0, taps)
    kernel = tl.load(weight + c[None, :] * (9 * channels) + t[:, None], mask=t[:, None] < 9 * channels, other=0.0)
    kernel = kernel.to(tl.bfloat16)
    first = tl.zeros((features,), tl.float32)
    second = tl.zeros((features,), tl.float32)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        place = start + tl.arange(0, block)
        there = place < count
        value = tl.dot(_patches(x, place, there, t, channels, geometry), kernel).to(tl.bfloat16)
        tl.store(y + place[:, None] * features + c[None, :], value, mask=there[:, None])
        wide = value.to(tl.float32)
        first += tl.sum(wide, 0)
        second += tl.sum(wide * wide, 0)
    out = sums + c * tl.num_programs(0) + tl.program_id(0)
    tl.store(out, first)
    tl.store(out + features * tl.num_programs(0), second)


@triton.jit
def _convolve_backward(
    x,
    weight,
    y,
    gradient,
    sums_gradient,
    by_tap,
    partial,
    count,
    channels: tl.constexpr,
    features: tl.constexpr,
    taps: tl.constexpr,
    block: tl.constexpr,
    geometry: tl.constexpr,
):
    c = tl.arange(0, features)
    t = tl.arange(0, taps)
    first = tl.load(sums_gradient + c)[None, :]
    second = tl.load(sums_gradient + features + c)[None, :]
    used = t < 9 * channels
    total = tl.zeros((taps, features), tl.float32)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        place = start + tl.arange(0, block)
        there = place < count
        where = place[:, None] * features + c[None, :]
        g = tl.load(gradient + where, mask=there[:, None], other=0.0).to(tl.float32)
        value = tl.load(y + where, mask=there[:, None], other=0.0).to(tl.float32)
        g = tl.where(there[:, None], g + first + 2 * value * second, 0.0).to(tl.bfloat16)
        total = tl.dot(tl.trans(_patches(x, place, there, t, channels, geometry)), g, total)
        if by_tap is not None:
            kernel = tl.load(weight + c[:, None] * (9 * channels) + t[None, :], mask=used[None, :], other=0.0)
            shares = tl.dot(g, kernel.to(tl.bfloat16))
            place_and_tap = place[:, None] * (9 * channels) + t[None, :]
            tl.store(by_tap + place_and_tap, shares, mask=there[:, None] & used[None, :])
    out = (c[None, :] * (9 * channels) + t[:, None]) * tl.num_programs(0) + tl.program_id(0)
    tl.store(partial + out, total, mask=used[:, None])


@triton.jit
def _gather(by_tap, result, count, channels: tl.constexpr, block: tl.constexpr, geometry: tl.constexpr):
    """Add up what the places of the output ask of each pixel of the images."""
    place = tl.program_id(0) * block + tl.arange(0, block)
    there = place < count
    pixels = geometry[0] * geometry[1]
    for channel in tl.static_range(channels):
        total = tl.zeros((block,), tl.float32)
        for tap in tl.static_range(9):
            target, inside = _target(place, tap // 3, tap % 3, geometry)
            total += tl.load(by_tap + (target * channels + channel) * 9 + tap, mask=inside & there, other=0.0)
        tl.store(result + place + (place // pixels * (channels - 1) + channel) * pixels, total, mask=there)


@triton.jit
def _moments(y, sums, count, features: tl.constexpr, block: tl.constexpr):
    c = tl.arange(0, features)
    first = tl.zeros((features,), tl.float32)
    second = tl.zeros((features,), tl.float32)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        place = start + tl.arange(0, block)
        where = place[:, None] * features + c[None, :]
        value = tl.load(y + where, mask=(place < count)[:, None], other=0.0).to(tl.float32)
        first += tl.sum(value, 0)
        second += tl.sum(value * value, 0)
    out = sums + c * tl.num_programs(0) + tl.program_id(0)
    tl.store(out, first)
    tl.store(out + features * tl.num_programs(0), second)


@triton.jit
def _total_gradient(y, gradient, sums_gradient, result, count, features: tl.constexpr, block: tl.constexpr):
    """The gradient of features: their own, and that of their sum and of the sum of their squares."""
    where = tl.program_id(0) * block + tl.arange(0, block)
    there = where < count
    first = tl.load(sums_gradient + where % features)
    second = tl.load(sums_gradient + features + where % features)
    g = tl.load(gradient + where, mask=there, other=0.0).to(tl.float32)
    value = tl.load(y + where, mask=there, other=0.0).to(tl.float32)
    tl.store(result + where, (g + first + 2 * value * second).to(tl.bfloat16), mask=there)


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
    out = sums + k * tl.num_programs(0) + tl.program_id(0)
    tl.store(out, products)
    tl.store(out + channels * tl.num_programs(0), inner)
    tl.store(out + 2 * channels * tl.num_programs(0), outer)


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
    place = tl.program_id(1) * block + tl.arange(0, block)  # in a row of features
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
        if row_weights is None:
            top, index = tl.max(tl.where(inside, value, float("-inf")), 0, return_indices=True)
            if start == 0:
                best, winner = top, index
            else:
                winner = tl.where(top > best, start + index, winner)
                best = tl.maximum(top, best)
        else:
            if centred:
                value -= tl.where(b > 0, b, slope * b)
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
    out = sums + k * tl.num_programs(0) + tl.program_id(0)
    tl.store(out, products)
    tl.store(out + channels * tl.num_programs(0), inner)
    tl.store(out + 2 * channels * tl.num_programs(0), outer)


def _geometry(height: int, width: int, stride: list[int], padding: list[int], wraps: list[bool]) -> tuple[int, ...]:
    sizes = [(n + 2 * p - 3) // s + 1 for n, p, s in zip((height, width), padding, stride, strict=True)]
    return (height, width, *sizes, *stride, *padding, *wraps)


def _programs(places: int):
    return min(_PROGRAMS, triton.cdiv(places, _BLOCK))


def _taps(channels: int):
    return triton.next_power_of_2(max(9 * channels, 16))


def _empty(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], wraps: list[bool]
) -> tuple[Tensor, Tensor]:
    batch, _, height, width = x.shape
    features = weight.shape[0]
    _, _, out_height, out_width, *_ = _geometry(height, width, stride, padding, wraps)
    y = x.new_empty(batch, out_height, out_width, features, dtype=torch.bfloat16)
    return y, x.new_empty(2, features, _programs(batch * out_height * out_width))


@torch.library.custom_op("equivariant_transformers::convolve", mutates_args=())
def convolve(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], wraps: list[bool]
) -> tuple[Tensor, Tensor]:
    """Images `(B, C, H, W)` of few channels with 3x3 kernels `(F, C, 3, 3)`: features `(B, h, w, F)` in bfloat16.

    Lists are (along H, along W); axes that wrap must have a padding of 1. Also returns sums `(2, F, programs)` of the
    features and of their squares, of which only the total over programs may be used.
    """
    channels, height, width = x.shape[1:]
    y, sums = _empty(x, weight, stride, padding, wraps)
    geometry = _geometry(height, width, stride, padding, wraps)
    features = weight.shape[0]
    count = y.numel() // features
    _convolve[(sums.shape[2],)](
        x, weight, y, sums, count, channels, features, _taps(channels), _BLOCK, geometry, **_LAUNCH
    )
    return y, sums


convolve.register_fake(_empty)


@torch.library.custom_op("equivariant_transformers::convolve_backward", mutates_args=())
def convolve_backward(
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    gradient: Tensor,
    sums_gradient: Tensor,
    stride: list[int],
    padding: list[int],
    wraps: list[bool],
    for_images: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of `convolve`: images, if wanted, and kernels, to be added up `(F, C, 3, 3, programs)`."""
    batch, channels, height, width = x.shape
    features = weight.shape[0]
    geometry = _geometry(height, width, stride, padding, wraps)
    count = y.numel() // features
    partial = weight.new_empty(*weight.shape, _programs(count))
    by_tap = x.new_empty(count, 9 * channels) if for_images else None
    _convolve_backward[(partial.shape[4],)](
        x, weight, y, gradient, sums_gradient, by_tap, partial, count, channels, features, _taps(channels), _BLOCK,
        geometry, **_LAUNCH,
    )  # fmt: skip
    if by_tap is None:
        return x.new_empty(0), partial
    result = torch.empty_like(x)
    pixels = batch * height * width
    _gather[(triton.cdiv(pixels, 256),)](by_tap, result, pixels, channels, 256, geometry, **_LAUNCH)
    return result, partial


@convolve_backward.register_fake
def _(x, weight, y, gradient, sums_gradient, stride, padding, wraps, for_images):
    partial = weight.new_empty(*weight.shape, _programs(y.numel() // weight.shape[0]))
    return torch.empty_like(x) if for_images else x.new_empty(0), partial


def _remember(ctx, inputs, output) -> None:
    x, weight, *ctx.places = inputs
    ctx.save_for_backward(x, weight, output[0])


def _differentiate(ctx, gradient: Tensor, sums_gradient: Tensor):
    x, weight, y = ctx.saved_tensors
    total = sums_gradient[..., 0].contiguous()  # the same for all programs, as only their total is used
    wanted = ctx.needs_input_grad[0]
    images, kernels = convolve_backward(x, weight, y, gradient.contiguous(), total, *ctx.places, wanted)
    return images if wanted else None, kernels.sum(-1), None, None, None


convolve.register_autograd(_differentiate, setup_context=_remember)


@torch.library.custom_op("equivariant_transformers::convolve_features", mutates_args=())
def convolve_features(x: Tensor, weight: Tensor, narrow: Tensor, padding: list[int]) -> tuple[Tensor, Tensor]:
    """Features `(B, H, W, C)`, finished, with 3x3 kernels `(F, C, 3, 3)`; results as of `convolve`.

    `narrow` `(F, 3, 3, C)` are the kernels in bfloat16.
    """
    y = F.conv2d(_as_images(x), _as_images(narrow), padding=padding).permute(0, 2, 3, 1).contiguous()
    features = weight.shape[0]
    count = y.numel() // features
    sums = x.new_empty(2, features, _programs(count), dtype=torch.float32)
    _moments[(sums.shape[2],)](y, sums, count, features, _BLOCK, **_LAUNCH)
    return y, sums


@convolve_features.register_fake
def _(x, weight, narrow, padding):
    height, width = (n + 2 * p - 2 for n, p in zip(x.shape[1:3], padding, strict=True))
    y = x.new_empty(x.shape[0], height, width, weight.shape[0])
    return y, x.new_empty(2, weight.shape[0], _programs(x.shape[0] * height * width), dtype=torch.float32)


@torch.library.custom_op("equivariant_transformers::convolve_features_backward", mutates_args=())
def convolve_features_backward(
    x: Tensor, narrow: Tensor, turned: Tensor, padding: list[int], y: Tensor, gradient: Tensor, sums_gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of `convolve_features`, that of the kernels as `(F, 3, 3, C)`.

    `turned` `(C, 3, 3, F)` are the kernels turned by half a turn.

    The gradient of the features is a convolution too, which cuDNN does in half the time of what it has for gradients.
    """
    total = torch.empty_like(y)
    _total_gradient[(triton.cdiv(y.numel(), 1024),)](
        y, gradient, sums_gradient, total, y.numel(), y.shape[3], 1024, **_LAUNCH
    )
    images = F.conv2d(_as_images(total), _as_images(turned), padding=[2 - p for p in padding])
    options = ([1, 1], padding, [1, 1], False, [0, 0], 1, [False, True, False])
    _, kernels, _ = torch.ops.aten.convolution_backward(
        _as_images(total), _as_images(x), _as_images(narrow), None, *options
    )
    return images.permute(0, 2, 3, 1).contiguous(), kernels.permute(0, 2, 3, 1).contiguous()


@convolve_features_backward.register_fake
def _(x, narrow, turned, padding, y, gradient, sums_gradient):
    return torch.empty_like(x), torch.empty_like(narrow)


def _as_images(features: Tensor) -> Tensor:
    """`(B, H, W, C)` as `(B, C, H, W)` in the same memory."""
    return features.permute(0, 3, 1, 2)


def _remember_features(ctx, inputs, output) -> None:
    x, _, narrow, ctx.padding = inputs
    ctx.save_for_backward(x, narrow, output[0])


def _differentiate_features(ctx, gradient: Tensor, sums_gradient: Tensor):
    x, narrow, y = ctx.saved_tensors
    turned = narrow.flip(1, 2).permute(3, 1, 2, 0).contiguous()
    total = sums_gradient[..., 0].contiguous()
    features, kernels = convolve_features_backward(x, narrow, turned, ctx.padding, y, gradient.contiguous(), total)
    return features, kernels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format), None, None


convolve_features.register_autograd(_differentiate_features, setup_context=_remember_features)


@torch.library.custom_op("equivariant_transformers::activate", mutates_args=())
def activate(x: Tensor, scale: Tensor, shift: Tensor, slope: float, centred: bool, window: int) -> Tensor:
    """Features `(B, H, W, C)` normalised by `scale` and `shift` `(C,)` and activated, and averaged over windows."""
    batch, height, width, channels = x.shape
    result = x.new_empty(batch, height // window, width // window, channels)
    count = result.numel()
    _activate[(triton.cdiv(count, 1024),)](
        x, scale, shift, result, count, slope, centred, window, channels, height, width, 1024, **_LAUNCH
    )
    return result


@activate.register_fake
def _(x, scale, shift, slope, centred, window):
    return x.new_empty(x.shape[0], x.shape[1] // window, x.shape[2] // window, x.shape[3])


@torch.library.custom_op("equivariant_transformers::activate_backward", mutates_args=())
def activate_backward(
    x: Tensor, scale: Tensor, shift: Tensor, slope: float, window: int, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of `activate`: features, and sums `(3, C, programs)` from which those of scale and shift follow."""
    _, height, width, channels = x.shape
    count = x.numel() // channels
    result = torch.empty_like(x)
    sums = scale.new_empty(3, channels, _programs(count))
    _activate_backward[(sums.shape[2],)](
        x, scale, shift, gradient, result, sums, count, slope, window, channels, height, width, _BLOCK, **_LAUNCH
    )
    return result, sums


@activate_backward.register_fake
def _(x, scale, shift, slope, window, gradient):
    return torch.empty_like(x), scale.new_empty(3, x.shape[3], _programs(x.numel() // x.shape[3]))


def _remember_activation(ctx, inputs, output) -> None:
    x, scale, shift, ctx.slope, ctx.centred, ctx.window = inputs
    ctx.save_for_backward(x, scale, shift)


def _differentiate_activation(ctx, gradient: Tensor):
    x, scale, shift = ctx.saved_tensors
    features, sums = activate_backward(x, scale, shift, ctx.slope, ctx.window, gradient.contiguous())
    return features, *_affine_gradients(sums, shift, ctx.slope, ctx.centred), None, None, None


def _affine_gradients(sums: Tensor, shift: Tensor, slope: float, centred: bool) -> tuple[Tensor, Tensor]:
    """The gradients of a scale and a `shift` `(C,)` from sums `(3, C, programs)`."""
    products, inner, outer = (part.sum(1) for part in sums.unbind(0))
    return products, inner - torch.where(shift > 0, 1.0, slope) * outer if centred else inner


activate.register_autograd(_differentiate_activation, setup_context=_remember_activation)


@torch.library.custom_op("equivariant_transformers::pool", mutates_args=())
def pool(
    x: Tensor, scale: Tensor, shift: Tensor, slope: float, centred: bool, row_weights: Tensor | None, sheets: int
) -> tuple[Tensor, Tensor]:
    """Features `(B * sheets, H, W, C)`, normalised and activated, to `(B, W, C)`: the maximum over sheets and rows.

    With `row_weights` `(H,)` it is a weighted sum instead. Also returns the rows of the maxima.
    """
    images, height, width, channels = x.shape
    rows = sheets * height
    result = x.new_empty(images // sheets, width, channels, dtype=torch.float32)
    found = x.new_empty(result.shape if row_weights is None else (0,), dtype=torch.int16)
    chunk = min(triton.next_power_of_2(rows), _ROWS)
    block = 4096 // chunk
    _pool[(images // sheets, triton.cdiv(width * channels, block))](
        x, scale, shift, row_weights, result, found, slope, centred, channels, rows, height, width, chunk, block,
        **_LAUNCH,
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
    """The gradients of `pool`: features, and sums `(3, C, programs)` from which those of scale and shift follow."""
    _, height, width, channels = x.shape
    count = x.numel() // channels
    result = torch.empty_like(x)
    sums = scale.new_empty(3, channels, _programs(count))
    _pool_backward[(sums.shape[2],)](
        x, scale, shift, row_weights, found, gradient, result, sums, count, slope, channels, sheets * height, height,
        width, _BLOCK, **_LAUNCH,
    )  # fmt: skip
    return result, sums


@pool_backward.register_fake
def _(x, scale, shift, slope, row_weights, sheets, found, gradient):
    return torch.empty_like(x), scale.new_empty(3, x.shape[3], _programs(x.numel() // x.shape[3]))


def _remember_pool(ctx, inputs, output) -> None:
    x, scale, shift, ctx.slope, ctx.centred, row_weights, ctx.sheets = inputs
    ctx.save_for_backward(x, scale, shift, row_weights, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate_pool(ctx, gradient: Tensor, _found):
    x, scale, shift, row_weights, found = ctx.saved_tensors
    features, sums = pool_backward(x, scale, shift, ctx.slope, row_weights, ctx.sheets, found, gradient.contiguous())
    return features, *_affine_gradients(sums, shift, ctx.slope, ctx.centred), None, None, None, None


pool.register_autograd(_differentiate_pool, setup_context=_remember_pool)
