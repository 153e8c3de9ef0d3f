"""Registration of the sampler as the operator `torch.ops.equivariant_transformers.sample`.

On a GPU the operator is one kernel, and its gradient another. On the CPU it consists of the operations of
`sampler.by_operations`, which torch differentiates. Fake tensors, `torch.compile`, `torch.export` and autocast take
either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equivariant_transformers.geometry import kernels
from equivariant_transformers.geometry.frame import Size
from equivariant_transformers.geometry.sampler import SHOWN, Target, by_operations
from equivariant_transformers.geometry.steps import coordinate_dtype

_NAME = "equivariant_transformers::sample"
_library = torch.library.Library("equivariant_transformers", "FRAGMENT")
_library.define(
    "sample(Tensor images, Tensor matrices, Tensor? points, Tensor? fill, Tensor? mask, SymInt[2] size, "
    "SymInt[2] frame, bool wants_valid) -> (Tensor, Tensor)"
)
_library.define(
    "sample_backward(Tensor gradient, Tensor images, Tensor matrices, Tensor? points, Tensor? fill, SymInt[2] frame, "
    "bool for_images, bool for_matrices, bool for_fill) -> (Tensor, Tensor, Tensor)"
)


def sample(
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    mask: Tensor | None,
    size: Size,
    frame: Size,
    wants_valid: bool,
) -> tuple[Tensor, Tensor | None]:
    """Sample `images` `(B, C, H, W)` bilinearly through `matrices` `(B, 3, 3)`, as `(B, C, *size)`.

    Args:
        images: images of any floating-point dtype and any strides.
        matrices: maps from the output frame to the input frame.
        points: points `(size[0] * size[1], 2)` of the output frame; None for the pixel centres of a picture of `size`.
        fill: value `(B, C)` outside the images and beyond the horizon; None for 0.
        mask: mask `(B, 1, H, W)` of the pixels that show the picture; None if all do.
        size: rows and columns of the output.
        frame: size of a picture whose `extent` the images span.
        wants_valid: whether to return the mask `(B, *size)` of the samples inside the images and inside `mask`.
    """
    arguments = (images, matrices, points, fill, mask, size, frame, wants_valid)
    tensors = arguments[:5]
    # The dispatcher of torch takes longer than a small kernel, so it is called only if something else tracks.
    if not (images.device.type in kernels.DEVICES and kernels.is_unwatched(tensors)):
        result, valid = torch.ops.equivariant_transformers.sample(*arguments)
    elif torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        result, valid = _Sample.apply(*arguments)
    else:
        result, valid = _by_kernel(*arguments)
    return result, valid if wants_valid else None


def _layout(images: Tensor) -> torch.memory_format:
    """Return the memory format of `images`: channels last if the channels of a pixel are neighbours in memory."""
    return torch.channels_last if images.shape[1] > 1 and images.stride(1) == 1 else torch.contiguous_format


def _empty_like(images: Tensor, size: Size, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty tensor `(B, C, *size)` in the memory format of `images`, and by default of their dtype."""
    shape = (*images.shape[:2], *size)
    return torch.empty(shape, dtype=dtype or images.dtype, device=images.device, memory_format=_layout(images))


def _results(images: Tensor, size: Size, wants_valid: bool) -> tuple[Tensor, Tensor]:
    """Return empty tensors for the samples and for the mask of those inside, which has no pixels if not wanted."""
    shape = (images.shape[0], *size) if wants_valid else (0,)
    return _empty_like(images, size), torch.empty(shape, dtype=torch.bool, device=images.device)


@torch.library.register_fake(_NAME, lib=_library)
def _(
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    mask: Tensor | None,
    size: Size,
    frame: Size,
    wants_valid: bool,
) -> tuple[Tensor, Tensor]:
    return _results(images, size, wants_valid)


def _by_kernel(
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    mask: Tensor | None,
    size: Size,
    frame: Size,
    wants_valid: bool,
) -> tuple[Tensor, Tensor]:
    from equivariant_transformers.geometry.kernels import sampling

    result, valid = _results(images, size, wants_valid)
    if mask is not None:
        mask = mask.contiguous().expand(images.shape[0], -1, -1, -1)
    sampling.forward(
        images,
        _rows_together(matrices),
        None if points is None else points.contiguous(),
        fill,
        mask,
        result,
        valid if wants_valid else None,
        frame,
        SHOWN,
    )
    return result, valid


def _by_operations(
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    mask: Tensor | None,
    size: Size,
    frame: Size,
    wants_valid: bool,
) -> tuple[Tensor, Tensor]:
    size, frame = (size[0], size[1]), (frame[0], frame[1])
    grid = None if points is None else points.reshape(*size, 2)
    outside = 0.0 if fill is None else fill[:, :, None, None]
    target = Target(grid, size, frame, wants_valid, mask)
    result, valid = by_operations((matrices,), images, target, fill=outside)
    shape = (images.shape[0], *size)
    return result.contiguous(memory_format=_layout(images)), images.new_empty(
        0, dtype=torch.bool
    ) if valid is None else (valid.expand(shape).contiguous())


def _backward_by_kernel(
    gradient: Tensor,
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    frame: Size,
    for_images: bool,
    for_matrices: bool,
    for_fill: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from equivariant_transformers.geometry.kernels import sampling

    dtype = coordinate_dtype((matrices,), images)
    spread = _empty_like(images, (images.shape[2], images.shape[3]), dtype).zero_() if for_images else None
    matrix_sums, fill_sums = sampling.backward(
        gradient.contiguous(memory_format=_layout(images)),
        images,
        _rows_together(matrices),
        None if points is None else points.contiguous(),
        fill,
        spread,
        frame,
        for_matrices,
        for_fill,
    )
    nothing = images.new_empty(0)
    return (
        nothing if spread is None else spread.to(images.dtype),
        nothing if matrix_sums is None else matrix_sums.reshape(-1, 3, 3).to(matrices.dtype),
        nothing if fill_sums is None or fill is None else fill_sums.to(fill.dtype),
    )


@torch.library.register_fake("equivariant_transformers::sample_backward", lib=_library)
def _(
    gradient: Tensor,
    images: Tensor,
    matrices: Tensor,
    points: Tensor | None,
    fill: Tensor | None,
    frame: Size,
    for_images: bool,
    for_matrices: bool,
    for_fill: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = images.new_empty(0)
    return (
        _empty_like(images, (images.shape[2], images.shape[3])) if for_images else nothing,
        matrices.new_empty(images.shape[0], 3, 3) if for_matrices else nothing,
        fill.new_empty(images.shape[:2]) if for_fill and fill is not None else nothing,
    )


def _rows_together(matrices: Tensor) -> Tensor:
    """Return `matrices` `(B, 3, 3)` with the nine entries of each in a row of memory."""
    return matrices if matrices.stride()[1:] == (3, 1) else matrices.contiguous()


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    images, matrices, points, fill, _mask, _size, frame, _wants_valid = inputs
    ctx.save_for_backward(images, matrices, points, fill)
    ctx.frame = frame


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    for_images, for_matrices, _for_points, for_fill = ctx.needs_input_grad[:4]
    saved = (gradient, *ctx.saved_tensors)
    alone = gradient.device.type in kernels.DEVICES and kernels.is_unwatched(saved) and not torch.is_grad_enabled()
    function = _backward_by_kernel if alone else torch.ops.equivariant_transformers.sample_backward
    found = function(*saved, ctx.frame, for_images, for_matrices, for_fill)  # type: ignore[call-arg]
    wanted = (for_images, for_matrices, for_fill)
    images, matrices, fill = (part if asked else None for part, asked in zip(found, wanted, strict=True))
    return images, matrices, None, fill, None, None, None, None


class _Sample(torch.autograd.Function):
    """The operator with its gradient, without the dispatcher of torch."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _by_kernel(*inputs)
        ctx.mark_non_differentiable(output[1])
        _remember(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, valid: Tensor | None) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, gradient, valid)


torch.library.register_autograd(_NAME, _differentiate, setup_context=_remember, lib=_library)
for _key in ("CPU", "CUDA"):
    _fused = _key.lower() in kernels.DEVICES
    _library.impl("sample", _by_kernel if _fused else _by_operations, _key)
    if _fused:
        _library.impl("sample_backward", _backward_by_kernel, _key)
    else:
        _library.impl("sample", _by_operations, f"Autograd{_key}")
