"""3x3 convolutions that also return the sums of their outputs and of the squares, for normalisation.

Features are `(B, H, W, C)` in bfloat16. Images with few channels are convolved by kernels of this module. Features are
convolved by cuDNN, with a custom backward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl
from torch import Tensor

from equivariant_transformers.geometry.kernels import on_device
from equivariant_transformers.nn.kernels.launch import BLOCK, LAUNCH, keep, programs

# A geometry is (height, width, out_height, out_width, stride_h, stride_w, pad_h, pad_w, wrap_h, wrap_w).


@triton.jit
def _source(place, i, j, geometry: tl.constexpr):
    """Return the input position that tap (i, j) reads for the output position `place`, and a mask of existing ones."""
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
    """Return the output position that reads the input position `place` by tap (i, j), and a mask of existing ones."""
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
    """Load the pixels `(places, taps)` of images `(B, channels, H, W)` that the taps `t` read for each output place."""
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
    keep(sums, 0, c, first)
    keep(sums, 1, c, second)


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
    """Sum the gradients of each pixel of the images over the output positions that read it."""
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
    keep(sums, 0, c, first)
    keep(sums, 1, c, second)


@triton.jit
def _total_gradient(y, gradient, sums_gradient, result, count, features: tl.constexpr, block: tl.constexpr):
    """Add the gradients of the sum of the features and of the sum of their squares to the gradient of the features."""
    where = tl.program_id(0) * block + tl.arange(0, block)
    there = where < count
    first = tl.load(sums_gradient + where % features)
    second = tl.load(sums_gradient + features + where % features)
    g = tl.load(gradient + where, mask=there, other=0.0).to(tl.float32)
    value = tl.load(y + where, mask=there, other=0.0).to(tl.float32)
    tl.store(result + where, (g + first + 2 * value * second).to(tl.bfloat16), mask=there)


def _geometry(height: int, width: int, stride: list[int], padding: list[int], wraps: list[bool]) -> tuple[int, ...]:
    sizes = [(n + 2 * p - 3) // s + 1 for n, p, s in zip((height, width), padding, stride, strict=True)]
    return (height, width, *sizes, *stride, *padding, *wraps)


def _taps(channels: int):
    return triton.next_power_of_2(max(9 * channels, 16))


def _empty(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], wraps: list[bool]
) -> tuple[Tensor, Tensor]:
    batch, _, height, width = x.shape
    features = weight.shape[0]
    _, _, out_height, out_width, *_ = _geometry(height, width, stride, padding, wraps)
    y = x.new_empty(batch, out_height, out_width, features, dtype=torch.bfloat16)
    return y, x.new_empty(2, features, programs(batch * out_height * out_width))


@torch.library.custom_op("equivariant_transformers::convolve", mutates_args=())
def convolve(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], wraps: list[bool]
) -> tuple[Tensor, Tensor]:
    """Convolve images `(B, C, H, W)` with 3x3 kernels `(F, C, 3, 3)` into features `(B, h, w, F)` in bfloat16.

    Images have few channels. Lists are (along H, along W). Axes that wrap must have a padding of 1. The second output
    holds partial sums `(2, F, programs)` of the features and of their squares; use only the total over programs.
    """
    channels, height, width = x.shape[1:]
    y, sums = _empty(x, weight, stride, padding, wraps)
    geometry = _geometry(height, width, stride, padding, wraps)
    features = weight.shape[0]
    count = y.numel() // features
    with on_device(x):
        _convolve[(sums.shape[2],)](
            x, weight, y, sums, count, channels, features, _taps(channels), BLOCK, geometry, **LAUNCH
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
    """Return gradients of `convolve`: images if `for_images`, and partial sums `(F, C, 3, 3, programs)` for kernels."""
    batch, channels, height, width = x.shape
    features = weight.shape[0]
    geometry = _geometry(height, width, stride, padding, wraps)
    count = y.numel() // features
    partial = weight.new_empty(*weight.shape, programs(count))
    by_tap = x.new_empty(count, 9 * channels) if for_images else None
    with on_device(x):
        _convolve_backward[(partial.shape[4],)](
            x, weight, y, gradient, sums_gradient, by_tap, partial, count, channels, features, _taps(channels), BLOCK,
            geometry, **LAUNCH,
        )  # fmt: skip
    if by_tap is None:
        return x.new_empty(0), partial
    result = torch.empty_like(x)
    pixels = batch * height * width
    with on_device(by_tap):
        _gather[(triton.cdiv(pixels, 256),)](by_tap, result, pixels, channels, 256, geometry, **LAUNCH)
    return result, partial


@convolve_backward.register_fake
def _(x, weight, y, gradient, sums_gradient, stride, padding, wraps, for_images):
    partial = weight.new_empty(*weight.shape, programs(y.numel() // weight.shape[0]))
    return torch.empty_like(x) if for_images else x.new_empty(0), partial


def _remember(ctx, inputs, output) -> None:
    x, weight, *ctx.places = inputs
    ctx.save_for_backward(x, weight, output[0])


def _differentiate(ctx, gradient: Tensor, sums_gradient: Tensor):
    x, weight, y = ctx.saved_tensors
    total = sums_gradient[..., 0].contiguous()  # equal for all programs, as only their total is used
    wanted = ctx.needs_input_grad[0]
    images, kernels = convolve_backward(x, weight, y, gradient.contiguous(), total, *ctx.places, wanted)
    return images if wanted else None, kernels.sum(-1), None, None, None


convolve.register_autograd(_differentiate, setup_context=_remember)


@torch.library.custom_op("equivariant_transformers::convolve_features", mutates_args=())
def convolve_features(x: Tensor, weight: Tensor, narrow: Tensor, padding: list[int]) -> tuple[Tensor, Tensor]:
    """Convolve activated features `(B, H, W, C)` with 3x3 kernels `(F, C, 3, 3)`; outputs as for `convolve`.

    `narrow` `(F, 3, 3, C)` holds the kernels in bfloat16.
    """
    y = F.conv2d(_as_images(x), _as_images(narrow), padding=padding).permute(0, 2, 3, 1).contiguous()
    features = weight.shape[0]
    count = y.numel() // features
    sums = x.new_empty(2, features, programs(count), dtype=torch.float32)
    with on_device(y):
        _moments[(sums.shape[2],)](y, sums, count, features, BLOCK, **LAUNCH)
    return y, sums


@convolve_features.register_fake
def _(x, weight, narrow, padding):
    height, width = (n + 2 * p - 2 for n, p in zip(x.shape[1:3], padding, strict=True))
    y = x.new_empty(x.shape[0], height, width, weight.shape[0])
    return y, x.new_empty(2, weight.shape[0], programs(x.shape[0] * height * width), dtype=torch.float32)


@torch.library.custom_op("equivariant_transformers::convolve_features_backward", mutates_args=())
def convolve_features_backward(
    x: Tensor, narrow: Tensor, turned: Tensor, padding: list[int], y: Tensor, gradient: Tensor, sums_gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `convolve_features`: features, and kernels as `(F, 3, 3, C)`.

    `turned` `(C, 3, 3, F)` holds the kernels rotated by 180 degrees. The gradient of the features is computed as a
    convolution with them, which takes half the time of cuDNN's backward.
    """
    total = torch.empty_like(y)
    with on_device(y):
        _total_gradient[(triton.cdiv(y.numel(), 1024),)](
            y, gradient, sums_gradient, total, y.numel(), y.shape[3], 1024, **LAUNCH
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
    """Return `(B, H, W, C)` as a view `(B, C, H, W)`."""
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
