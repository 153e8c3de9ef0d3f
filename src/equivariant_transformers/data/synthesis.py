"""Generation of transformed digits, shared by all data sets made from MNIST."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.imageset import ImageSet, statistics
from equivariant_transformers.data.mnist_set import Digits
from equivariant_transformers.geometry import projective
from equivariant_transformers.geometry.groups import group
from equivariant_transformers.geometry.warp import Warp

TRANSLATIONS = ("x_translation", "y_translation")


def pose_matrix(poses: Tensor, names: Sequence[str]) -> Tensor:
    r"""Return the product $T_{\theta_1} T_{\theta_2} \cdots$ `(N, 3, 3)` of the named groups' matrices at `poses`.

    `poses` has shape `(N, k)`. For the `poses` and `pose_names` of a data set, `Warp.projective` of the product maps
    the upright digits to the images.

    >>> pose_matrix(torch.tensor([[0.5, 1.0]]), ("x_shear", "y_translation"))
    tensor([[[ 1.0000, -0.5000, -0.5000],
             [ 0.0000,  1.0000,  1.0000],
             [ 0.0000,  0.0000,  1.0000]]])
    """
    matrix = torch.eye(3, dtype=poses.dtype, device=poses.device).expand(len(poses), 3, 3)
    for pose, name in zip(poses.unbind(-1), names, strict=True):
        matrix = matrix @ group(name).matrix(pose)
    return matrix


def image_set(
    base: Digits,
    poses: Tensor,
    pose_names: Sequence[str],
    *,
    size: int,
    name: str,
    origin: str,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    mode: Literal["bilinear", "sharp_bicubic"] = "bilinear",
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> ImageSet:
    """Generate the digits of `base`, centred on a black canvas of side `size` and transformed by `poses`.

    `poses` `(M N, k)` give M copies of N digits, ordered by copy and then by digit. `normalisation` is (mean, standard
    deviation), by default computed from the images.
    """
    images = _transformed(base.images, pose_matrix(poses, pose_names), size, mode, device, progress)
    mean, std = normalisation or statistics(images)
    return ImageSet(
        images=images,
        labels=base.labels.repeat(len(poses) // len(base.labels)).to(device),
        name=name,
        origin=origin,
        mean=mean,
        std=std,
        poses=poses.float().to(device),
        pose_names=tuple(pose_names),
    )


def _transformed(
    digits: Tensor,
    matrices: Tensor,
    size: int,
    mode: Literal["bilinear", "sharp_bicubic"],
    device: torch.device | str,
    progress: Report | None,
) -> Tensor:
    """Transform `digits` `(N, 28, 28)` by `matrices` `(M N, 3, 3)` to uint8 images `(M N, 1, size, size)`."""
    matrices = matrices.float().to(device)
    canvases = pad(digits.to(device)[:, None], [(size - digits.shape[-1]) // 2] * 4)
    images = torch.empty(len(matrices), 1, size, size, dtype=torch.uint8, device=device)
    on_cpu = images.device.type == "cpu"
    chunk = max(1, 2 ** (17 if on_cpu else 24) // size**2)

    def fill(start: int) -> int:
        stop = min(start + chunk, len(images))
        again = torch.arange(start, stop, device=images.device) % len(digits)
        seen = Warp.projective(matrices[start:stop]).image(canvases[again].float(), mode=mode)
        images[start:stop] = seen.round().clamp(0, 255).to(torch.uint8)
        return stop

    with _independent_threads() if on_cpu else nullcontext() as pool:
        for stop in (pool.map if pool else map)(fill, range(0, len(images), chunk)):
            if progress:
                progress("transforming digits", stop / len(images))
    return images


@contextmanager
def _independent_threads() -> Iterator[ThreadPoolExecutor]:
    """Open a pool with as many threads as torch uses, in which torch runs each operation on a single thread.

    Operations split among threads wait for one another. This is slow for small operations and on a busy machine.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(usual)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(usual)


def placed(digits: Tensor, poses: Tensor, names: Sequence[str], where: Tensor, *, size: int) -> Tensor:
    """Return poses `(N, 2)` of `TRANSLATIONS` that place `digits` `(N, 28, 28)`, transformed by `poses`, on a canvas.

    `where` `(N, 2)` in [0, 1] chooses among all positions at which the digit is not cropped, from left to right and
    from top to bottom. A digit that is larger than the canvas is centred.
    """
    pitch = 2 / (size - 1)
    count = digits.shape[-1]
    ticks = pitch * (torch.arange(count, dtype=poses.dtype) - (count - 1) / 2)
    x, y = ticks.repeat(count), ticks.repeat_interleave(count)
    ways = projective.inverse(pose_matrix(poses, names))  # map points of the digit to the canvas
    ink = digits.flatten(1) > 0
    shifts = torch.empty_like(where)
    for start in range(0, len(digits), 4096):
        some = slice(start, start + 4096)
        for axis in (0, 1):
            way = ways[some, axis]
            at = way[:, :1] * x + way[:, 1:2] * y
            # An interpolated pixel fades to zero over one pixel of the digit in all directions.
            fade = pitch * way[:, :2].abs().sum(-1) - pitch
            lowest = -1 + fade - at.masked_fill(~ink[some], torch.inf).amin(-1)
            highest = 1 - fade - at.masked_fill(~ink[some], -torch.inf).amax(-1)
            room = (highest - lowest).clamp_min(0)
            shifts[some, axis] = (lowest + highest) / 2 + (where[some, axis] - 0.5) * room
    return -shifts


def uniform(count: int, ranges: Sequence[tuple[float, float]], generator: torch.Generator) -> Tensor:
    """Draw numbers `(count, k)`, float64, from the k `ranges`. A seed gives the same numbers on every machine.

    >>> uniform(2, [(0, 1), (-3, -3)], torch.Generator().manual_seed(0))[:, 1]
    tensor([-3., -3.], dtype=torch.float64)
    """
    low, high = torch.tensor(ranges, dtype=torch.float64).unbind(-1)
    return low + (high - low) * torch.rand(count, len(ranges), dtype=torch.float64, generator=generator)
