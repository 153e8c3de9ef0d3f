"""One-parameter groups of plane transformations.

A group is a value. The eleven groups of the paper are the eleven generators in `GROUPS`; any other 3x3 generator makes
one with `Group.from_generator`, and a flow that no 3x3 matrix gives makes one with `Group.from_flow`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equivariant_transformers.geometry import exponential, projective
from equivariant_transformers.geometry.exponential import Matrix3
from equivariant_transformers.text import quote

T = TypeVar("T")
Flow = Callable[[Tensor, Tensor], Tensor]
VectorField = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Group:
    r"""A one-parameter group $\{T_\theta\}$ of transformations of the plane.

    Elements are written by their parameter: `compose(a, b)` is the parameter of $T_a T_b$ and `inverse(a)` that of
    $T_a^{-1}$. A group has either a `generator` $A$, with $T_\theta = \exp(\theta A)$ in homogeneous coordinates, or a
    `flow(theta, points)`. Make one with `Group.from_generator` or `Group.from_flow`.

    >>> group("x_translation").matrix(0.5)
    tensor([[1.0000, 0.0000, 0.5000],
            [0.0000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """

    name: str
    generator: Matrix3 | None = None
    flow: Flow | None = None
    period: float | None = None
    """The smallest positive theta with T_theta = identity, where there is one."""
    _terms: tuple[exponential.Term, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.generator is None) == (self.flow is None):
            raise ValueError(
                f"group {self.name!r} needs either a generator or a flow; use Group.from_generator(A, name=...)"
            )
        if self.generator is not None:  # what follows from it can be no other
            object.__setattr__(self, "generator", _checked(self.generator))
            object.__setattr__(self, "_terms", exponential.terms(self.generator))
            object.__setattr__(self, "period", exponential.period(self._terms))

    @staticmethod
    def from_generator(generator: Tensor | NDArray[Any] | Sequence[Sequence[float]], *, name: str = "custom") -> Group:
        r"""The group $T_\theta = \exp(\theta A)$ of a 3x3 generator $A$, acting on homogeneous coordinates.

        >>> spiral = Group.from_generator([[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]], name="spiral")
        >>> spiral.transform(torch.pi / 2, torch.tensor([1.0, 0.0]))[1]
        tensor(1.3691)
        """
        return Group(name, generator=generator)  # type: ignore[arg-type]  # which makes rows of any matrix

    @staticmethod
    def from_flow(
        flow: Flow | None = None,
        *,
        vector_field: VectorField | None = None,
        name: str = "custom",
        period: float | None = None,
        steps: int = 64,
    ) -> Group:
        """The group of a flow `(theta, points) -> points`, or of the flow that a vector field generates.

        Args:
            flow: the closed form; `theta` broadcasts against `points.shape[:-1]`.
            vector_field: `points -> velocities`, integrated numerically where no closed form is known.
            name: how the group is shown.
            period: the smallest positive theta with `flow(theta, x) = x`, where there is one.
            steps: Runge-Kutta steps for each transformation.
        """
        if (flow is None) == (vector_field is None):
            raise ValueError("from_flow takes either a closed-form flow or vector_field=..., and exactly one of them")
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if vector_field is not None:
            flow = IntegratedFlow(vector_field, steps)
        return Group(name, flow=flow, period=period)

    def matrix(self, theta: Tensor | float) -> Tensor:
        r"""$T_\theta$ as homogeneous matrices: theta `(...)` gives `(..., 3, 3)` of the same floating dtype.

        Entries that overflow (an exponential of a huge theta) saturate at the largest finite number.
        """
        if self.generator is None:
            raise TypeError(f"group {self.name!r} is a flow: no 3x3 matrix gives it. Use transform(theta, points)")
        theta = torch.as_tensor(theta)
        if not theta.is_floating_point():
            theta = theta.to(torch.get_default_dtype())
        return exponential.evaluate(self._terms, theta)

    def transform(self, theta: Tensor | float, points: Tensor) -> Tensor:
        r"""$T_\theta x$ for `points` `(..., 2)`; theta broadcasts against the points' leading shape.

        >>> group("x_shear").transform(0.5, torch.tensor([0.0, 1.0]))
        tensor([-0.5000, 1.0000])
        """
        theta = torch.as_tensor(theta, dtype=points.dtype, device=points.device)
        if self.flow is not None:
            return self.flow(theta, points)
        return projective.apply(self.matrix(theta), points)

    def vector_field(self, points: Tensor) -> Tensor:
        r"""The velocity $\partial T_\theta x / \partial\theta$ at theta = 0 of `points` `(..., 2)`."""
        known: VectorField | None = getattr(self.flow, "vector_field", None)
        if known is not None:
            return known(points)
        if self.flow is not None:
            zero = torch.zeros(points.shape[:-1], dtype=points.dtype, device=points.device)
            flow = self.flow
            velocity: Tensor = torch.func.jvp(lambda theta: flow(theta, points), (zero,), (torch.ones_like(zero),))[1]
            return velocity
        assert self.generator is not None
        generator = torch.tensor(self.generator, dtype=points.dtype, device=points.device)
        x, y, w = projective.homogeneous(generator, *points.unbind(-1))
        return torch.stack((x, y), -1) - points * w[..., None]

    def compose(self, a: Tensor, b: Tensor) -> Tensor:
        """The parameter of $T_a T_b$, brought into one period where the group has one."""
        return projective.wrap(a + b, self.period)

    def inverse(self, theta: Tensor) -> Tensor:
        r"""The parameter of $T_\theta^{-1}$."""
        return projective.wrap(-theta, self.period)


@dataclass(frozen=True)
class IntegratedFlow:
    """The flow of a vector field by classical Runge-Kutta steps of equal length."""

    vector_field: VectorField
    steps: int

    def __call__(self, theta: Tensor, points: Tensor) -> Tensor:
        h = (theta / self.steps)[..., None]
        for _ in range(self.steps):
            k1 = self.vector_field(points)
            k2 = self.vector_field(points + h / 2 * k1)
            k3 = self.vector_field(points + h / 2 * k2)
            k4 = self.vector_field(points + h * k3)
            points = points + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return points


def _checked(generator: Tensor | NDArray[Any] | Sequence[Sequence[float]]) -> Matrix3:
    """The rows of a 3x3 matrix that moves something."""
    a = np.asarray(generator.detach().cpu() if isinstance(generator, Tensor) else generator, dtype=np.float64)
    if a.shape != (3, 3):
        raise ValueError(f"a generator is a 3x3 matrix, got shape {a.shape}")
    if not np.isfinite(a).all():
        raise ValueError(f"a generator must be finite, got {a.tolist()}")
    if np.allclose(a, a[0, 0] * np.eye(3), rtol=0, atol=1e-12 * np.abs(a).max()):
        raise ValueError(f"generator {a.tolist()} moves nothing: every transformation would be the identity")
    rows: Matrix3 = tuple(tuple(float(entry) for entry in row) for row in a)  # type: ignore[assignment]
    return rows


def _radial_lens_flow(theta: Tensor, points: Tensor) -> Tensor:
    squared_radius = points.square().sum(-1)
    remaining = 1 - 2 * theta * squared_radius
    return points * torch.rsqrt(remaining.clamp_min(torch.finfo(points.dtype).eps))[..., None]


_GENERATORS: dict[str, Matrix3] = {
    "x_translation": ((0, 0, 1), (0, 0, 0), (0, 0, 0)),
    "y_translation": ((0, 0, 0), (0, 0, 1), (0, 0, 0)),
    "rotation": ((0, -1, 0), (1, 0, 0), (0, 0, 0)),
    "dilation": ((1, 0, 0), (0, 1, 0), (0, 0, 0)),
    "x_scale": ((1, 0, 0), (0, 0, 0), (0, 0, 0)),
    "y_scale": ((0, 0, 0), (0, 1, 0), (0, 0, 0)),
    "hyperbolic_rotation": ((1, 0, 0), (0, -1, 0), (0, 0, 0)),
    "x_shear": ((0, -1, 0), (0, 0, 0), (0, 0, 0)),
    "y_shear": ((0, 0, 0), (1, 0, 0), (0, 0, 0)),
    "x_perspective": ((0, 0, 0), (0, 0, 0), (1, 0, 0)),
    "y_perspective": ((0, 0, 0), (0, 0, 0), (0, 1, 0)),
}
GROUPS: dict[str, Group] = {name: Group.from_generator(a, name=name) for name, a in _GENERATORS.items()}
"""The paper's eleven one-parameter groups, by name."""

RADIAL_LENS = Group.from_flow(_radial_lens_flow, name="radial_lens")
r"""Radial lens distortion $T_\theta x = x / \sqrt{1 - 2\theta|x|^2}$, the flow of $|x|^2 x$: no 3x3 matrix gives it.

Positive theta is a pincushion, negative theta a barrel. Points with $2\theta|x|^2 \ge 1$ leave the plane; they
land very far away.
"""


def group(name: str | Group) -> Group:
    """The group called `name`; a `Group` is returned as it is.

    >>> group("dilation").vector_field(torch.tensor([2.0, 3.0]))
    tensor([2., 3.])
    """
    return name if isinstance(name, Group) else lookup(GROUPS, name, "group")


def lookup(table: dict[str, T], name: str, kind: str) -> T:
    """`table[name]`, with an error that lists the names and suggests the nearest one."""
    if isinstance(name, str) and name in table:
        return table[name]
    nearest = difflib.get_close_matches(str(name)[:100], table, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"unknown {kind} {quote(name)}.{hint} The {kind}s are: {', '.join(table)}")
