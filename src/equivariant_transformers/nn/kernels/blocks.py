"""Batch normalisation, SiLU, a shortcut and padding that wraps around, in the kernels of `normalisation`.

This module implements `BlockOperations` on a GPU, with first derivatives. It needs Triton.
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
from equivariant_transformers.nn.kernels.launch import programs
from equivariant_transformers.nn.kernels.normalisation import (
    activate_backward_kernel,
    activate_kernel,
    moments_backward_kernel,
    moments_kernel,
    statistics_kernel,
)
from equivariant_transformers.nn.kernels.plain import Padding, Prepared

_VALUES = 2048  # that a program processes at a time


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
        activate_kernel[(triton.cdiv(count, block),)](
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
        moments_kernel[(parts,)](y, norm.running_mean, sums, count, channels, lanes, block, _compute(y))
        statistics_kernel[(channels,)](
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
            moments_backward_kernel[(parts,)](
                gradient, y, mean, variance, weight, bias, sums, count, ctx.epsilon, *common, ctx.around, lanes, block,
                _compute(y),
            )  # fmt: skip
            totals = sums.sum(2)
            activate_backward_kernel[(triton.cdiv(places, block),)](
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
