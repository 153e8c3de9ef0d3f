"""Transformations of a group as warps, and the warp that removes a pose."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.geometry.warp import Warp


def group_warp(group: Group, theta: Tensor) -> Warp:
    r"""Return the warp of $T_\theta$ for theta `(B,)` or `()`."""
    return Warp((group.matrix(theta),)) if group.flow is None else Warp.flow(group.flow, theta)


def remove_pose(groups: Sequence[Group], pose: Tensor) -> Warp:
    r"""Return the warp of $T_\theta^{-1}$ for the pose `(B, k)` of `k` commuting groups."""
    warp = Warp.identity()
    for group, theta in zip(groups, pose.unbind(-1), strict=True):
        warp = warp.compose(group_warp(group, -theta))
    return warp
