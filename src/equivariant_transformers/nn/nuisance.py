"""Small random warps that leave the pose of a layer unchanged. Its predictor learns to ignore them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.buffers import Exact

AMOUNT = 0.1
"""Largest root mean square displacement by each generator, in half widths of the image."""
_REACH = 0.7  # half width of the square over which displacements are compared
_AFFINE = tuple(
    Group.from_generator(rows)
    for rows in (
        ((0, 0, 1), (0, 0, 0), (0, 0, 0)),  # translations
        ((0, 0, 0), (0, 0, 1), (0, 0, 0)),
        ((0, -1, 0), (1, 0, 0), (0, 0, 0)),  # rotation
        ((1, 0, 0), (0, 1, 0), (0, 0, 0)),  # dilation
        ((1, 0, 0), (0, -1, 0), (0, 0, 0)),  # aspect ratio, along the axes and along the diagonals
        ((0, 1, 0), (1, 0, 0), (0, 0, 0)),
    )
)


class Nuisance(Exact):
    r"""Random affine warps near the identity, without the part that belongs to given groups.

    From the vector field of each affine generator the nearest combination of the fields of `groups` is subtracted. A
    warp by what is left does not change, to first order, the pose that fits an image best.

    Args:
        groups: groups of a layer.

    >>> from equivariant_transformers import GROUPS
    >>> Nuisance((GROUPS["rotation"],)).generators.shape
    torch.Size([5, 3, 3])
    """

    generators: Tensor

    def __init__(self, groups: Sequence[Group]) -> None:
        super().__init__()
        self.keep_exact("generators", partial(_generators, tuple(groups)))

    def random(self, images: Tensor) -> Warp:
        """Return one random warp per image of `images` `(B, ...)`."""
        dtype, device = self.generators.dtype, self.generators.device
        amounts = torch.empty(images.shape[0], len(self.generators), dtype=dtype, device=device)
        small = torch.einsum("bk,kij->bij", amounts.uniform_(-AMOUNT, AMOUNT), self.generators)
        return Warp((torch.eye(3, dtype=dtype, device=device) + small,))


def _generators(groups: tuple[Group, ...], *, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    """Return the generators `(K, 3, 3)`, each with a root mean square displacement of 1.

    A flow has no generator to subtract: generators whose field resembles the field of the flow are left out.
    """
    exact: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
    line = torch.linspace(-_REACH, _REACH, 8, **exact)
    points = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
    fields = torch.stack([group.vector_field(points).flatten() for group in groups], -1)  # (coordinates, groups)
    kept = []
    for affine in _AFFINE:
        field = affine.vector_field(points).flatten()
        shares = torch.linalg.lstsq(fields, field[:, None]).solution[:, 0]
        rest = field - fields @ shares
        generator = torch.tensor(affine.generator, **exact)
        if all(group.generator is not None for group in groups):
            for share, group in zip(shares, groups, strict=True):
                generator = generator - share * torch.tensor(group.generator, **exact)
            least = 0.1
        else:
            least = 0.99
        if rest.norm() > least * field.norm():
            kept.append(generator * (len(rest) / 2) ** 0.5 / rest.norm())
    return torch.stack(kept).to(dtype=dtype, device=device)
