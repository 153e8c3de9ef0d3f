"""One-parameter groups of plane transformations.

`GROUPS` holds the eleven groups of the paper. `Group.from_generator` builds a group from any other 3x3 generator, and
`Group.from_flow` from a flow that is not given by a 3x3 matrix.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equivariant_transformers.geometry import exponential, projective
from equivariant_transformers.geometry.exponential import Matrix3
from equivariant_transformers.geometry.flows import Flow, follow
from equivariant_transformers.text import quote

T = TypeVar("T")
VectorField = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Group:
    r"""One-parameter group $\{T_\theta\}$ of transformations of the plane.

    An element is represented by its parameter: `compose(a, b)` is the parameter of $T_a T_b$ and `inverse(a)` the
    parameter of $T_a^{-1}$. A group has either a `generator` $A$, with $T_\theta = \exp(\theta A)$ in homogeneous
    coordinates, or a `flow(theta, points)`. Create a group with `Group.from_generator` or `Group.from_flow`.

    >>> group("x_translation").matrix(0.5)
    tensor([[1.0000, 0.0000, 0.5000],
            [0.0000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """

    name: str
    generator: Matrix3 | None = None
    flow: Flow | None = None
    period: float | None = None
    """Smallest positive theta with T_theta = identity, or None."""
    _terms: tuple[exponential.Term, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"the name of a group is a string, got {quote(self.name)}")
        if (self.generator is None) == (self.flow is None):
            raise ValueError(
                f"group {self.name!r} needs either a generator or a flow; use Group.from_generator(A, name=...)"
            )
        if self.generator is not None:  # it determines the terms and the period
            object.__setattr__(self, "generator", _checked(self.generator))
            object.__setattr__(self, "_terms", exponential.terms(self.generator))
            object.__setattr__(self, "period", exponential.period(self._terms))
        elif not callable(self.flow):
            raise TypeError(f"a flow is a function (theta, points) -> points, got {quote(self.flow)}")
        elif not (self.period is None or (_is_number(self.period) and 0 < self.period < math.inf)):
            raise ValueError(f"the period of a group is a positive number or None, got {quote(self.period)}")

    @staticmethod
    def from_generator(generator: Tensor | NDArray[Any] | Sequence[Sequence[float]], *, name: str = "custom") -> Group:
        r"""Create the group $T_\theta = \exp(\theta A)$ of a 3x3 generator $A$ acting on homogeneous coordinates.

        >>> spiral = Group.from_generator([[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]], name="spiral")
        >>> spiral.transform(torch.pi / 2, torch.tensor([1.0, 0.0]))[1]
        tensor(1.3691)
        """
        return Group(name, generator=generator)  # type: ignore[arg-type]  # converted in __post_init__

    @staticmethod
    def from_flow(
        flow: Flow | None = None,
        *,
        vector_field: VectorField | None = None,
        name: str = "custom",
        period: float | None = None,
        steps: int = 64,
    ) -> Group:
        """Create the group of a flow `(theta, points) -> points`, or of the flow of a vector field.

        Args:
            flow: flow in closed form; `theta` broadcasts against `points.shape[:-1]`.
            vector_field: function `points -> velocities`, integrated numerically; use it if no closed form is known.
            name: display name of the group.
            period: smallest positive theta with `flow(theta, x) = x`, or None.
            steps: number of Runge-Kutta steps per transformation of a vector field.
        """
        if (flow is None) == (vector_field is None):
            raise ValueError(
                "from_flow takes exactly one of a closed-form flow and vector_field=..., got both or neither"
            )
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps must be a whole number, at least 1, got {quote(steps)}")
        if vector_field is not None:
            if not callable(vector_field):
                raise TypeError(f"a vector field is a function points -> velocities, got {quote(vector_field)}")
            flow = IntegratedFlow(vector_field, steps)
        return Group(name, flow=flow, period=period)

    def matrix(self, theta: Tensor | float) -> Tensor:
        r"""Return $T_\theta$ as homogeneous matrices `(..., 3, 3)` for theta `(...)`, in the dtype of theta.

        Entries that overflow (the exponential of a huge theta) saturate at the largest finite number.
        """
        if self.generator is None:
            raise TypeError(f"group {self.name!r} is a flow and has no 3x3 matrix; use transform(theta, points)")
        theta = _parameter(theta)
        if not theta.is_floating_point():
            theta = theta.to(torch.get_default_dtype())
        return exponential.evaluate(self._terms, theta)

    def transform(self, theta: Tensor | float, points: Tensor) -> Tensor:
        r"""Return $T_\theta x$ for `points` `(..., 2)`; theta broadcasts against the leading shape of `points`.

        The result is finite for finite arguments: a point that leaves the plane is placed very far away.

        >>> group("x_shear").transform(0.5, torch.tensor([0.0, 1.0]))
        tensor([-0.5000, 1.0000])
        """
        _check_points(points)
        theta = _parameter(theta, points)
        if not torch.compiler.is_compiling():
            _check_shapes(theta, points)
        if self.flow is not None:
            return follow(self.flow, theta, points)
        return projective.apply(self.matrix(theta), points)

    def vector_field(self, points: Tensor) -> Tensor:
        r"""Return the velocity $\partial T_\theta x / \partial\theta$ at theta = 0 of `points` `(..., 2)`."""
        _check_points(points)
        known: VectorField | None = getattr(self.flow, "vector_field", None)
        if known is not None:
            return known(points)
        if self.flow is not None:
            zero = torch.zeros(points.shape[:-1], dtype=points.dtype, device=points.device)
            flow = self.flow
            velocity: Tensor = torch.func.jvp(lambda theta: flow(theta, points), (zero,), (torch.ones_like(zero),))[1]
            return velocity
        assert self.generator is not None
        x, y = points.unbind(-1)
        u, v, w = (a * x + (b * y + c) for a, b, c in self.generator)  # numbers, which no device has to copy
        return torch.stack((u, v), -1) - points * w[..., None]

    def compose(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the parameter of $T_a T_b$, wrapped to within half a period of 0 if the group is periodic."""
        return projective.wrap(a + b, self.period)

    def inverse(self, theta: Tensor) -> Tensor:
        r"""Return the parameter of $T_\theta^{-1}$, wrapped as in `compose`."""
        return projective.wrap(-theta, self.period)


@dataclass(frozen=True)
class IntegratedFlow:
    """Flow of a vector field, integrated by classical Runge-Kutta steps of equal length."""

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
    """Return the rows of a 3x3 generator; raise an error if it is malformed or moves no point."""
    a = _real_array(generator)
    if a.shape != (3, 3):
        raise ValueError(f"a generator is a 3x3 matrix, got shape {a.shape}{_EXAMPLE}")
    if not np.isfinite(a).all():
        raise ValueError(f"a generator must be finite, got {a.tolist()}{_EXAMPLE}")
    scale = np.abs(a).max()
    if np.allclose(a, a[0, 0] * np.eye(3), rtol=0, atol=1e-12 * scale):
        raise ValueError(
            f"generator {a.tolist()} moves nothing, since it is a multiple of the identity; change one of its entries"
        )
    if not 1 / _LARGEST <= scale <= _LARGEST:
        raise ValueError(
            f"the largest entry of a generator must lie between {1 / _LARGEST:g} and {_LARGEST:g}, got {a.tolist()}; "
            "rescale the generator, which only changes the unit of theta"
        )
    rows: Matrix3 = tuple(tuple(float(entry) for entry in row) for row in a)  # type: ignore[assignment]
    return rows


def _real_array(generator: Any) -> NDArray[np.float64]:
    """Convert `generator` to float64; raise a TypeError if its real values cannot be read."""
    try:
        if isinstance(generator, Tensor):
            if generator.is_meta or generator.layout != torch.strided or generator.is_complex():
                raise TypeError("no readable real values")
            generator = generator.detach().double().cpu()
        numbers = np.asarray(generator)
        if numbers.dtype.kind not in "biufO":  # text and complex numbers
            raise TypeError("not numbers")
        return numbers.astype(np.float64)
    except Exception as error:  # the conversion of a foreign object may raise anything
        raise TypeError(
            f"a generator is a 3x3 matrix of real numbers, a dense tensor, an array or lists; got {quote(generator)}"
            f"{_EXAMPLE}"
        ) from error


def _parameter(theta: Any, like: Tensor | None = None) -> Tensor:
    """Convert `theta` to a real tensor, with the dtype and device of `like` if `like` is given."""
    dtype, device = (None, None) if like is None else (like.dtype, like.device)
    if not isinstance(theta, Tensor):
        try:
            if not _is_number(theta) and np.iscomplexobj(theta):
                raise TypeError("complex numbers")
            return torch.as_tensor(theta, dtype=dtype, device=device)
        except Exception as error:  # the conversion of a foreign object may raise anything
            raise TypeError(f"theta is a number or a tensor of real numbers, got {quote(theta)}") from error
    if theta.layout != torch.strided or theta.is_complex() or _is_narrow(theta):
        kind = theta.dtype if theta.layout == torch.strided else f"layout {theta.layout}"
        raise TypeError(f"theta is a number or a dense tensor of real numbers of at least 16 bits, got {kind}")
    if like is not None and theta.is_meta and not like.is_meta:
        raise TypeError("theta is on the meta device, where it has no values; move it to the device of the points")
    return theta if like is None else theta.to(dtype=dtype, device=device)


def _check_points(points: Tensor) -> None:
    if not isinstance(points, Tensor):
        raise TypeError(f"points must be a torch.Tensor, got {type(points).__name__}; convert with torch.as_tensor")
    if not points.is_floating_point() or _is_narrow(points) or points.layout != torch.strided:
        kind = points.dtype if points.layout == torch.strided else f"layout {points.layout}"
        raise TypeError(f"points are a dense floating-point tensor of at least 16 bits, got {kind}")
    if points.ndim == 0 or points.shape[-1] != 2:
        raise ValueError(f"points have shape (..., 2), as (x, y), got {tuple(points.shape)}")


def _check_shapes(theta: Tensor, points: Tensor) -> None:
    try:
        torch.broadcast_shapes(theta.shape, points.shape[:-1])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ValueError(
            f"theta of shape {tuple(theta.shape)} does not broadcast against the leading shape of points "
            f"{tuple(points.shape)}; pass one number per point, one per set of points, or a single number"
        ) from None


def _is_narrow(tensor: Tensor) -> bool:
    """Return True if `tensor` has a floating-point dtype that torch stores but does not compute with."""
    return tensor.is_floating_point() and tensor.dtype.itemsize == 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _radial_lens_flow(theta: Tensor, points: Tensor) -> Tensor:
    remaining = 1 - 2 * theta * points.square().sum(-1)
    return points * torch.rsqrt(remaining.clamp_min(1e-30))[..., None]  # very far away if nothing remains


_LARGEST = 1e18  # largest entry of a generator; its square is still finite in float32
_EXAMPLE = ". A rotation is [[0, -1, 0], [1, 0, 0], [0, 0, 0]]"
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
"""One-parameter groups of the paper, by name."""

RADIAL_LENS = Group.from_flow(_radial_lens_flow, name="radial_lens")
r"""Radial lens distortion $T_\theta x = x / \sqrt{1 - 2\theta|x|^2}$, the flow of $|x|^2 x$. It has no 3x3 matrix.

Positive theta is a pincushion distortion, negative theta a barrel distortion. Points with $2\theta|x|^2 \ge 1$ leave
the plane and are placed very far away.
"""


def group(name: str | Group) -> Group:
    """Return the group called `name`; a `Group` is returned unchanged.

    >>> group("dilation").vector_field(torch.tensor([2.0, 3.0]))
    tensor([2., 3.])
    """
    return name if isinstance(name, Group) else lookup(GROUPS, name, "group")


def lookup(table: dict[str, T], name: str, kind: str) -> T:
    """Return `table[name]`; raise a ValueError that lists the names and suggests the nearest name if there is none."""
    if isinstance(name, str) and name in table:
        return table[name]
    nearest = difflib.get_close_matches(name[:100] if isinstance(name, str) else quote(name), table, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"unknown {kind} {quote(name)}.{hint} The {kind}s are: {', '.join(table)}")
