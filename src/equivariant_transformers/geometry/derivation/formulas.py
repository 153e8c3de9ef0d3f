"""SymPy formulas of canonical coordinates, and their evaluation in torch.

The maps are frozen values that compare, hash, copy and pickle by their formulas. Their torch form is rebuilt on
construction. It consists of elementwise operations whose values and gradients stay finite where the formulas do not.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from equivariant_transformers.geometry.coordinates import pair
from equivariant_transformers.geometry.projective import away_from_zero, wrap

Expr = Any
"""SymPy expression (SymPy has no type annotations)."""
Value = Any
"""Tensor, or the number of a constant part of an expression."""

X, Y, THETA = sp.symbols("x y theta", real=True)
U, V = sp.symbols("u v", real=True)


def _floor(value: Tensor) -> float:
    return float(torch.finfo(value.dtype).eps) ** 2


def _power(base: Value, exponent: Value) -> Value:
    if not isinstance(exponent, Tensor) and exponent == round(exponent):
        return (base if exponent >= 0 else away_from_zero(base)) ** int(exponent)
    if not isinstance(exponent, Tensor) and exponent == 0.5:
        return torch.sqrt(base.clamp_min(_floor(base)))
    return (base.clamp_min(_floor(base)) if isinstance(base, Tensor) else base) ** exponent


def _log(value: Tensor) -> Tensor:
    return torch.log(value.clamp_min(_floor(value)))


def _bounded(value: Tensor) -> Tensor:
    """Clamp an exponent so that a product of three such exponentials does not overflow."""
    limit = 0.3 * math.log(torch.finfo(value.dtype).max)
    return value.clamp(-limit, limit)


def _atan2(y: Value, x: Value) -> Tensor:
    x = torch.as_tensor(x, dtype=y.dtype, device=y.device) if isinstance(y, Tensor) else x
    y = torch.as_tensor(y, dtype=x.dtype, device=x.device)
    at_origin = torch.maximum(x.abs(), y.abs()) < torch.finfo(x.dtype).eps
    return torch.atan2(y, torch.where(at_origin, torch.ones_like(x), x))


def _inside_one(value: Tensor) -> Tensor:
    limit = 1 - torch.finfo(value.dtype).eps
    return value.clamp(-limit, limit)


_OPERATIONS: dict[Any, Callable[..., Value]] = {
    sp.Add: lambda *terms: functools.reduce(operator.add, terms),
    sp.Mul: lambda *factors: functools.reduce(operator.mul, factors),
    sp.Pow: _power,
    sp.Abs: torch.abs,
    sp.sign: torch.sign,
    sp.exp: lambda value: torch.exp(_bounded(value)),
    sp.log: _log,
    sp.sin: torch.sin,
    sp.cos: torch.cos,
    sp.tan: torch.tan,
    sp.atan: torch.atan,
    sp.atan2: _atan2,
    sp.asin: lambda value: torch.asin(_inside_one(value)),
    sp.acos: lambda value: torch.acos(_inside_one(value)),
    sp.sinh: lambda value: torch.sinh(_bounded(value)),
    sp.cosh: lambda value: torch.cosh(_bounded(value)),
    sp.tanh: torch.tanh,
    sp.asinh: torch.asinh,
    sp.acosh: lambda value: torch.acosh(value.clamp_min(1 + torch.finfo(value.dtype).eps)),
    sp.atanh: lambda value: torch.atanh(_inside_one(value)),
}


def unsupported(expression: Expr) -> set[str]:
    """Return the names of the functions in `expression` that have no torch form."""
    return {
        node.func.__name__
        for node in sp.preorder_traversal(expression)
        if node.args and node.free_symbols and node.func not in _OPERATIONS
    }


def _compile(expression: Expr, arguments: tuple[Expr, ...]) -> Callable[..., Value]:
    if not expression.free_symbols:
        number = float(expression)
        return lambda *_: number
    if expression.is_Symbol:
        index = arguments.index(expression)
        return lambda *values: values[index]
    operation = _OPERATIONS[expression.func]
    parts = [_compile(part, arguments) for part in expression.args]
    return lambda *values: operation(*[part(*values) for part in parts])


@dataclass(frozen=True)
class TorchFunction:
    """SymPy expressions as one function of tensors.

    >>> r = TorchFunction((X, Y), (sp.sqrt(X**2 + Y**2),))
    >>> r(torch.tensor(3.0), torch.tensor(4.0))
    [tensor(5.)]
    """

    arguments: tuple[Expr, ...]
    outputs: tuple[Expr, ...]
    _compiled: tuple[Callable[..., Value], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compiled", tuple(_compile(output, self.arguments) for output in self.outputs))

    def __reduce__(self) -> tuple[Any, ...]:
        return TorchFunction, (self.arguments, self.outputs)

    def __call__(self, *values: Tensor) -> list[Tensor]:
        """Return each output at `values`, which broadcast against one another."""
        like = functools.reduce(operator.add, values)
        return [compiled(*values) + torch.zeros_like(like) for compiled in self._compiled]


@dataclass(frozen=True)
class ToCanonical:
    """Map from points `(..., 2)` to canonical coordinates; periodic coordinates lie within half a period of 0."""

    function: TorchFunction
    periods: tuple[float | None, float | None]

    def __call__(self, points: Tensor) -> Tensor:
        columns = self.function(*points.unbind(-1))
        wrapped = [wrap(column, period) for column, period in zip(columns, self.periods, strict=True)]
        return pair(*wrapped)


@dataclass(frozen=True)
class ToPlane:
    """Map from canonical coordinates `(..., 2)` and sheet numbers `(...)` to points, with one inverse per sheet."""

    function: TorchFunction

    def __call__(self, coordinates: Tensor, sheet: Tensor) -> Tensor:
        values = self.function(*coordinates.unbind(-1))
        points = pair(values[0], values[1])
        for number in range(1, len(values) // 2):
            here = (sheet == number)[..., None]
            points = torch.where(here, pair(values[2 * number], values[2 * number + 1]), points)
        return points


@dataclass(frozen=True)
class SheetOf:
    """Map from `points` `(..., 2)` to the number of the sheet whose inverse recovers the point."""

    to_canonical: ToCanonical
    to_plane: ToPlane

    def __call__(self, points: Tensor) -> Tensor:
        sheets = torch.arange(len(self.to_plane.function.outputs) // 2, device=points.device)
        coordinates = self.to_canonical(points)[..., None, :].expand(*points.shape[:-1], len(sheets), 2)
        return (self.to_plane(coordinates, sheets) - points[..., None, :]).abs().amax(-1).argmin(-1)


@dataclass(frozen=True)
class Distance:
    """Smallest magnitude of several functions of the points; 1 if there are no functions."""

    function: TorchFunction

    def __call__(self, points: Tensor) -> Tensor:
        values = [value.abs() for value in self.function(*points.unbind(-1))]
        return functools.reduce(torch.minimum, values, torch.ones_like(points[..., 0]))


@dataclass(frozen=True)
class FormulaFlow:
    """Flow `(theta, points) -> points` of a transformation given by SymPy expressions."""

    transformation: tuple[Expr, Expr]
    _flow: TorchFunction = field(init=False, repr=False, compare=False)
    _velocity: TorchFunction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        velocity = tuple(sp.diff(part, THETA).subs(THETA, 0) for part in self.transformation)
        object.__setattr__(self, "_flow", TorchFunction((THETA, X, Y), self.transformation))
        object.__setattr__(self, "_velocity", TorchFunction((X, Y), velocity))

    def __reduce__(self) -> tuple[Any, ...]:
        return FormulaFlow, (self.transformation,)

    def __call__(self, theta: Tensor, points: Tensor) -> Tensor:
        return pair(*self._flow(theta, *points.unbind(-1)))

    def vector_field(self, points: Tensor) -> Tensor:
        return pair(*self._velocity(*points.unbind(-1)))


@dataclass(frozen=True)
class Formulas:
    r"""Canonical coordinates as SymPy expressions in x and y, and their inverse in u and v.

    The coordinates solve $D\rho_1 = 1$ and $D\rho_2 = 0$, where $D = f\,\partial_x + g\,\partial_y$ and $(f, g)$ is the
    vector field of the group; `residuals` verifies both equations. `str` and `latex` format the coordinates.
    """

    vector_field: tuple[Expr, Expr]
    pose: Expr
    """Coordinate rho_1, to which a transformation adds its parameter."""
    invariant: Expr
    """Coordinate rho_2, which a transformation leaves unchanged."""
    inverses: tuple[tuple[Expr, Expr], ...]
    """Point (x, y) in terms of u = rho_1 and v = rho_2, for each sheet."""

    def residuals(self) -> tuple[Expr, Expr]:
        r"""Return $D\rho_1 - 1$ and $D\rho_2$, simplified; both are 0 for exact formulas.

        Arguments of absolute values are assumed positive; the derivative of $\log|z|$ is the same for negative ones.
        """
        f, g = self.vector_field
        rho_1, rho_2 = (_positive(expression) for expression in (self.pose, self.invariant))
        return tuple(
            sp.simplify(f * sp.diff(rho, X) + g * sp.diff(rho, Y) - rate) for rho, rate in ((rho_1, 1), (rho_2, 0))
        )

    def latex(self) -> str:
        r"""Return the two coordinates as LaTeX, `\rho_1 = ... \quad \rho_2 = ...`."""
        return rf"\rho_1 = {sp.latex(self.pose)} \quad \rho_2 = {sp.latex(self.invariant)}"

    def __str__(self) -> str:
        lines = [f"rho_1 = {self.pose}", f"rho_2 = {self.invariant}"]
        for number, (x, y) in enumerate(self.inverses):
            on_sheet = f" on sheet {number}" if len(self.inverses) > 1 else ""
            lines.append(f"(x, y) = ({x}, {y}){on_sheet}")
        return "\n".join(lines)


def _positive(expression: Expr) -> Expr:
    return expression.replace(sp.Abs, lambda value: value).replace(sp.sign, lambda _: sp.Integer(1))


def singularities(*expressions: Expr) -> tuple[Expr, ...]:
    """Return functions of the point that vanish where one of `expressions` has a pole, a branch point or no value."""
    found: dict[Expr, None] = {}
    for expression in expressions:
        for node in sp.preorder_traversal(expression):
            if isinstance(node, sp.atan2):
                found[sp.Abs(node.args[0]) + sp.Abs(node.args[1])] = None
            elif isinstance(node, sp.log):
                found[node.args[0]] = None
            elif isinstance(node, sp.Pow) and node.exp == sp.Rational(1, 2):
                found[node] = None
            elif isinstance(node, sp.Pow) and not (node.exp.is_integer and node.exp.is_positive):
                found[node.base] = None
    return tuple(expression for expression in found if expression.free_symbols)
