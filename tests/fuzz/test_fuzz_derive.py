"""Fuzzers of `derive`, of vector fields and of what is given in place of formulas."""

import decimal
import fractions
import itertools

import numpy as np
import pytest
import sympy as sp
import torch

import equivariant_transformers as et
from equivariant_transformers.geometry.frame import pixel_centres

x, y, theta = sp.symbols("x y theta")
FUNCTIONS = (sp.sin, sp.cos, sp.tan, sp.exp, sp.log, sp.sqrt, sp.atan, sp.tanh, sp.sinh, sp.Abs, sp.sign, sp.floor)
ODD = (sp.I, sp.nan, sp.oo, sp.zoo, sp.pi, sp.Integer(10) ** 400, sp.Symbol("a"), sp.Float(1e300), sp.Rational(1, 3))


def formula(random, leaves, depth=2):
    """A random expression of `leaves`, seldom with a part that is not allowed."""
    if depth == 0 or random.random() < 0.2:
        return random.choice(ODD) if random.random() < 0.05 else random.choice(leaves)
    kind = random.randrange(5)
    first = formula(random, leaves, depth - 1)
    if kind < 2:
        return random.choice(FUNCTIONS)(first)
    if kind == 2:
        return first ** random.choice([2, 3, -1, sp.Rational(1, 2), *([100, 10**9] if first.is_Symbol else [])])
    second = formula(random, leaves, depth - 1)
    return first + second if kind == 3 else first * second


def assert_chart(chart):
    points = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for result in (chart.to_canonical(points), chart.grid(), chart.groups[0].transform(0.1, points)):
        assert result.isfinite().all()


@pytest.mark.filterwarnings("ignore:the chart of")
def test_random_formulas(fuzz):
    """A pair of formulas that were not made to be a group is one in the rarest cases."""

    def check(random):
        leaves = [x, y, theta, sp.Integer(2), sp.Rational(-1, 2)]
        pair = formula(random, leaves), formula(random, leaves)
        assert_chart(et.derive((x + theta * pair[0], y + theta * pair[1]) if random.random() < 0.5 else pair))

    fuzz(check, cases=20, allowed=(TypeError, ValueError))


@pytest.mark.filterwarnings("ignore:the chart of")
def test_random_shears(fuzz):
    """(x + theta f(y), y) is a group for any f."""

    def check(random):
        pair = x + theta * formula(random, [y, sp.Integer(1), sp.Rational(1, 3)]), y
        assert_chart(et.derive(pair if random.random() < 0.5 else tuple(p.subs({x: y, y: x}) for p in pair[::-1])))

    fuzz(check, cases=1, allowed=(TypeError, ValueError))


class Hostile:
    """An object that must not be asked for a formula."""

    def _sympy_(self):
        raise AssertionError("its hook was called")

    def __str__(self):
        raise AssertionError("it was read as text")

    __repr__ = object.__repr__
    __float__ = __int__ = __array__ = _sympy_


def nested(depth):
    return x if depth == 0 else [nested(depth - 1)]


JUNK = (
    "x + theta", "raise SystemExit", "__import__('os').abort()", "", b"x", None, True, np.bool_(True), 1j, float("nan"),
    float("inf"), 10**5000, -3, 2.5, np.float32(1), np.int64(3), decimal.Decimal("1"), fractions.Fraction(1, 3),
    object(), Hostile(), Hostile, [], {}, set(), {x, y}, {x: y}, [x], [x, y, theta], nested(50), range(2), range(10**9),
    lambda: x, torch.zeros(2), torch.zeros(2, 2), torch.zeros(2).to_sparse(), torch.zeros(2, device="meta"),
    np.zeros(2), np.array([x, "y"], dtype=object), sp.Matrix([x, y]), sp.Matrix(3, 3, range(9)), sp.eye(2), sp.true,
    sp.Eq(x, y), x < y, sp.Interval(0, 1), sp.S.EmptySet, sp.Symbol("x", commutative=False), sp.MatrixSymbol("A", 2, 2),
    sp.O(theta**2), sp.Function("f"), sp.Function("f")(x), sp.Integral(x, (x, 0, theta)),
    sp.Piecewise((x, y > 0), (y, True)),
    sp.Sum(1 / x, (x, 1, 10**9)), sp.Pow(10, sp.Pow(10, 10, evaluate=False), evaluate=False), sp.Lambda(x, x),
    et.chart("rotation"), et.group, Exception("x"), itertools.repeat(x), x, x + theta, theta, sp.sin(theta) / theta,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:the chart of")
def test_random_junk(fuzz):
    def check(random):
        kind, junk = random.randrange(4), random.choice(JUNK)
        pair, options = (x + theta, y), {}
        if kind == 0:
            pair = junk
        elif kind == 1:
            pair = random.choice([(junk, random.choice(JUNK)), (x * sp.exp(theta), junk), (junk, y * (1 + theta))])
        elif kind == 2:
            options["coordinates"] = random.choice([(junk, y), ("x", junk), [junk]])
        else:
            options["parameter"] = [junk]
        et.derive(pair, **options)

    fuzz(check, cases=300, allowed=(TypeError, ValueError))


def vector_field(random):
    """A polynomial field with random coefficients, some with a pole, a logarithm or an exponential."""
    scale = random.choice([0.1, 1.0, 10.0, 1e3])
    a = torch.tensor([[random.gauss(0, scale) for _ in range(10)] for _ in range(2)], dtype=torch.float64)
    extra = random.choice([None, None, torch.exp, torch.log, torch.reciprocal, torch.sqrt])

    def field(points):
        u, v = points.unbind(-1)
        terms = torch.stack([u**0, u, v, u * u, u * v, v * v, u**3, u * u * v, u * v * v, v**3], -1)
        velocity = terms @ a.to(points).mT
        return velocity if extra is None else velocity + extra(3 * points)

    return et.Group.from_flow(vector_field=field, steps=8)


def test_random_vector_fields_make_finite_images(fuzz):
    def check(random):
        group, dtype = vector_field(random), random.choice([torch.float32, torch.float64])
        value = random.choice([0.0, 0.1, -0.5, 2.0, 1e3, -1e10])
        parameter = torch.tensor([value, -value], dtype=dtype, requires_grad=True)
        images = torch.rand(2, 1, 6, 7, dtype=dtype, requires_grad=True)
        warp = et.Warp.flow(group.transform, parameter)
        if random.random() < 0.5:
            warp = et.Warp.projective(et.group("dilation").matrix(parameter.detach().clamp(-3, 3))) @ warp
        for seen in (warp, warp.inverse()):
            options = random.choice([{}, {"padding": "border"}, {"padding": "reflection"}, {"fill": 0.5}])
            out = seen.image(images, mode=random.choice(["bilinear", "nearest", "bicubic", "sharp_bicubic"]), **options)
            assert out.isfinite().all()
            gradients = torch.autograd.grad(out.sum(), (images, parameter), allow_unused=True, materialize_grads=True)
            assert all(gradient.isfinite().all() for gradient in gradients)
            points = torch.rand(2, 9, 2, dtype=dtype, requires_grad=True)
            moved = seen.points(points)
            assert moved.isfinite().all()
            assert group.transform(parameter[0], points).isfinite().all()
            inside = seen.visible(points)[..., None]
            assert torch.autograd.grad((moved * inside).sum(), points)[0].isfinite().all()
            assert not (seen.valid((6, 7)) & ~seen.visible(_centres(dtype))[:, None]).any()

    fuzz(check, cases=60)


def _centres(dtype):
    x, y = pixel_centres((6, 7), dtype, "cpu")
    return torch.stack(torch.broadcast_tensors(x, y), -1).expand(2, 6, 7, 2)


@pytest.mark.filterwarnings("ignore:the chart of")
def test_random_vector_fields_have_finite_charts(fuzz):
    def check(random):
        chart = et.derive(vector_field(random))
        assert_chart(chart)
        layer = et.EquivariantTransformer(chart.replace(size=(8, 8)), in_channels=1)
        out = layer(torch.rand(1, 1, 9, 9))
        assert out.image.isfinite().all()
        assert out.pose.isfinite().all()

    fuzz(check, cases=1, allowed=(ValueError,))
