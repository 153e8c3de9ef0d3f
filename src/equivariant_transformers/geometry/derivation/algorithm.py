r"""Algorithm 1 of the paper: canonical coordinates for a group that the library has never seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.groups import Group, group
from equivariant_transformers.text import quote

if TYPE_CHECKING:
    from equivariant_transformers.geometry.derivation.formulas import Expr

Method = Literal["auto", "symbolic", "numeric"]

_A, _B = 0.05, 0.07  # parameters at which the group law is checked
_LAW = 1e-8
_MOST_PARTS, _DEEPEST = 500, 100  # of a formula
_HIGHEST_POWER = 64
_LONGEST_NUMBER = 1024  # bits
_EXAMPLE = "For example: x, y, theta = sympy.symbols('x y theta'); derive((x * sympy.exp(theta), y))"


def derive(
    transformation: Group | str | Sequence[Any],
    *,
    name: str | None = None,
    coordinates: Sequence[Any] | None = None,
    parameter: Any = None,
    method: Method = "auto",
) -> Chart:
    r"""Canonical coordinates of a one-parameter group: $\rho(T_\theta x) = \rho(x) + \theta e_1$.

    The vector field is $f = \partial T_\theta x/\partial\theta$ at theta = 0, and the coordinates solve
    $f\cdot\nabla\rho_1 = 1$ and $f\cdot\nabla\rho_2 = 0$ along its orbits. Where formulas are found, `chart.formulas`
    holds them, checked; otherwise the orbits through a curve across them are followed numerically. Among the
    invariants $h(\rho_2)$ the one is taken whose $\log|\nabla\rho_2|$ varies least over the image. The ranges reach
    to where a coordinate is 64 times as steep as usual, and no further than a fifth of the orbits come.

    A formula is built from SymPy symbols; text is never evaluated. It has at most 500 parts, nested at most 100 deep,
    and no powers above 64. The search for formulas of the coordinates takes at most 25 seconds.

    Args:
        transformation: a `Group`, or the pair of SymPy expressions of $T_\theta(x, y)$.
        name: how the chart is shown; the group's name if none is given.
        coordinates: the two symbols of the point, where they are not called x, y or x1, x2.
        parameter: the symbol of the parameter, where it is not called theta or t.
        method: "symbolic" fails where there is no formula, "numeric" does not look for one, "auto" tries both.

    >>> import sympy
    >>> x, y, theta = sympy.symbols("x y theta")
    >>> lens = sympy.sqrt(1 - 2 * theta * (x**2 + y**2))
    >>> chart = derive((x / lens, y / lens), name="lens")
    >>> print(chart.formulas)
    rho_1 = -1/(2*(x**2 + y**2))
    rho_2 = atan2(y, x)
    (x, y) = (sqrt(2)*cos(v)/(2*sqrt(-u)), sqrt(2)*sin(v)/(2*sqrt(-u)))
    >>> chart.to_canonical(torch.tensor([0.5, 0.5]))
    tensor([-1.0000, 0.7854])
    """
    if not isinstance(method, str) or method not in ("auto", "symbolic", "numeric"):
        raise ValueError(f'method is "auto", "symbolic" or "numeric", got {quote(method)}')
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a chart is a string, got {quote(name)}")
    from equivariant_transformers.geometry.derivation import numeric, symbolic  # SymPy is slow to import

    if isinstance(transformation, (Group, str)):
        given, field = _from_group(group(transformation))
    else:
        given, field = _from_expressions(transformation, coordinates, parameter, name or "custom")
    name = name or given.name
    chart = symbolic.derive(field, given, name) if field is not None and method != "numeric" else None
    if chart is None and method == "symbolic":
        raise ValueError(
            f"no closed form of canonical coordinates was found for {name!r} "
            f'({"its formula is unknown" if field is None else f"vector field {field}"}); use method="numeric"'
        )
    return chart if chart is not None else numeric.derive(given, name)


def _from_group(given: Group) -> tuple[Group, tuple[Expr, Expr] | None]:
    from equivariant_transformers.geometry.derivation import symbolic
    from equivariant_transformers.geometry.derivation.formulas import FormulaFlow

    if given.generator is not None:
        return given, symbolic.field_of(given.generator)
    if isinstance(given.flow, FormulaFlow):
        return given, symbolic.vector_field(given.flow.transformation)
    return given, None


def _from_expressions(
    transformation: Sequence[Any], coordinates: Sequence[Any] | None, parameter: Any, name: str
) -> tuple[Group, tuple[Expr, Expr]]:
    """The group of a pair of expressions, and its vector field in the symbols x and y."""
    from equivariant_transformers.geometry.derivation import symbolic
    from equivariant_transformers.geometry.derivation.formulas import FormulaFlow

    pair = _in_standard_symbols(_expressions(transformation), coordinates, parameter)
    _check_start(pair)
    flow = FormulaFlow(pair)
    _check_group_law(flow, pair)
    field = symbolic.vector_field(pair)
    if field == (0, 0):
        raise ValueError(
            f"the transformation {quote(pair)} moves nothing to first order: its vector field is zero. {_EXAMPLE}"
        )
    generator = symbolic.generator_of(field)
    if generator is not None:
        return Group.from_generator(generator, name=name), field
    return Group.from_flow(flow, name=name), field


def _expressions(transformation: Any) -> tuple[Expr, Expr]:
    """The pair of expressions that `transformation` consists of. Nothing but numbers is converted."""
    import sympy as sp

    if isinstance(transformation, Chart):
        raise TypeError(
            f"derive builds a chart from a transformation, got the chart {transformation.name!r}; it is one"
        )
    try:
        if isinstance(transformation, (bytes, bytearray, Mapping, Set)):
            raise TypeError("not a pair in order")
        given = list(itertools.islice(transformation, 3))
    except TypeError as error:
        raise TypeError(
            "derive takes a Group, or a pair of SymPy expressions for the x and y of the transformed point; "
            f"got {quote(transformation)}. {_EXAMPLE}"
        ) from error
    parts = []
    for part in given:
        if isinstance(part, sp.Expr) and not isinstance(part, sp.MatrixExpr):
            parts.append(part)
        elif isinstance(part, (int, float, np.integer, np.floating)) and not isinstance(part, bool):
            parts.append(sp.Integer(int(part)) if isinstance(part, (int, np.integer)) else sp.Float(float(part)))
        else:
            raise TypeError(
                f"each of the two parts must be one SymPy expression or a number, got {quote(part)} of type "
                f"{type(part).__name__}; text is not evaluated. {_EXAMPLE}"
            )
    if len(parts) != 2:
        count = f"{len(parts)} or more" if len(parts) > 2 else len(parts)
        raise ValueError(f"a transformation of the plane is a pair of expressions (x, y), got {count}. {_EXAMPLE}")
    for part in parts:
        _check_formula(part)
    return parts[0], parts[1]


def _check_formula(expression: Expr) -> None:
    """Raise ValueError where `expression` is too large for SymPy, or not a formula of real numbers."""
    import sympy as sp

    waiting, seen = [(expression, 1, 1)], 0  # with its depth and the power that it is raised to
    while waiting:
        node, depth, power = waiting.pop()
        seen += 1
        if seen > _MOST_PARTS or depth > _DEEPEST:
            raise ValueError(
                f"a formula of derive has at most {_MOST_PARTS} parts, nested at most {_DEEPEST} deep, and this has "
                "more. Simplify it, or give it as a function: derive(Group.from_flow(lambda theta, points: ...))"
            )
        if isinstance(node, sp.Pow) and node.exp.is_Rational:
            power *= abs(node.exp)
            if power > _HIGHEST_POWER:
                raise ValueError(
                    f"a formula of derive has powers up to {_HIGHEST_POWER}, and this has "
                    f"{'a higher one' if abs(power) > 1e6 else power}. Use exp or a smaller power"
                )
        if node.is_Rational and max(abs(node.p).bit_length(), node.q.bit_length()) > _LONGEST_NUMBER:
            raise ValueError("a formula of derive has numbers of at most 300 digits, and this has longer ones")
        number = node.is_Number or node.is_NumberSymbol
        if not (node.args or (node.is_Symbol and node.is_commutative) or (number and node.is_finite)):
            raise ValueError(
                f"a formula of derive consists of symbols and of numbers that are real and finite, got {quote(node)}. "
                f"{_EXAMPLE}"
            )
        waiting += [(argument, depth + 1, power) for argument in node.args]


def _in_standard_symbols(
    pair: tuple[Expr, Expr], coordinates: Sequence[Any] | None, parameter: Any
) -> tuple[Expr, Expr]:
    """`pair` written with the real symbols x, y and theta."""
    from equivariant_transformers.geometry.derivation.formulas import THETA, X, Y, unsupported

    unknown = unsupported(pair[0]) | unsupported(pair[1])
    if unknown:
        raise ValueError(
            f"the transformation {quote(pair)} uses {', '.join(sorted(unknown))}, which has no torch form here"
        )
    free = {symbol for part in pair for symbol in part.free_symbols}
    present = {symbol.name for symbol in free}
    if coordinates is None:
        names = ("x1", "x2") if present & {"x1", "x2"} and not present & {"x", "y"} else ("x", "y")
    elif isinstance(coordinates, (tuple, list)) and len(coordinates) == 2:
        names = (_symbol_name(coordinates[0]), _symbol_name(coordinates[1]))
    else:
        raise ValueError(f"coordinates are the two symbols of the point, got {quote(coordinates)}")
    if isinstance(parameter, (tuple, list)):
        raise ValueError(
            f"derive handles one-parameter groups; got the parameters {quote(parameter)}. Derive one at a time"
        )
    theta = _symbol_name(parameter) if parameter is not None else "theta" if "theta" in present else "t"
    if len({*names, theta}) < 3:
        raise ValueError(f"the point {names} and the parameter {theta} must be three different symbols")
    if theta not in present:
        expected = theta if parameter is not None else "theta (or t)"
        raise ValueError(
            f"the transformation {quote(pair)} does not depend on {expected}, so it moves nothing; name its symbol "
            f"with parameter=. {_EXAMPLE}"
        )
    extra = sorted(present - {*names, theta})
    if extra:
        raise ValueError(
            f"the transformation {quote(pair)} has free symbols {', '.join(extra)} besides the point {names} and the "
            f"parameter {theta}: derive handles one-parameter groups. Substitute numbers for them, or name the "
            "symbols with coordinates=(x, y) and parameter=theta"
        )
    standard = dict(zip((*names, theta), (X, Y, THETA), strict=True))
    first, second = (part.subs({s: standard[s.name] for s in free}, simultaneous=True) for part in pair)
    return first, second


def _symbol_name(symbol: Any) -> str:
    import sympy as sp

    if not isinstance(symbol, (sp.Symbol, str)):
        raise TypeError(f"coordinates and the parameter are SymPy symbols or their names, got {quote(symbol)}")
    return symbol if isinstance(symbol, str) else str(symbol.name)


def _check_start(pair: tuple[Expr, Expr]) -> None:
    """Raise ValueError unless `pair` and its derivative have real values at theta = 0, and its constants everywhere."""
    import sympy as sp

    from equivariant_transformers.geometry.derivation.formulas import THETA, unsupported

    for part in pair:
        for what, at_zero in (("value", part.subs(THETA, 0)), ("derivative", sp.diff(part, THETA).subs(THETA, 0))):
            if unsupported(at_zero) or not _has_real_constants(at_zero):
                raise ValueError(
                    f"the transformation {quote(pair)} has no real {what} at theta = 0, where it must be the identity: "
                    f"{quote(part)} becomes {quote(at_zero)}. {_EXAMPLE}"
                )
        if not _has_real_constants(part):
            raise ValueError(f"the transformation {quote(pair)} has numbers that are not real and finite. {_EXAMPLE}")


def _has_real_constants(expression: Expr) -> bool:
    """Whether all parts of `expression` without symbols are real and finite numbers."""
    if expression.free_symbols:
        return all(_has_real_constants(part) for part in expression.args)
    try:
        return math.isfinite(float(expression))
    except (TypeError, ValueError, OverflowError):
        return False


def _check_group_law(flow: Any, pair: tuple[Expr, Expr]) -> None:
    """Raise ValueError unless T_0 is the identity and T_a T_b = T_(a+b), at points of the image."""
    from equivariant_transformers.geometry.derivation import coverage

    points = 0.97 * coverage.image_points(12)
    zero, a, b, both = (torch.tensor(value, dtype=points.dtype) for value in (0.0, _A, _B, _A + _B))
    laws = (
        ("T_0 x should be x", "T_0", flow(zero, points), "x", points),
        (
            "T_a T_b should be T_(a+b)",
            f"T_{_A} T_{_B}",
            flow(a, flow(b, points)),
            f"T_{_A + _B:.2f}",
            flow(both, points),
        ),
    )
    for law, left_name, left, right_name, right in laws:
        error = (left - right).abs().amax(-1) / (1 + right.abs().amax(-1))
        broken = ~(error < _LAW)
        if broken.double().mean() > 0.1:
            k = int(torch.where(error.isfinite(), error, 0.0).argmax())
            x, left_value, right_value = (tuple(round(v, 4) for v in t[k].tolist()) for t in (points, left, right))
            raise ValueError(
                f"the transformation {quote(pair)} is not a one-parameter group: {law}, but at x = {x} {left_name} x = "
                f"{left_value} and {right_name}{'' if right_name == 'x' else ' x'} = {right_value}. Rewrite it so that "
                "the parameters add, for example x*exp(theta) for a scaling rather than x*(1 + theta)"
            )
