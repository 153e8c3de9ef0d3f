r"""Exponential of a constant 3x3 matrix in closed form, as a function of one parameter.

$\exp(\theta A) = \sum_k \theta^{p_k} e^{a_k\theta} \cos(b_k\theta)\, C_k$ (or sine), where $a_k + i b_k$ are the
eigenvalues of $A$. The terms are computed once, in float64. Their evaluation uses only elementary functions: it is
exact at theta = 0, differentiable, exportable and works in every floating dtype.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix3 = tuple[tuple[float, float, float], tuple[float, float, float], tuple[float, float, float]]
Array = NDArray[np.complex128]

_SAME_EIGENVALUE = 1e-5  # relative to the largest entry; LAPACK splits a defective pair by about 1e-8
_NILPOTENT = 1e-14  # relative to the largest entry cubed
_VERIFIED = 1e-9
_STEADY = 1e-9  # growth relative to the frequency below which it is a rounding error


@dataclass(frozen=True)
class Term:
    r"""Term $\theta^{p} e^{a\theta}\cos(b\theta)\,C$, or the same with sine."""

    coefficients: Matrix3
    power: int = 0
    rate: float = 0.0
    frequency: float = 0.0
    sine: bool = False

    def value(self, theta: Tensor) -> Tensor:
        """Return the scalar factor at theta `(...)`; it saturates before its product with a coefficient overflows.

        The angle, frequency times theta, must be finite.
        """
        factors = []
        largest = torch.finfo(theta.dtype).max
        if self.power:
            factors.append(theta if self.power == 1 else theta * theta / 2)
        if self.rate:
            limit = 0.99 * math.log(largest)
            factors.append(torch.exp(_times(self.rate, theta).clamp(-limit, limit)))
        if self.frequency:
            angle = _times(self.frequency, theta)
            factors.append(torch.sin(angle) if self.sine else torch.cos(angle))
        result = functools.reduce(operator.mul, factors) if factors else torch.ones_like(theta)
        if self.power or self.rate:  # finite products, so that their sum is not NaN
            bound = 0.99 * largest / max(1.0, *(abs(entry) for row in self.coefficients for entry in row))
            result = result.clamp(-bound, bound)
        return result


def terms(generator: Matrix3) -> tuple[Term, ...]:
    """Return the terms of exp(theta * `generator`), after a check of their sum against a numerical exponential."""
    a = np.array(generator, dtype=np.complex128)
    scale = float(np.abs(a).max())
    found: list[Term] = []
    for eigenvalue, projections in _spectrum(a, scale):
        if eigenvalue.imag < 0:  # its conjugate covers it
            continue
        for power, projection in enumerate(projections):
            found += _real_terms(eigenvalue, power, projection, scale)
    result = tuple(found)
    for theta in (-1.0, -1.0 / scale, 1.0 / scale, 1.0):
        expected = torch.linalg.matrix_exp(torch.tensor(a.real) * theta)
        if not expected.isfinite().all():
            continue
        difference = evaluate(result, torch.tensor(theta, dtype=torch.float64)) - expected
        error = (difference.abs().max() / expected.abs().max()).item()
        if not error < _VERIFIED:
            raise ValueError(
                f"generator {a.real.tolist()} has eigenvalues too close to separate (its exponential has an error of "
                f"{error:.1e}); make the eigenvalues equal or move them apart"
            )
    return result


def evaluate(terms: tuple[Term, ...], theta: Tensor) -> Tensor:
    """Return the sum of `terms` at theta `(...)`, as `(..., 3, 3)`; overflow saturates at the largest finite number."""
    largest = torch.finfo(theta.dtype).max
    if any(term.frequency for term in terms):
        limit = 0.99 * largest / max(1.0, *(abs(term.frequency) for term in terms))
        theta = theta.clamp(-limit, limit)
    values = [(term.coefficients, term.value(theta)) for term in terms]
    zero = torch.zeros_like(theta)
    entries = []
    for i, j in itertools.product(range(3), repeat=2):
        parts = [_times(c[i][j], value) for c, value in values if c[i][j] != 0]
        entries.append(sum(parts[1:], parts[0]) if parts else zero)
    if torch.compiler.is_compiling():  # by rows: the compiler splits a stack of nine into many kernels
        matrix = torch.stack([torch.stack(entries[k : k + 3], -1) for k in (0, 3, 6)], -2)
    else:
        matrix = torch.stack(entries, -1).reshape(*theta.shape, 3, 3)
    saturates = any(term.power or term.rate for term in terms)
    return matrix.clamp(-largest, largest) if saturates else matrix


def _times(factor: float, value: Tensor) -> Tensor:
    """Return the product, which for a factor of 1 is no operation."""
    return value if factor == 1 else factor * value


def period(terms: tuple[Term, ...]) -> float | None:
    """Return the smallest positive theta at which the transformation of the plane is the identity, or None."""
    rates = [term.rate for term in terms]
    frequency = max(abs(term.frequency) for term in terms)  # a real 3x3 matrix has at most one
    if any(term.power for term in terms) or not max(rates) - min(rates) < _STEADY * frequency:
        return None
    return 2 * math.pi / frequency


def eigenvalues(a: NDArray[np.float64] | Array) -> Array:
    """Return the eigenvalues of a 3x3 matrix.

    A triple eigenvalue, which rounding splits by the cube root of epsilon, is returned as one value repeated.
    """
    mean = np.trace(a) / 3
    cube = np.linalg.matrix_power(a - mean * np.eye(3), 3)
    if np.abs(cube).max() < _NILPOTENT * np.abs(a).max() ** 3:
        return np.full(3, mean, dtype=np.complex128)
    return np.linalg.eigvals(a).astype(np.complex128)


def _spectrum(a: Array, scale: float) -> list[tuple[complex, list[Array]]]:
    """Return each eigenvalue l with matrices C_0, C_1, ...: exp(ta) is the sum of t^p / p! e^(tl) C_p over l and p."""
    identity = np.eye(3, dtype=np.complex128)
    clusters: list[list[complex]] = []
    for value in map(complex, eigenvalues(a.real)):  # of real matrices, conjugates are exact
        home = next((c for c in clusters if any(abs(value - other) < _SAME_EIGENVALUE * scale for other in c)), None)
        if home is None:
            clusters.append([value])
        else:
            home.append(value)
    means = [complex(np.round(np.mean(cluster) / scale, 15)) * scale for cluster in clusters]
    if len(clusters) == 1:
        shifted = a - means[0] * identity
        return [(means[0], [identity, shifted, shifted @ shifted])]
    if len(clusters) == 2:
        (double, single) = means if len(clusters[0]) == 2 else means[::-1]
        shifted = a - double * identity
        onto_single = shifted @ shifted / (single - double) ** 2
        onto_double = identity - onto_single
        return [(single, [onto_single]), (double, [onto_double, shifted @ onto_double])]
    spectrum = []
    for k, value in enumerate(means):
        first, second = (means[j] for j in range(3) if j != k)
        projection = (a - first * identity) @ (a - second * identity) / ((value - first) * (value - second))
        spectrum.append((value, [projection]))
    return spectrum


def _real_terms(eigenvalue: complex, power: int, projection: Array, scale: float) -> list[Term]:
    """Return the real form of one complex term; a complex eigenvalue also represents its conjugate."""
    rate, frequency = eigenvalue.real, eigenvalue.imag
    pair = 2.0 if frequency else 1.0
    parts = (
        [(pair * projection.real, False), (-pair * projection.imag, True)] if frequency else [(projection.real, False)]
    )
    size = scale**power
    cleaned = [(np.round(part / size, 15) * size + 0.0, sine) for part, sine in parts]
    return [
        Term(tuple(map(tuple, part.tolist())), power, rate, frequency, sine)  # type: ignore[arg-type]
        for part, sine in cleaned
        if part.any()
    ]
