r"""Algorithm 1 of the paper: canonical coordinates for an arbitrary one-parameter group."""

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
_MOST_PARTS, _DEEPEST = 500, 100  # limits on the size and the nesting of a formula
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
    r"""Derive canonical coordinates of a one-parameter group: $\rho(T_\theta x) = \rho(x) + \theta e_1$.

    The vector field is $f = \partial T_\theta x/\partial\theta$ at theta = 0, and the coordinates solve
    $f\cdot\nabla\rho_1 = 1$ and $f\cdot\nabla\rho_2 = 0$ along its orbits. If formulas are found, they are verified and
    stored in `chart.formulas`. Otherwise the orbits are followed numerically from a curve across them. Among the
    invariants $h(\rho_2)$, the function whose $\log|\nabla\rho_2|$ varies least over the image is chosen. A range ends
    where a coordinate is 64 times as steep as its median (96 times where orbits run towards a fixed point), or where
    fewer than a fifth of the orbits remain.

    The chart is tested on pictures of blobs. A `UserWarning` says what to change if the chart covers less than half of
    the image, if content moves far between two samples of the pose, or if the position of the pictures does not follow
    the group. `self_consistency` measures a layer on your images.

    A formula is built from SymPy symbols; text is never evaluated. It has at most 500 parts, nested at most 100 deep,
    and no powers above 64. The search for formulas of the coordinates takes at most 14 seconds of CPU time.

    Args:
        transformation: a `Group`, or the pair of SymPy expressions of $T_\theta(x, y)$.
        name: display name of the chart; the name of the group by default.
        coordinates: the two symbols of the point, if they are not called x, y or x1, x2.
        parameter: the symbol of the parameter, if it is not called theta or t.
        method: "symbolic" raises an error if no formula is found, "numeric" skips the search for formulas, "auto"
            falls back from the first to the second.

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
    from equivariant_transformers.geometry.derivation import chart_checks, numeric, symbolic  # SymPy is slow to import

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
    if chart is None:
        chart = numeric.derive(given, name)
    chart_checks.warn_unless_useful(chart)
    return chart


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
    """Return the group of a pair of expressions, and its vector field in the symbols x and y."""
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
    """Return the two expressions of `transformation`. Only numbers are converted."""
    import sympy as sp

    if isinstance(transformation, Chart):
        raise TypeError(
            f"derive takes a transformation, got the chart {transformation.name!r}; use this chart directly"
        )
    try:
        if isinstance(transformation, (bytes, bytearray, Mapping, Set)):
            raise TypeError("not an ordered pair")
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
    """Raise a ValueError if `expression` is too large for SymPy, or is not a formula of real numbers."""
    import sympy as sp

    waiting, seen = [(expression, 1, 1)], 0  # node, its depth, the power it is raised to
    while waiting:
        node, depth, power = waiting.pop()
        seen += 1
        if seen > _MOST_PARTS or depth > _DEEPEST:
            raise ValueError(
                f"a formula of derive has at most {_MOST_PARTS} parts, nested at most {_DEEPEST} deep; this formula "
                "is larger. Simplify it, or pass a function: derive(Group.from_flow(lambda theta, points: ...))"
            )
        if isinstance(node, sp.Pow) and node.exp.is_Rational:
            power *= abs(node.exp)
            if power > _HIGHEST_POWER:
                raise ValueError(
                    f"a formula of derive has powers up to {_HIGHEST_POWER}, got "
                    f"{'a higher power' if abs(power) > 1e6 else power}. Use exp or a smaller power"
                )
        if node.is_Rational and max(abs(node.p).bit_length(), node.q.bit_length()) > _LONGEST_NUMBER:
            raise ValueError("a formula of derive has numbers of at most 300 digits, got a longer number; round it")
        number = node.is_Number or node.is_NumberSymbol
        if not (node.args or (node.is_Symbol and node.is_commutative) or (number and node.is_finite)):
            raise ValueError(
                f"a formula of derive consists of symbols and numbers that are real and finite, got {quote(node)}. "
                f"{_EXAMPLE}"
            )
        waiting += [(argument, depth + 1, power) for argument in node.args]


def _in_standard_symbols(
    pair: tuple[Expr, Expr], coordinates: Sequence[Any] | None, parameter: Any
) -> tuple[Expr, Expr]:
    """Rewrite `pair` with the real symbols x, y and theta."""
    from equivariant_transformers.geometry.derivation.formulas import THETA, X, Y, unsupported

    unknown = unsupported(pair[0]) | unsupported(pair[1])
    if unknown:
        raise ValueError(
            f"the transformation {quote(pair)} uses {', '.join(sorted(unknown))}, which has no torch form; use "
            "elementary functions"
        )
    free = {symbol for part in pair for symbol in part.free_symbols}
    present = {symbol.name for symbol in free}
    if coordinates is None:
        names = ("x1", "x2") if present & {"x1", "x2"} and not present & {"x", "y"} else ("x", "y")
    elif isinstance(coordinates, (tuple, list)) and len(coordinates) == 2:
        names = (_symbol_name(coordinates[0]), _symbol_name(coordinates[1]))
    else:
        raise ValueError(f"coordinates must be the two symbols of the point, got {quote(coordinates)}")
    if isinstance(parameter, (tuple, list)):
        raise ValueError(
            f"derive handles one-parameter groups, got the parameters {quote(parameter)}; derive each separately"
        )
    theta = _symbol_name(parameter) if parameter is not None else "theta" if "theta" in present else "t"
    if len({*names, theta}) < 3:
        raise ValueError(f"the point {names} and the parameter {theta} must be three different symbols")
    if theta not in present:
        expected = theta if parameter is not None else "theta (or t)"
        raise ValueError(
            f"the transformation {quote(pair)} does not depend on {expected}, so it moves nothing; pass the symbol of "
            f"its parameter as parameter=. {_EXAMPLE}"
        )
    extra = sorted(present - {*names, theta})
    if extra:
        raise ValueError(
            f"the transformation {quote(pair)} has free symbols {', '.join(extra)} besides the point {names} and the "
            f"parameter {theta}, but derive handles one-parameter groups. Substitute numbers for these symbols, or "
            "pass coordinates=(x, y) and parameter=theta"
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
    """Raise a ValueError unless `pair` has real constants, and a real value and derivative at theta = 0."""
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
    """Return True if all parts of `expression` without symbols are real and finite numbers."""
    if expression.free_symbols:
        return all(_has_real_constants(part) for part in expression.args)
    try:
        return math.isfinite(float(expression))
    except (TypeError, ValueError, OverflowError):
        return False


def _check_group_law(flow: Any, pair: tuple[Expr, Expr]) -> None:
    """Raise a ValueError unless T_0 is the identity and T_a T_b = T_(a+b), at points of the image."""
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
