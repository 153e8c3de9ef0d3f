r"""Canonical coordinates of any 3x3 generator $A$ in closed form.

In homogeneous coordinates $X = (x, y, 1)$ the characteristics are linear, $X' = AX$. Left eigenvectors give linear
forms $Z = LX$ with $Z' = JZ$, where $J$ is in real Jordan form. The point $(p, q) = (Z_1/Z_3, Z_2/Z_3)$ therefore moves
in one of six ways:

====================  ==========================  ================================  ================================
motion                field of (p, q)             first coordinate                  second coordinate
====================  ==========================  ================================  ================================
stretching            (a p, b q)                  log|p| / a                        q |p|^(-b/a)
growing               (a p, a q)                  log r / a                         angle of (p, q)
turning               (-b q, b p)                 angle / b                         r
spiralling            (a p - b q, b p + a q)      log r / a                         angle - (b/a) log r
sliding               (c p, 1)                    q                                 p exp(-c q)
falling               (q, 1)                      q                                 p - q^2 / 2
====================  ==========================  ================================  ================================
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from equivariant_transformers.geometry.derivation.formulas import Expr, U, V, X, Y
from equivariant_transformers.geometry.exponential import Matrix3, eigenvalues

Array = NDArray[np.float64]

_SAME = 1e-5  # gap relative to the largest entry below which eigenvalues are equal (rounding splits equal values)
_ZERO = 1e-9
_P, _Q = sp.symbols("p q", real=True)


@dataclass(frozen=True)
class Solution:
    """Formulas of a pose coordinate and of one of the many invariants, with an inverse per sheet."""

    pose: Expr
    invariant: Expr
    inverses: tuple[tuple[Expr, Expr], ...]
    periods: tuple[float | None, float | None] = (None, None)


def solve(generator: Matrix3) -> Solution:
    """Return canonical coordinates of the group of `generator`, exact if its eigenvalues are simple fractions or roots.

    >>> solve(((0, -1, 0), (1, 0, 0), (0, 0, 0))).pose
    atan2(y, x)
    """
    a = np.array(generator, dtype=np.float64)
    forms, jordan = _forms(a)
    forms, jordan = _exactly(a, forms, jordan)
    motion = _motion(jordan - jordan[2, 2] * sp.eye(3))
    z1, z2, z3 = forms * sp.Matrix([X, Y, 1])
    in_plane = {_P: z1 / z3, _Q: z2 / z3}
    inverse_forms = forms.inv()
    inverses = []
    for p, q in motion.inverses:
        x, y, w = (sp.expand(entry) for entry in inverse_forms * sp.Matrix([p, q, 1]))
        inverses.append((x / w, y / w))
    return Solution(
        motion.pose.subs(in_plane, simultaneous=True),
        motion.invariant.subs(in_plane, simultaneous=True),
        tuple(inverses),
        motion.periods,
    )


def _motion(jordan: Any) -> Solution:
    """Return the coordinates of (p, q) under the field of the Jordan form `jordan` with a zero last row."""
    a, b, c = jordan[0, 0], jordan[1, 0], jordan[1, 1]
    radius = sp.sqrt(_P**2 + _Q**2)
    if jordan[1, 2] != 0:
        if jordan[0, 1] != 0:
            return Solution(_Q, _P - _Q**2 / 2, ((V + U**2 / 2, U),))
        return Solution(_Q, _P * sp.exp(-a * _Q), ((V * sp.exp(a * U), U),))
    if b != 0:
        turn = 2 * sp.pi
        if a == 0:
            circle = (V * sp.cos(b * U), V * sp.sin(b * U))
            return Solution(sp.atan2(_Q, _P) / b, radius, (circle,), (float(turn / b), None))
        angle = V + b * U
        spiral = (sp.exp(a * U) * sp.cos(angle), sp.exp(a * U) * sp.sin(angle))
        invariant = sp.atan2(_Q, _P) - b / a * sp.log(radius)
        return Solution(sp.log(radius) / a, invariant, (spiral,), (None, float(turn)))
    if a == c:
        ray = (sp.exp(a * U) * sp.cos(V), sp.exp(a * U) * sp.sin(V))
        return Solution(sp.log(radius) / a, sp.atan2(_Q, _P), (ray,), (None, float(2 * sp.pi)))
    sides = tuple((side * sp.exp(a * U), V * sp.exp(c * U)) for side in (1, -1))
    return Solution(sp.log(sp.Abs(_P)) / a, _Q * sp.Abs(_P) ** (-c / a), sides)


def _forms(a: Array) -> tuple[Array, Array]:
    """Return linear forms L (rows) and a real Jordan matrix J with L a = J L."""
    scale = float(np.abs(a).max())
    found = eigenvalues(a)
    if np.abs(found.imag).max() > _SAME * scale:
        return _complex_forms(a)
    values = np.sort(found.real)[::-1]
    gaps = -np.diff(values) > _SAME * scale
    if gaps.all():
        high, middle, low = (_left_eigenvector(a, value) for value in values)
        return np.stack([high, middle, low]), np.diag(values)
    if not gaps.any():
        return _one_eigenvalue_forms(a, float(values.mean()), scale)
    single, double = (values[0], values[1:].mean()) if gaps[0] else (values[2], values[:2].mean())
    return _two_eigenvalue_forms(a, float(single), float(double), scale)


def _complex_forms(a: Array) -> tuple[Array, Array]:
    values, vectors = np.linalg.eig(a.T)
    k = int(np.argmax(values.imag))
    real = int(np.argmin(np.abs(values.imag)))
    z = vectors[:, k] / vectors[_largest(vectors[:, k]), k]
    last = _scaled(vectors[:, real].real)
    rate, frequency = values[k].real, values[k].imag
    jordan = np.array([[rate, -frequency, 0], [frequency, rate, 0], [0, 0, values[real].real]])
    return np.stack([z.real, z.imag, last]), jordan


def _one_eigenvalue_forms(a: Array, value: float, scale: float) -> tuple[Array, Array]:
    nilpotent = a - value * np.eye(3)
    squared = nilpotent @ nilpotent
    if np.abs(squared).max() > _SAME * scale * scale:
        first = np.eye(3)[np.argmax(np.abs(squared).max(1))]
        jordan = value * np.eye(3) + np.diag([1.0, 1.0], 1)
        return np.stack([first, first @ nilpotent, first @ squared]), jordan
    # An elation: every orbit lies on a line through the centre, and the points of the axis are fixed.
    axis = nilpotent[_largest(np.abs(nilpotent).max(1))]
    axis = _scaled(axis)
    centre = _scaled(nilpotent[:, _largest(np.abs(nilpotent).max(0))])
    moving = axis @ np.linalg.pinv(nilpotent)
    jordan = value * np.eye(3)
    jordan[1, 2] = 1
    return np.stack([_other_line(centre, axis), moving, axis]), jordan


def _other_line(centre: Array, axis: Array) -> Array:
    """Return a line through `centre` other than `axis`: the line at infinity if possible, else a normal to `axis`."""
    if abs(centre[2]) > _ZERO:
        x, y = centre[:2] / centre[2]
        return _scaled(np.array([-axis[1], axis[0], axis[1] * x - axis[0] * y]))
    if np.abs(axis[:2]).max() > _ZERO:
        return np.array([0.0, 0.0, 1.0])
    return _scaled(np.array([-centre[1], centre[0], 0.0]))


def _two_eigenvalue_forms(a: Array, single: float, double: float, scale: float) -> tuple[Array, Array]:
    shifted = a - double * np.eye(3)
    onto_single = shifted @ shifted / (single - double) ** 2
    onto_double = np.eye(3) - onto_single
    form = _scaled(onto_single[_largest(np.abs(onto_single).max(1))])
    nilpotent = shifted @ onto_double
    if np.abs(nilpotent).max() > _SAME * scale:
        row = _largest(np.abs(nilpotent).max(1))
        size = nilpotent[row, _largest(nilpotent[row])]
        jordan = np.diag([single, double, double])
        jordan[1, 2] = 1
        return np.stack([form, onto_double[row] / size, nilpotent[row] / size]), jordan
    centre = _scaled(onto_single[:, _largest(np.abs(onto_single).max(0))])
    if abs(centre[2]) > _ZERO:
        x, y = centre[:2] / centre[2]
        return np.array([[1, 0, -x], [0, 1, -y], form]), np.diag([double, double, single])
    along = _scaled(np.array([-centre[1], centre[0], 0.0]))
    return np.stack([form, along, np.array([0.0, 0.0, 1.0])]), np.diag([single, double, double])


def _left_eigenvector(a: Array, value: float) -> Array:
    """Return the form l with l a = value l, from the smallest singular value."""
    return _scaled(np.linalg.svd((a - value * np.eye(3)).T)[2][-1])


def _largest(vector: NDArray[Any]) -> int:
    """Return the index of the largest magnitude; the first index if magnitudes differ only by rounding."""
    return int(np.argmax(np.round(np.abs(vector) / np.abs(vector).max(), 9)))


def _scaled(vector: Array) -> Array:
    result: Array = vector / vector[_largest(vector)]
    return result


def _exactly(a: Array, forms: Array, jordan: Array) -> tuple[Any, Any]:
    """Convert `forms` and `jordan` to SymPy matrices, with exact numbers if these satisfy L a = J L exactly."""
    generator, exact_forms, exact_jordan = (sp.Matrix(3, 3, [exact(v) for v in m.ravel()]) for m in (a, forms, jordan))
    if (exact_forms * generator - exact_jordan * exact_forms).applyfunc(sp.expand).is_zero_matrix:
        return exact_forms, exact_jordan
    return tuple(sp.Matrix(3, 3, [_clean(v, m) for v in m.ravel()]) for m in (forms, jordan))


def exact(value: float) -> Expr:
    """Return the simple fraction, or root of a fraction, that equals `value` up to rounding; else the float.

    >>> exact(0.1 + 0.2), exact(3**0.5 / 4)
    (3/10, sqrt(3)/4)
    """
    for power in (1, 2):
        fraction = Fraction(value**power).limit_denominator(400)
        if abs(value**power - fraction) <= 1e-11 * max(1.0, abs(value) ** power) and (value == 0 or fraction != 0):
            return sp.sign(value) * sp.Rational(abs(fraction.numerator), fraction.denominator) ** sp.Rational(1, power)
    return sp.Float(value)


def _clean(value: float, matrix: Array) -> Expr:
    return sp.Integer(0) if abs(value) < _ZERO * np.abs(matrix).max() else exact(value)
