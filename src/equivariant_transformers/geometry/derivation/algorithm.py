r"""Algorithm 1 of the paper: canonical coordinates for a group that the library has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.groups import Group, group

if TYPE_CHECKING:
    from equivariant_transformers.geometry.derivation.formulas import Expr

Method = Literal["auto", "symbolic", "numeric"]

_A, _B = 0.05, 0.07  # parameters at which the group law is checked
_LAW = 1e-8


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
    if method not in ("auto", "symbolic", "numeric"):
        raise ValueError(f'method is "auto", "symbolic" or "numeric", got {method!r}')
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
    flow = FormulaFlow(pair)
    _check_group_law(flow, pair)
    field = symbolic.vector_field(pair)
    if field == (0, 0):
        raise ValueError(f"the transformation {pair} moves nothing to first order: its vector field is zero")
    generator = symbolic.generator_of(field)
    if generator is not None:
        return Group.from_generator(generator, name=name), field
    return Group.from_flow(flow, name=name), field


def _expressions(transformation: Any) -> tuple[Expr, Expr]:
    import sympy as sp

    if isinstance(transformation, Chart):
        raise TypeError(
            f"derive builds a chart from a transformation, got the chart {transformation.name!r}; it is one"
        )
    try:
        parts = tuple(sp.sympify(part) for part in transformation)
    except (TypeError, sp.SympifyError) as error:
        raise TypeError(
            "derive takes a Group, or a pair of SymPy expressions for the x and y of the transformed point; "
            f"got {transformation!r}"
        ) from error
    if any(isinstance(part, (sp.Tuple, sp.MatrixBase)) or not isinstance(part, sp.Expr) for part in parts):
        raise TypeError(f"each of the two parts must be one SymPy expression, got {transformation!r}")
    if len(parts) != 2:
        raise ValueError(f"a transformation of the plane is a pair of expressions (x, y), got {len(parts)}: {parts}")
    return parts


def _in_standard_symbols(
    pair: tuple[Expr, Expr], coordinates: Sequence[Any] | None, parameter: Any
) -> tuple[Expr, Expr]:
    """`pair` written with the real symbols x, y and theta."""
    from equivariant_transformers.geometry.derivation.formulas import THETA, X, Y, unsupported

    free = {symbol.name: symbol for part in pair for symbol in part.free_symbols}
    if coordinates is None:
        names = ("x1", "x2") if free.keys() & {"x1", "x2"} and not free.keys() & {"x", "y"} else ("x", "y")
    elif len(coordinates) == 2:
        names = (str(coordinates[0]), str(coordinates[1]))
    else:
        raise ValueError(f"coordinates are the two symbols of the point, got {coordinates!r}")
    theta = str(parameter) if parameter is not None else "theta" if "theta" in free else "t"
    if isinstance(parameter, (tuple, list)):
        raise ValueError(f"derive handles one-parameter groups; got the parameters {parameter}. Derive one at a time")
    if theta not in free:
        expected = theta if parameter is not None else "theta (or t)"
        raise ValueError(f"the transformation {pair} does not depend on {expected}; name its symbol with parameter=")
    extra = sorted(free.keys() - {*names, theta})
    if extra:
        raise ValueError(
            f"the transformation {pair} has free symbols {', '.join(extra)} besides the point {names} and the "
            f"parameter {theta}: derive handles one-parameter groups. Substitute numbers for them, or name the "
            "symbols with coordinates=(x, y) and parameter=theta"
        )
    standard = {free[key]: symbol for key, symbol in zip((*names, theta), (X, Y, THETA), strict=True) if key in free}
    first, second = (part.subs(standard, simultaneous=True) for part in pair)
    unknown = unsupported(first) | unsupported(second)
    if unknown:
        raise ValueError(f"the transformation {pair} uses {', '.join(sorted(unknown))}, which has no torch form here")
    return first, second


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
                f"the transformation {pair} is not a one-parameter group: {law}, but at x = {x} {left_name} x = "
                f"{left_value} and {right_name}{'' if right_name == 'x' else ' x'} = {right_value}. Rewrite it so that "
                "the parameters add, for example x*exp(theta) for a scaling rather than x*(1 + theta)"
            )
