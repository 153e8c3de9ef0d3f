"""Launches of the kernels that sample images, forward and backward.

A program computes a tile of output pixels of one image, strip by strip, one pixel per thread and up to eight channels.
It maps the pixels, reads the four neighbours of each position, and writes the samples. Programs whose tile lies wholly
inside the input skip all tests of borders. The backward kernel computes the positions again. The gradients of matrices
and fill values are summed per tile, and the sums do not depend on the order in which programs finish. The gradient of
the images is accumulated by atomic additions, as in `grid_sample`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equivariant_transformers.geometry.kernels import on_device
from equivariant_transformers.geometry.kernels.backward import backward_kernel
from equivariant_transformers.geometry.kernels.forward import forward_kernel

WARPS = 4
"""Number of warps per program. A strip has one pixel per thread."""
STRIPS = 8
"""Number of strips in a tile."""
TILE_WIDTH = 32
"""Number of columns of a tile."""
PATCH_WIDTH = 16
"""Number of columns of the patch of pixels of a warp. Patches side by side fill a strip."""
CHANNELS = 8
"""Largest number of channels in a program."""
_NONE = (0, 0)  # strides of no fill value


def forward(
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    mask: Tensor | None,
    result: Tensor,
    valid: Tensor | None,
    frame: tuple[int, int],
    threshold: float,
) -> None:
    """Write the samples of `images` `(B, C, H, W)` to `result` `(B, C, h, w)`, see `operator.sample`.

    `result` is contiguous or channels last. The mask `(B, h, w)` of samples inside the images, and where the contiguous
    `mask` is above `threshold`, is written to `valid`.
    """
    plan = _plan(images.shape, images.stride(), images.dtype, matrices.dtype, result.shape[2:], points is not None)
    tensors = (images, matrices, points, fill, mask, result, valid)
    strides = (matrices.stride(0), *(_NONE if fill is None else fill.stride()), 0 if mask is None else mask.stride(0))
    flags = (fill is not None, mask is not None, valid is not None, threshold)
    _launch(forward_kernel, plan, tensors, (*frame, *strides), flags)


def backward(
    gradient: Tensor,
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    image_gradient: Tensor | None,
    frame: tuple[int, int],
    for_matrices: bool,
    for_fill: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Add the gradient of the images to `image_gradient`; return the gradients of matrices `(B, 9)` and fill `(B, C)`.

    `gradient` `(B, C, h, w)` is the gradient of the result of `forward`, with rows that follow each other in memory.
    """
    plan = _plan(images.shape, images.stride(), images.dtype, matrices.dtype, gradient.shape[2:], points is not None)
    (batch, channels), tiles = images.shape[:2], plan.programs[0] // images.shape[0]
    dtype = torch.float64 if torch.float64 in (images.dtype, matrices.dtype) else torch.float32
    matrix_sums = fill_sums = None
    if for_matrices:
        matrix_sums = torch.empty(batch, tiles * plan.programs[1], 9, dtype=dtype, device=images.device)
    if for_fill:
        fill_sums = torch.empty(batch, channels, tiles * STRIPS, dtype=dtype, device=images.device)
    tensors = (gradient, images, matrices, points, fill, image_gradient, matrix_sums, fill_sums)
    strides = (matrices.stride(0), *(_NONE if fill is None else fill.stride()))
    flags = (fill is not None, image_gradient is not None, for_matrices, for_fill)
    _launch(backward_kernel, plan, tensors, (*frame, *strides), flags)
    return None if matrix_sums is None else matrix_sums.sum(1), None if fill_sums is None else fill_sums.sum(2)


class _Plan(NamedTuple):
    """Launch parameters that both kernels share."""

    programs: tuple[int, int, int]
    sizes: tuple[int, ...]
    """Rows and columns of the output and of the input, blocks of channels, and strides of the input in blocks."""
    constants: tuple[object, ...]
    """Constants of both kernels, in the order of their arguments."""
    compiled: dict[tuple[object, ...], Any]
    """Compiled kernels, each of which fits the sizes above and the arguments of its key."""


def _launch(
    kernel: Any, plan: _Plan, tensors: tuple[Any, ...], numbers: tuple[int, ...], flags: tuple[object, ...]
) -> None:
    """Launch `kernel`, and keep it as compiled for such arguments.

    Triton keeps compiled kernels as well, but its search takes longer than the launch. It compiles for the types of
    tensors, for addresses that are multiples of 16, and for some values of integers; the plan and the key determine all
    of them.
    """
    kinds = [None if tensor is None else (tensor.dtype, tensor.data_ptr() % 16 == 0) for tensor in tensors]
    key = (kernel, numbers, flags, tensors[0].device, *kinds)
    arguments = (*tensors, *plan.sizes, *numbers, *flags, *plan.constants)
    compiled = plan.compiled.get(key)
    with on_device(tensors[0]):
        if compiled is None:  # always, where kernels are interpreted
            plan.compiled[key] = kernel[plan.programs](*arguments, num_warps=WARPS)
        else:
            compiled[plan.programs](*arguments)


@functools.lru_cache(maxsize=256)
def _plan(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    matrix_dtype: torch.dtype,
    size: tuple[int, int],
    on_points: bool,
) -> _Plan:
    """Return how to sample images of `shape` and `strides` at `size` points."""
    batch, channels, height, width = shape
    together = channels > 1 and strides[1] == 1
    block = math.gcd(16 // dtype.itemsize, channels, *strides[2:], strides[0]) if together else 1
    blocks, steps = channels // block, [stride if stride == 1 else stride // block for stride in strides]
    count = max(n for n in range(1, max(CHANNELS // block, 1) + 1) if blocks % n == 0)
    tile_height = STRIPS * 32 * WARPS // TILE_WIDTH
    tiles = triton.cdiv(size[0], tile_height) * triton.cdiv(size[1], TILE_WIDTH)
    span = sum((side - 1) * stride for side, stride in zip(shape[1:], strides[1:], strict=True))
    largest = max(span, channels * height * width, channels * size[0] * size[1], 2 * size[0] * size[1])
    wide = torch.float64 in (dtype, matrix_dtype)
    keep = not on_points and size == (height, width)
    epsilon = torch.finfo(torch.float64 if wide else torch.float32).eps
    compute, big = tl.float64 if wide else tl.float32, 2 * largest >= 2**31
    tile = (TILE_WIDTH, PATCH_WIDTH, 32 * WARPS, STRIPS)
    constants = (together, count, block, *tile, on_points, keep, compute, epsilon, big)
    return _Plan((batch * tiles, blocks // count, 1), (*size, height, width, blocks, *steps), constants, {})
