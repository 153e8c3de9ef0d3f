"""Families of one-parameter groups that a search runs over: all 3x3 generators, or all polynomial vector fields."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from equivariant_transformers.geometry.groups import Group, IntegratedFlow
from equivariant_transformers.geometry.warp import Warp

_STEPS = 2  # Runge-Kutta steps while searching; the group that is returned uses the default of `Group.from_flow`


class Family(Protocol):
    """Linear space of generators. A generator is given by its coefficients in a basis."""

    @property
    def dimension(self) -> int:
        """Number of coefficients of a generator."""

    def warp(self, coefficients: Tensor, theta: Tensor) -> Warp:
        r"""Return the warps of $T_\theta$ for theta `(B,)` and coefficients `(dimension,)` or `(B, dimension)`."""

    def group(self, coefficients: Tensor, name: str) -> Group:
        """Return the group of `coefficients`."""


@dataclass(frozen=True)
class Projective:
    """Generators of homographies: the eight-dimensional space of 3x3 matrices of trace 0."""

    dimension: int = 8

    def generator(self, coefficients: Tensor) -> Tensor:
        """Return the 3x3 generator of `coefficients`."""
        basis = torch.tensor(_MATRICES, dtype=coefficients.dtype, device=coefficients.device)
        return torch.einsum("...k,kij->...ij", coefficients, basis)

    def warp(self, coefficients: Tensor, theta: Tensor) -> Warp:
        return Warp((torch.linalg.matrix_exp(theta[:, None, None] * self.generator(coefficients)),))

    def group(self, coefficients: Tensor, name: str) -> Group:
        return Group.from_generator(self.generator(coefficients), name=name)


@dataclass(frozen=True)
class Polynomial:
    """Vector fields whose two components are polynomials of x and y up to a degree."""

    degree: int = 3

    @property
    def powers(self) -> list[tuple[int, int]]:
        """Exponents of x and y of the monomials."""
        return [(i, j) for i, j in product(range(self.degree + 1), repeat=2) if i + j <= self.degree]

    @property
    def dimension(self) -> int:
        return 2 * len(self.powers)

    def warp(self, coefficients: Tensor, theta: Tensor) -> Warp:
        return Warp.flow(IntegratedFlow(PolynomialField(coefficients, tuple(self.powers)), _STEPS), theta)

    def group(self, coefficients: Tensor, name: str) -> Group:
        return Group.from_flow(vector_field=PolynomialField(coefficients, tuple(self.powers)), name=name)


@dataclass(frozen=True, eq=False)
class PolynomialField:
    """Vector field with `coefficients` of the monomials `powers`: those of the x component, then of the y component.

    Coefficients `(B, k)` give each image of a batch a field of its own.
    """

    coefficients: Tensor
    powers: tuple[tuple[int, int], ...]

    def __call__(self, points: Tensor) -> Tensor:
        x, y = points.clamp(-_FAR, _FAR).unbind(-1)  # a point that leaves the frame stays finite
        highest = max(i for i, _ in self.powers)
        of_x, of_y = ([torch.ones_like(t)] for t in (x, y))
        for _ in range(highest):
            of_x.append(of_x[-1] * x)
            of_y.append(of_y[-1] * y)
        monomials = torch.stack([of_x[i] * of_y[j] for i, j in self.powers], -1)
        weights = self.coefficients.to(points)
        if weights.ndim == 1:
            return monomials @ weights.view(2, -1).T
        return monomials @ weights.view(len(weights), 1, 2, -1).mT  # of points (B, h, w, 2)

    def __str__(self) -> str:
        """Return the formula, without the monomials below a hundredth of the largest."""
        parts = []
        for row in self.coefficients.view(2, -1).tolist():
            least = 0.01 * float(self.coefficients.abs().max())
            terms = [f"{c:+.3g}{_monomial(*p)}" for c, p in zip(row, self.powers, strict=True) if abs(c) > least]
            parts.append(" ".join(terms) or "0")
        return f"({parts[0]}, {parts[1]})"


def _monomial(i: int, j: int) -> str:
    factors = [name if power == 1 else f"{name}^{power}" for name, power in (("x", i), ("y", j)) if power]
    return "".join(f" {factor}" for factor in factors)


_FAR = 3.0
_MATRICES = (  # translations, rotation, dilation, two hyperbolic rotations, perspectives
    ((0.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.0)),
    ((0.0, -1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0)),
    ((1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, 0.0)),
    ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0)),
    ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
)
