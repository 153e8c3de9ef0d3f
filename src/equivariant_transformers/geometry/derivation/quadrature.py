"""Canonical coordinates of a plane vector field by quadrature: first the orbits, then the time along them.

In coordinates (a, b), Cartesian or polar, with field (f, g), the orbits solve db/da = g/f, and the time along an orbit
is the integral of da/f. Both are found if the first equation is linear or separable and the integrals are elementary.
The results are inverted one function at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import sympy as sp

from equivariant_transformers.geometry.derivation.formulas import Expr, U, V, X, Y, unsupported
from equivariant_transformers.geometry.derivation.projective_orbits import Solution

_R = sp.Symbol("r", positive=True)
_PHI = sp.Symbol("phi", real=True)
_LARGE = 60  # largest number of operations in an integrand


class NoClosedForm(Exception):  # noqa: N818 (a result, not an error)
    """Signal that quadrature found no formula."""


def solutions(f: Expr, g: Expr) -> Iterator[Solution]:
    """Yield the coordinates of the field `(f, g)` in x and y that quadrature finds, if any.

    >>> [s.pose for s in solutions(X**2, Y)][:1]
    [-1/x]
    """
    yield from _attempt(X, Y, f, g)
    yield from _attempt(Y, X, g, f)
    radial, angular = f * sp.cos(_PHI) + g * sp.sin(_PHI), (g * sp.cos(_PHI) - f * sp.sin(_PHI)) / _R
    polar = {X: _R * sp.cos(_PHI), Y: _R * sp.sin(_PHI)}
    radial, angular = (sp.simplify(part.subs(polar, simultaneous=True)) for part in (radial, angular))
    yield from _attempt(_R, _PHI, radial, angular)
    yield from _attempt(_PHI, _R, angular, radial)


def _attempt(a: Expr, b: Expr, speed: Expr, drift: Expr) -> Iterator[Solution]:
    """Yield solutions in coordinates `a`, `b` (x and y or r and phi, in either order) with field `(speed, drift)`."""
    if speed == 0:
        return
    polar = _R in (a, b)
    from_plane = {_R: sp.sqrt(X**2 + Y**2), _PHI: sp.atan2(Y, X)} if polar else {}
    try:
        invariant, orbits = _orbits(a, b, sp.cancel(drift / speed))
        for orbit in orbits:
            time = _integral(sp.simplify(1 / speed.subs(b, orbit)), a)
            pose = time.subs(V, invariant)
            periods = _periods(pose, invariant) if polar else (None, None)
            inverses = []
            for along in _invert(time, a, U):
                across = orbit.subs(a, along)
                first, second = (along, across) if a in (X, _R) else (across, along)
                in_plane = (first * sp.cos(second), first * sp.sin(second)) if polar else (first, second)
                inverses.append(in_plane)
            yield Solution(pose.subs(from_plane), invariant.subs(from_plane), tuple(inverses), periods)
    except NoClosedForm:
        return


def _orbits(a: Expr, b: Expr, slope: Expr) -> tuple[Expr, list[Expr]]:
    """Return an invariant of db/da = slope, and b along an orbit in terms of a and the value v of the invariant."""
    rate = sp.diff(slope, b)
    if not rate.has(b):  # linear in b
        factor = sp.exp(-_integral(rate, a))
        source = _integral(sp.simplify(slope.subs(b, 0) * factor), a)
        return b * factor - source, [(V + source) / factor]
    parts = sp.separatevars(sp.factor(slope), symbols=(a, b), dict=True)
    if not parts:
        raise NoClosedForm
    along = _integral(parts["coeff"] * parts[a], a)
    across = _integral(1 / parts[b], b)
    return across - along, _invert(across, b, V + along)


def _integral(expression: Expr, variable: Expr) -> Expr:
    """Return an elementary antiderivative, with log|z| for log z."""
    if expression.count_ops() > _LARGE:
        raise NoClosedForm
    result = sp.integrate(expression, variable, heurisch=False, meijerg=False, risch=False)
    if result.has(sp.Integral, sp.I, sp.zoo, sp.nan) or unsupported(result):
        raise NoClosedForm
    return sp.simplify(sp.logcombine(result, force=True)).replace(sp.log, lambda value: sp.log(sp.Abs(value)))


_INVERSES = {
    sp.exp: sp.log,
    sp.log: sp.exp,
    sp.tan: sp.atan,
    sp.atan: sp.tan,
    sp.sin: sp.asin,
    sp.asin: sp.sin,
    sp.sinh: sp.asinh,
    sp.asinh: sp.sinh,
    sp.tanh: sp.atanh,
    sp.atanh: sp.tanh,
}


def _invert(expression: Expr, variable: Expr, target: Expr) -> list[Expr]:
    """Solve `expression` = `target` for `variable` by inverting one function at a time; return every solution."""
    if expression == variable:
        return [target]
    function, holding = expression.func, [part for part in expression.args if part.has(variable)]
    if len(holding) == 1:
        (inner,) = holding
        others = [part for part in expression.args if part is not inner]
        if expression.is_Add:
            return _invert(inner, variable, target - sp.Add(*others))
        if expression.is_Mul:
            return _invert(inner, variable, target / sp.Mul(*others))
        if function is sp.Abs:
            return _invert(inner, variable, target) + _invert(inner, variable, -target)
        if expression.is_Pow and inner is expression.base:
            return [answer for root in _roots(target, expression.exp) for answer in _invert(inner, variable, root)]
        if function in _INVERSES:
            return _invert(inner, variable, _INVERSES[function](target))
    numerator, denominator = sp.fraction(sp.together(expression))
    polynomial = sp.expand(numerator - target * denominator)
    if not polynomial.is_polynomial(variable) or sp.degree(polynomial, variable) > 2:
        raise NoClosedForm
    return list(sp.roots(sp.Poly(polynomial, variable)))


def _roots(target: Expr, exponent: Expr) -> list[Expr]:
    """Return the real z with z**exponent = target."""
    if exponent == -1:
        return [1 / target]
    if exponent.is_odd:
        return [sp.sign(target) * sp.Abs(target) ** (1 / exponent)]
    root = target ** (1 / exponent)
    return [root, -root] if exponent.is_even else [root]


def _periods(pose: Expr, invariant: Expr) -> tuple[float | None, float | None]:
    """Return the change of each coordinate over one turn of the angle; at most one may change, by a constant."""
    turns = [sp.simplify(part.subs(_PHI, _PHI + 2 * sp.pi) - part) for part in (pose, invariant)]
    if any(turn.free_symbols for turn in turns) or all(turn != 0 for turn in turns):
        raise NoClosedForm
    first, second = (None if turn == 0 else math.fabs(turn) for turn in turns)
    return first, second
