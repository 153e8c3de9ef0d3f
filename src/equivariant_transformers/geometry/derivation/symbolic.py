"""Algorithm 1 with formulas: from a vector field in SymPy to a chart in closed form."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import sympy as sp
import torch
from torch import Tensor

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.derivation import coverage, projective_orbits, quadrature
from equivariant_transformers.geometry.derivation.formulas import (
    THETA,
    Distance,
    Expr,
    Formulas,
    SheetOf,
    ToCanonical,
    ToPlane,
    TorchFunction,
    U,
    V,
    X,
    Y,
    singularities,
    unsupported,
)
from equivariant_transformers.geometry.derivation.projective_orbits import Solution, exact
from equivariant_transformers.geometry.derivation.time_limit import within
from equivariant_transformers.geometry.exponential import Matrix3
from equivariant_transformers.geometry.groups import Group

_ACCURATE = 1e-6
_ALMOST_ALL = 0.99  # rounding dominates next to a singular set
_SECONDS_TO_SIMPLIFY, _SECONDS_TO_SOLVE = 3, 8


class Rescaling(NamedTuple):
    """Invertible function h of an invariant z; h(z) is also an invariant."""

    function: Expr
    inverses: tuple[Expr, ...]
    breaks: bool = False
    """True if h is discontinuous at z = 0."""


_Z = sp.Symbol("z", real=True)
_SIGNED_ROOT, _SIGNED_SQUARE = sp.sign(_Z) * sp.sqrt(sp.Abs(_Z)), _Z * sp.Abs(_Z)
_LOGARITHM = Rescaling(sp.log(sp.Abs(_Z)), (sp.exp(_Z), -sp.exp(_Z)), breaks=True)
_RESCALINGS = (
    Rescaling(_Z, (_Z,)),
    Rescaling(1 / _Z, (1 / _Z,), breaks=True),
    Rescaling(_SIGNED_ROOT, (_SIGNED_SQUARE,)),
    Rescaling(_SIGNED_SQUARE, (_SIGNED_ROOT,)),
    _LOGARITHM,
    Rescaling(sp.exp(_Z), (sp.log(_Z),)),
    Rescaling(sp.atan(_Z), (sp.tan(_Z),)),
    Rescaling(sp.asinh(_Z), (sp.sinh(_Z),)),
)
"""Candidates for the invariant that distorts the image least, simplest first."""


def vector_field(transformation: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    """Return the derivative at theta = 0 of a transformation in x, y and theta.

    >>> vector_field((X + THETA * Y, Y / (1 + THETA * Y)))
    (y, -y**2)
    """
    f, g = (sp.diff(part, THETA).subs(THETA, 0) for part in transformation)
    simplified = within(_SECONDS_TO_SIMPLIFY, (sp.simplify(part) for part in (f, g)))
    return tuple(simplified) if len(simplified) == 2 else (f, g)


def field_of(generator: Matrix3) -> tuple[Expr, Expr]:
    """Return the vector field of a 3x3 generator, (AX)_1 - x (AX)_3 and (AX)_2 - y (AX)_3, with `exact` entries."""
    x, y, w = sp.Matrix(3, 3, [exact(entry) for row in generator for entry in row]) * sp.Matrix([X, Y, 1])
    return sp.expand(x - X * w), sp.expand(y - Y * w)


def generator_of(field: tuple[Expr, Expr]) -> Matrix3 | None:
    """Return the 3x3 generator of a vector field; None if there is none or the field is too large to simplify.

    >>> generator_of((-X**2, -X * Y))
    ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0))
    """
    found = within(_SECONDS_TO_SIMPLIFY, (_generator_of(one) for one in (field,)))
    return found[0] if found else None


def _generator_of(field: tuple[Expr, Expr]) -> Matrix3 | None:
    if not all(part.is_polynomial(X, Y) for part in field):
        return None
    f, g = (sp.Poly(part, X, Y) for part in field)
    rows = [[part.coeff_monomial(monomial) for monomial in (X, Y, 1)] for part in (f, g)]
    rows.append([-f.coeff_monomial(X**2), -g.coeff_monomial(Y**2), sp.Integer(0)])
    x, y, w = sp.Matrix(rows) * sp.Matrix([X, Y, 1])
    if sp.expand(x - X * w - field[0]) != 0 or sp.expand(y - Y * w - field[1]) != 0:
        return None
    return tuple(tuple(float(entry) for entry in row) for row in rows)  # type: ignore[return-value]


def derive(field: tuple[Expr, Expr], group: Group, name: str) -> Chart | None:
    """Return the chart of a vector field in closed form; None if no formula is found and confirmed.

    The search by SymPy has a time limit. Among several charts, the chart with the fewest sheets is chosen, then the
    chart that distorts the image least.
    """
    if group.generator is not None:
        return _chart(field, projective_orbits.solve(group.generator), group, name)
    charts = (_chart(field, solution, group, name) for solution in quadrature.solutions(*field))
    found = [chart for chart in within(_SECONDS_TO_SOLVE, charts) if chart is not None]
    return min(found, key=lambda chart: (chart.sheets, _distortion(chart.formulas.invariant)), default=None)


def _distortion(invariant: Expr) -> float:
    function = TorchFunction((X, Y), (invariant,))
    return coverage.distortion(lambda points: function(*points.unbind(-1))[0], coverage.image_points())


def _chart(field: tuple[Expr, Expr], solution: Solution, group: Group, name: str) -> Chart | None:
    if any(unsupported(part) for part in (solution.pose, solution.invariant, *sum(solution.inverses, ()))):
        return None
    solution, singular = _least_distorting(solution)
    to_canonical = ToCanonical(TorchFunction((X, Y), (solution.pose, solution.invariant)), solution.periods)
    distance = Distance(TorchFunction((X, Y), singular))
    points = coverage.image_points()
    points = points[distance(points) > _ACCURATE]
    inverses = _sheets(solution.inverses, to_canonical, points)
    if not inverses or not _canonical(to_canonical, group, points):
        return None
    to_plane = ToPlane(TorchFunction((U, V), sum(inverses, ())))
    chart = Chart(
        name,
        (group,),
        coverage.ANY,
        to_canonical,
        to_plane,
        distance,
        sheet_of=SheetOf(to_canonical, to_plane) if len(inverses) > 1 else None,
        sheets=len(inverses),
        periods=solution.periods,
        formulas=Formulas(field, solution.pose, solution.invariant, inverses),
    )
    return coverage.fitted(chart, coverage.image_points(256))


def _least_distorting(solution: Solution) -> tuple[Solution, tuple[Expr, ...]]:
    """Rescale the invariant of `solution` to distort the image least; return the result and its singular set."""
    invariant = solution.invariant
    candidates = [
        rescaling
        for rescaling in (_RESCALINGS if solution.periods[1] is None else _RESCALINGS[:1])
        if rescaling is not _LOGARITHM or _one_sign(invariant)
    ]
    rescaling = min(candidates, key=lambda r: round(_distortion(r.function.subs(_Z, invariant)), 6))
    rescaled = _rebuilt(
        dataclasses.replace(
            solution,
            invariant=rescaling.function.subs(_Z, invariant),
            inverses=tuple(
                (x.subs(V, inverse.subs(_Z, V)), y.subs(V, inverse.subs(_Z, V)))
                for x, y in solution.inverses
                for inverse in rescaling.inverses
            ),
        )
    )
    singular = singularities(rescaled.pose, rescaled.invariant)
    if rescaling.breaks and invariant.free_symbols:
        singular = (*singular, invariant)
    return rescaled, singular


def _rebuilt(solution: Solution) -> Solution:
    """Rebuild the formulas of `solution` into the form that SymPy gives them in a copy or a pickle."""

    def rebuilt(expression: Expr) -> Expr:
        return expression.func(*map(rebuilt, expression.args)) if expression.args else expression

    inverses = tuple((rebuilt(x), rebuilt(y)) for x, y in solution.inverses)
    return Solution(rebuilt(solution.pose), rebuilt(solution.invariant), inverses, solution.periods)


def _one_sign(expression: Expr) -> bool:
    """Return True if `expression` provably changes sign only at its poles."""
    numerator = sp.fraction(sp.together(expression))[0].replace(sp.exp, lambda _: sp.Integer(1))
    return bool(expression.is_nonnegative or numerator.is_number)


def _sheets(
    inverses: tuple[tuple[Expr, Expr], ...], to_canonical: ToCanonical, points: Tensor
) -> tuple[tuple[Expr, Expr], ...]:
    """Return the `inverses` that recover some of `points`; an empty tuple unless almost all points are recovered."""
    to_plane = ToPlane(TorchFunction((U, V), sum(inverses, ())))
    coordinates = to_canonical(points)
    back = torch.stack([to_plane(coordinates, torch.tensor(sheet)) for sheet in range(len(inverses))])
    error, sheet = (back - points).abs().amax(-1).min(0)
    if (error < _ACCURATE).double().mean() < _ALMOST_ALL:
        return ()
    return tuple(inverses[used] for used in sorted(set(sheet[error < _ACCURATE].tolist())))


def _canonical(to_canonical: ToCanonical, group: Group, points: Tensor) -> bool:
    """Return True if the coordinates of almost all `points` change at the rate (1, 0) along the vector field."""
    coordinates, rate, *_ = torch.func.jvp(to_canonical, (points,), (group.vector_field(points),))
    expected = torch.tensor([1.0, 0.0], dtype=points.dtype)
    error = (rate - expected).abs() / (1 + coordinates.abs())
    return bool((error < _ACCURATE).all(-1).double().mean() >= _ALMOST_ALL)
