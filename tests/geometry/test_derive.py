"""Algorithm 1: the laws of canonical coordinates over derived charts, and agreement with the paper's table."""

import copy
import functools
import pickle
import threading

import numpy as np
import pytest
import sympy as sp
import torch
from bounded import run_bounded
from glyphs import glyphs
from sympy import cos, exp, sin, sqrt, tan

import equivariant_transformers as et
from equivariant_transformers.geometry.derivation import coverage
from equivariant_transformers.geometry.derivation.algorithm import derive
from equivariant_transformers.geometry.derivation.chart_checks import usefulness, warn_unless_useful
from equivariant_transformers.geometry.derivation.time_limit import within

x, y, theta = sp.symbols("x y theta")
r2 = x**2 + y**2
lens = sqrt(1 - 2 * theta * r2)
half = theta / 2

PAPER = {
    "x_translation": (x + theta, y),
    "y_translation": (x, y + theta),
    "rotation": (x * cos(theta) - y * sin(theta), x * sin(theta) + y * cos(theta)),
    "dilation": (x * exp(theta), y * exp(theta)),
    "x_scale": (x * exp(theta), y),
    "y_scale": (x, y * exp(theta)),
    "hyperbolic_rotation": (x * exp(theta), y * exp(-theta)),
    "x_shear": (x - theta * y, y),
    "y_shear": (x, y + theta * x),
    "x_perspective": (x / (theta * x + 1), y / (theta * x + 1)),
    "y_perspective": (x / (theta * y + 1), y / (theta * y + 1)),
}
MATRICES = {
    "spiral": [[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]],
    "diagonal_shear": [[-0.5, 0.5, 0], [-0.5, 0.5, 0], [0, 0, 0]],
    "tilted_shear": [[-(3**0.5) / 4, 0.75, 0], [-0.25, 3**0.5 / 4, 0], [0, 0, 0]],
    "rotation_about_a_point": [[0, -1, 0.3], [1, 0, -0.2], [0, 0, 0]],
    "real_eigenvalues": [[2, 1, 0], [1, 1, 0.5], [0, 0, 0]],
    "node": [[1, 0, 0], [0, 2, 0], [0, 0, 0]],
    "complex_eigenvalues": [[0.3, -2, 0.1], [0.5, 0.1, 0.2], [0, 0, 0]],
    "two_block": [[1, 1, 0], [0, 1, 0], [0, 0, 0]],
    "three_block": [[0, 1, 0], [0, 0, 1], [0, 0, 0]],
    "off_centre_dilation": [[1, 0, 0.2], [0, 1, 0.1], [0, 0, 0]],
    "projective_real": [[0.9, 0.2, 0.5], [0.3, -0.8, 0.1], [0.2, 0.1, 0]],
    "projective_complex": [[0.4, 0.1, 1.5], [0.8, 0.1, 0.4], [-0.3, 0.2, -0.2]],
    "homology": [[0.5, 0, 0], [0, 0.5, 0], [0.3, 0.1, 0]],
}
NONLINEAR = {
    "lens": (x / lens, y / lens),
    "reciprocal": (x / (1 - theta * x), y * exp(theta)),
    "slide_and_grow": (x + theta, y * exp(theta)),
    "tangent": (tan(sp.atan(x) + half), y * exp(theta)),
    "sine": (x + theta, y + sin(x + theta) - sin(x)),
    "cubic": (x / sqrt(1 - 2 * theta * x**2), y),
    "logistic": (x * exp(theta) / (1 - x + x * exp(theta)), y * exp(2 * theta)),
    "quotient": (x * (1 - theta * y), y / (1 - theta * y)),
}


def bent(points):
    u, v = points.unbind(-1)
    return torch.stack((1 + 0.3 * torch.sin(2 * v), 0.5 * torch.cos(3 * u) * torch.exp(v / 2)), -1)


@functools.cache
def derived(kind, name):
    if kind == "numeric":
        group = {"radial_lens": et.RADIAL_LENS, "bent": et.Group.from_flow(vector_field=bent, name="bent")}.get(name)
        return derive(group or name, method="numeric")
    if kind == "group":
        return derive(et.GROUPS[name])
    if kind == "matrix":
        return derive(et.Group.from_generator(MATRICES[name], name=name), method="symbolic")
    return derive((PAPER | NONLINEAR)[name], name=name, method="symbolic")


SYMBOLIC = (
    [("paper", name) for name in PAPER]
    + [("group", name) for name in PAPER]
    + [("matrix", name) for name in MATRICES]
    + [("nonlinear", name) for name in NONLINEAR]
)
NUMERIC = [("numeric", name) for name in ("rotation", "x_shear", "radial_lens", "bent")]
every_symbolic = pytest.mark.parametrize("case", SYMBOLIC, ids="-".join)
every_numeric = pytest.mark.parametrize("case", NUMERIC, ids="-".join)
every_chart = pytest.mark.parametrize("case", SYMBOLIC + NUMERIC, ids="-".join)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def sample(chart, dtype=torch.float64, count=300):
    """Random points of the image, well off the singular set."""
    points = (torch.rand(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1.8 - 0.9).to(
        dtype
    )
    return points[chart.distance(points).abs() > 0.1]


@every_chart
@both_dtypes
def test_a_transformation_is_a_translation(case, dtype):
    chart = derived(*case)
    points = sample(chart, dtype)
    assert len(points) > 100
    step = 0.03
    moved = chart.groups[0].transform(step, points)
    before, after = chart.to_canonical(points), chart.to_canonical(moved)
    kept = (moved.abs().amax(-1) < 1) & (chart.distance(moved).abs() > 0.1)
    assert torch.equal(chart.sheet(moved)[kept], chart.sheet(points)[kept])
    shift = chart.wrap(after - before - torch.tensor([step, 0.0], dtype=dtype))
    error = shift.abs() / (1 + before.abs())
    exact = 1e-6 if case[0] == "numeric" else 1e-10
    assert error[kept].max() < (exact if dtype == torch.float64 else 3e-4)


@every_chart
@both_dtypes
def test_round_trips(case, dtype):
    chart = derived(*case)
    points = sample(chart, dtype)
    back = chart.to_plane(chart.to_canonical(points), chart.sheet(points))
    exact = 1e-6 if case[0] == "numeric" else 1e-10
    assert (back - points).abs().max() < (exact if dtype == torch.float64 else 3e-4)
    assert set(chart.sheet(points).tolist()) == set(range(chart.sheets))


@pytest.mark.parametrize("kind", ["paper", "group"])
@pytest.mark.parametrize("name", PAPER)
def test_the_equations_hold_exactly_for_the_paper(kind, name):
    assert derived(kind, name).formulas.residuals() == (0, 0)


@pytest.mark.parametrize("name", NONLINEAR)
def test_the_equations_hold_exactly_for_nonlinear_fields(name):
    assert derived("nonlinear", name).formulas.residuals() == (0, 0)


@pytest.mark.parametrize("name", ["spiral", "diagonal_shear", "tilted_shear", "node", "two_block", "three_block"])
def test_simple_generators_have_exact_formulas(name):
    formulas = derived("matrix", name).formulas
    assert not formulas.pose.atoms(sp.Float)
    assert formulas.residuals() == (0, 0)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_table_is_rediscovered(name):
    """Both charts of a group differ in rho_1 by a function of the invariant, and rho_2 is constant along orbits."""
    ours, theirs = derived("paper", name), et.chart(name)
    points = sample(ours)
    velocity = theirs.groups[0].vector_field(points)
    torch.testing.assert_close(ours.groups[0].vector_field(points), velocity)
    for chart in (ours, theirs):
        rate = torch.func.jvp(chart.to_canonical, (points,), (velocity,))[1]
        torch.testing.assert_close(rate, torch.tensor([1.0, 0.0], dtype=rate.dtype).expand_as(rate))


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("rotation", "sqrt(x**2 + y**2)"),
        ("x_shear", "y"),
        ("y_shear", "x"),
        ("x_perspective", "atan(y/x)"),
        ("y_perspective", "atan(x/y)"),
        ("dilation", "atan2(y, x)"),
        ("x_scale", "y"),
        ("hyperbolic_rotation", "y*sqrt(Abs(x/y))"),
    ],
)
def test_the_least_distorting_invariant_is_preferred(name, invariant):
    assert str(derived("paper", name).formulas.invariant) == invariant


def test_distortion_orders_the_invariants_of_a_rotation():
    points = coverage.image_points()
    radius, square, logarithm = (
        coverage.distortion(f, points)
        for f in (lambda p: p.norm(dim=-1), lambda p: p.square().sum(-1), lambda p: p.norm(dim=-1).log())
    )
    assert radius < 1e-12 < square
    assert radius < logarithm


@every_chart
@both_dtypes
def test_values_and_gradients_are_finite_everywhere(case, dtype):
    chart = derived(*case)
    special = torch.tensor([0.0, -0.0, 1e-30, 0.5, -0.5, 1.0, -1.0], dtype=dtype)
    points = torch.cartesian_prod(special, special).requires_grad_()
    u = chart.to_canonical(points)
    assert u.isfinite().all()
    assert torch.autograd.grad(u.sum(), points)[0].isfinite().all()
    coordinates = torch.cartesian_prod(*[torch.tensor([-1e3, -2.0, 0.0, 1.0, 1e3], dtype=dtype)] * 2).requires_grad_()
    for sheet in range(chart.sheets):
        plane = chart.to_plane(coordinates, sheet)
        assert plane.isfinite().all()
        assert torch.autograd.grad(plane.sum(), coordinates)[0].isfinite().all()


@pytest.mark.parametrize("name", sorted(PAPER.keys() - {"x_translation", "y_translation"}))
@both_dtypes
def test_singular_points_are_not_valid(name, dtype):
    chart = derived("paper", name)
    assert not chart.valid(torch.zeros(2, dtype=dtype))
    assert chart.valid(torch.tensor([0.4, 0.3], dtype=dtype))


def test_the_centre_of_a_shifted_rotation_is_singular():
    chart = derived("matrix", "rotation_about_a_point")
    assert not chart.valid(torch.tensor([0.2, 0.3]))
    assert chart.valid(torch.zeros(2))


@every_chart
def test_the_ranges_cover_the_image(case):
    assert derived(*case).coverage(64) >= 0.85


@pytest.mark.parametrize("name", PAPER)
def test_the_sheets_and_the_order_are_those_of_the_table(name):
    ours, theirs = derived("paper", name), et.chart(name)
    assert (ours.sheets, ours.mirrored, ours.order) == (theirs.sheets, theirs.mirrored, theirs.order)


@pytest.mark.parametrize("name", ["dilation", "x_scale", "y_perspective", "x_shear"])
def test_the_ranges_come_close_to_those_of_the_table(name):
    ours, theirs = derived("paper", name).ranges[0], et.chart(name).ranges[0]
    width = theirs[1] - theirs[0]
    assert ours == pytest.approx(theirs, abs=0.12 * width)


@pytest.mark.parametrize("name", ["spiral", "tilted_shear", "off_centre_dilation", "homology"])
@pytest.mark.parametrize("unit", [-1, 50])
def test_the_unit_of_a_generator_is_that_of_its_chart(name, unit):
    """A flow run through at another speed, or backwards, has the same picture in other units."""
    chart = derived("matrix", name)
    other = derive(et.Group.from_generator([[unit * entry for entry in row] for row in MATRICES[name]]))
    assert sorted(unit * bound for bound in other.ranges[0]) == pytest.approx(chart.ranges[0], rel=1e-6)
    assert unit * other.centre[0] == pytest.approx(chart.centre[0], rel=1e-6)
    assert (other.size, other.order) == (chart.size, chart.order)


@pytest.mark.parametrize("centre", [(0.0, 0.0), (0.2, 0.1), (0.3, -0.4)])
def test_a_fixed_point_is_seen_from_close_by(centre):
    """A point singularity takes a few pixels of the image, wherever it is."""
    a, b = centre
    chart = derive(et.Group.from_generator([[1, 0, -a], [0, 1, -b], [0, 0, 0]]))
    points = coverage.image_points()
    missing = points[~chart.covers(points)]
    assert ((missing - torch.tensor(centre)).norm(dim=-1) < 1 / 32).all()


@every_chart
def test_charts_are_values(case):
    chart = derived(*case)
    assert copy.deepcopy(chart) == chart
    again = pickle.loads(pickle.dumps(chart))
    assert again == chart
    assert hash(again) == hash(chart)
    points = sample(chart)
    torch.testing.assert_close(again.to_canonical(points), chart.to_canonical(points), rtol=0, atol=0)


@every_numeric
def test_gradients_through_the_numeric_inverse(case):
    chart = derived(*case)
    points = sample(chart, count=40).requires_grad_()
    rate = torch.autograd.functional.jacobian(lambda p: chart.to_canonical(p).sum(0), points).movedim(1, 0)  # (n, 2, 2)
    velocity = chart.groups[0].vector_field(points.detach())
    along = (rate * velocity[:, None]).sum(-1)
    torch.testing.assert_close(along, torch.tensor([1.0, 0.0], dtype=along.dtype).expand_as(along), rtol=0, atol=1e-5)


def test_formulas_print():
    formulas = derived("paper", "x_scale").formulas
    assert str(formulas).splitlines()[:2] == ["rho_1 = log(Abs(x))", "rho_2 = y"]
    assert formulas.latex() == r"\rho_1 = \log{\left(\left|{x}\right| \right)} \quad \rho_2 = y"


def test_symbols_can_have_other_names():
    x1, x2, t, a, b, s = sp.symbols("x1 x2 t a b s")
    expected = derived("paper", "x_shear").formulas
    assert derive((x1 - t * x2, x2)).formulas == expected
    assert derive((a - s * b, b), coordinates=(a, b), parameter=s).formulas == expected


def test_a_derived_group_derives_the_same_chart():
    chart = derived("nonlinear", "cubic")
    assert derive(chart.groups[0]).formulas == chart.formulas
    assert chart.groups[0] == pickle.loads(pickle.dumps(chart.groups[0]))


def test_flows_without_a_formula_are_numeric():
    assert derived("numeric", "radial_lens").formulas is None
    with pytest.raises(ValueError, match="no closed form"):
        derive(et.RADIAL_LENS, method="symbolic")


def turned(angle):
    return x * cos(angle) - y * sin(angle), x * sin(angle) + y * cos(angle)


def test_without_a_closed_form_the_answer_is_numeric():
    """A twist turns every circle at its own speed, so no coordinate has one period."""
    with pytest.warns(UserWarning, match="closed with different periods"):
        chart = derive(turned(theta * r2))
    assert chart.formulas is None
    points = sample(chart, count=40).requires_grad_()
    u = chart.to_canonical(points)
    torch.testing.assert_close(chart.to_plane(u), points)
    velocity = chart.groups[0].vector_field(points.detach())
    for column, rate in ((0, 1.0), (1, 0.0)):
        (gradient,) = torch.autograd.grad(u[:, column].sum(), points, retain_graph=True)
        torch.testing.assert_close((gradient * velocity).sum(-1), torch.full((len(points),), rate).double())


def test_symbolic_charts_can_be_traced():
    points = torch.tensor([[0.5, 0.3], [-0.2, 0.7]])
    for case in (("paper", "hyperbolic_rotation"), ("nonlinear", "lens")):
        chart = derived(*case)
        traced = torch.compile(chart.to_canonical, backend="eager", fullgraph=True)
        torch.testing.assert_close(traced(points), chart.to_canonical(points))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((x + theta + 1, y), ValueError, r"T_0 x should be x"),
        ((x * (1 + theta), y), ValueError, r"T_a T_b should be T_\(a\+b\).*T_0.05 T_0.07 x"),
        ((x, y), ValueError, "does not depend on theta"),
        ((x + theta**3, y), ValueError, "not a one-parameter group|zero"),
        ((x + theta * sp.Symbol("k"), y), ValueError, "free symbols k"),
        ((x + theta,), ValueError, "pair of expressions"),
        ((x + theta, y, y), ValueError, "got 3"),
        (3.0, TypeError, "takes a Group"),
        (((x, y), (x, y)), TypeError, "one SymPy expression"),
        ((x + sp.gamma(theta), y), ValueError, "gamma"),
        ("rotatoin", ValueError, "Did you mean 'rotation'"),
        (et.chart("log_polar"), TypeError, "chart 'log_polar'"),
        ((x + 0 * theta, y), ValueError, "moves nothing"),
        ((x * exp(sp.I * theta), y), ValueError, "real and finite, got I"),
        ((x + 1 / theta, y), ValueError, "no real value at theta = 0"),
        ((x * sp.log(theta), y), ValueError, "no real value at theta = 0"),
        ((x + sp.sqrt(theta), y), ValueError, "no real derivative at theta = 0"),
        ((sp.nan, y + theta), ValueError, "real and finite, got nan"),
        ((x + sp.oo * theta, y), ValueError, "real and finite, got oo"),
        ((x + theta * float("inf"), y), ValueError, "real and finite, got oo"),
        ((sp.zoo * theta, y), ValueError, "real and finite, got zoo"),
        ((True, y + theta), TypeError, "got True of type bool"),
        ((x < y, y + theta), TypeError, "got x < y"),
        ((sp.Matrix([x]), y + theta), TypeError, "one SymPy expression"),
        ((sp.MatrixSymbol("A", 2, 2) * theta, y), TypeError, "one SymPy expression"),
        ((x + theta + sp.O(theta**2), y), ValueError, "uses Order"),
        ((x + theta * sp.Symbol("x", commutative=False), y), ValueError, "consists of symbols"),
        ((x + theta, y + sp.Sum(1 / x, (x, 1, 10**9))), ValueError, "real|torch form|not a one-parameter"),
        ({x + theta, y}, TypeError, "takes a Group"),
        ({x + theta: 1, y: 2}, TypeError, "takes a Group"),
        (torch.zeros(2), TypeError, "of type Tensor"),
        ((x + theta * sp.Integer(10) ** 400, y), ValueError, "at most 300 digits"),
        ((x + theta * y ** (10**9), y), ValueError, "powers up to 64"),
    ],
)
def test_bad_input_is_explained(given, error, message):
    with pytest.raises(error, match=message):
        derive(given)


def test_text_and_foreign_objects_are_never_evaluated(tmp_path):
    """SymPy evaluates text and calls hooks of objects when it converts them."""
    mark = tmp_path / "ran"

    class Hook:
        def _sympy_(self):
            mark.touch()
            return x + theta

        __str__ = __float__ = _sympy_

    text = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    for part in (text, "x + theta", Hook(), np.str_(text), np.array(text)):
        for pair in ((part, y), [x + theta, part], np.array([part, y], dtype=object), (sp.Tuple(x, theta), part)):
            with pytest.raises(TypeError, match=r"text is not evaluated. For example: x, y, theta = sympy.symbols"):
                derive(pair)
    for options in ({"parameter": text}, {"parameter": Hook()}, {"coordinates": (text, "y")}, {"name": Hook()}):
        with pytest.raises((TypeError, ValueError)):
            derive((x + theta, y), **options)
    assert not mark.exists()


def test_numbers_and_vectors_are_formulas_too():
    shear = derive((x + theta * y, y)).formulas
    assert derive(sp.Matrix([x + theta * y, y])).formulas == shear
    with pytest.raises(ValueError, match="T_0 x should be x"):
        derive((x + theta, np.int64(1)))


def test_symbols_of_one_name_are_one_symbol():
    mixed = sp.Symbol("x", real=True) + theta * y, y + 0 * x
    assert derive((x + theta * y + x - sp.Symbol("x", real=True), y)).formulas == derive(mixed).formulas


@pytest.mark.parametrize(
    "formula",
    [
        "(x + theta * y ** 10**9, y)",
        "(x + theta * (y + 1) ** 64, y)",
        "(x + theta * ((y**8 + 1) ** 8 + 1) ** 8, y)",
        "(x + theta * sp.prod([sp.sin(k * y) + sp.exp(k * y) for k in range(1, 9)]), y)",
        "(x + theta * sp.Pow(10, sp.Pow(10, 10**10, evaluate=False), evaluate=False), y)",
        "(nested(400), y + theta)",
        "(x + theta * sp.Integer(7) ** 10**6, y)",
    ],
)
def test_no_formula_takes_long(formula):
    code = f"""
def nested(depth):
    return sp.sin(nested(depth - 1), evaluate=False) if depth else x
x, y, theta = sp.symbols("x y theta")
try:
    print(equivariant_transformers.derive({formula}))
except ValueError as error:
    print("ValueError", error)
"""
    done = run_bounded(code, imports="import sympy as sp, equivariant_transformers.geometry.derivation.numeric")
    assert done.stdout.startswith(("Chart", "ValueError")), done.stderr


def test_the_time_limit_keeps_what_was_found():
    def items():
        yield 1
        yield 2
        while True:
            pass

    before = threading.active_count()
    assert within(0.2, items()) == [1, 2]
    assert threading.active_count() == before
    with pytest.raises(ZeroDivisionError):
        within(10, (1 / n for n in (1, 0)))


def test_bad_options_are_explained():
    with pytest.raises(TypeError, match="SymPy symbols or their names, got 3"):
        derive((x + theta, y), parameter=3)
    with pytest.raises(ValueError, match="three different symbols"):
        derive((x + theta, y), coordinates=("x", "theta"))
    with pytest.raises(ValueError, match="two symbols"):
        derive((x + theta, y), coordinates=3)
    with pytest.raises(TypeError, match="name of a chart is a string"):
        derive((x + theta, y), name=3)
    with pytest.raises(ValueError, match="method is"):
        derive("rotation", method="guess")
    with pytest.raises(ValueError, match="one-parameter"):
        derive((x + theta, y), parameter=(theta, x))
    with pytest.raises(ValueError, match="two symbols"):
        derive((x + theta, y), coordinates=(x,))


def in_degrees(angle, points):
    turn = angle * (torch.pi / 180)
    first, second = points.unbind(-1)
    moved = (turn.cos() * first - turn.sin() * second, turn.sin() * first + turn.cos() * second)
    return torch.stack(moved, -1)


def test_the_unit_of_the_parameter_does_not_matter():
    """A layer for degrees follows like one for radians."""
    torch.manual_seed(0)
    chart = derive(et.Group.from_flow(in_degrees, name="degrees", period=360.0))
    layer = et.EquivariantTransformer(chart, in_channels=1)
    result = et.self_consistency(layer, glyphs(64), (-60, 60))
    assert result.slope[0] == pytest.approx(1, abs=0.02)
    assert result.median[0] < 0.02


@pytest.mark.parametrize(
    ("transformation", "reason"),
    [
        (turned(theta * exp(-4 * r2)), r"its pose runs from -\d+ to \d+.*speed varies less.*chart\.replace\(ranges="),
        (turned(theta * exp(-r2)), r"follows theta with slope .*et\.self_consistency"),
        ((x + theta * exp(-100 * (y - 0.3) ** 2), y), "samples .the image is 2 wide"),
    ],
)
def test_a_chart_of_little_use_says_what_to_change(transformation, reason):
    with pytest.warns(UserWarning, match=rf"the chart of 'odd' is of little use to a layer: .*{reason}") as caught:
        derive(transformation, name="odd")
    assert [warning.filename for warning in caught] == [__file__]


def test_usefulness_follows_the_ranges():
    """A chart that ends in the middle of the picture covers less and follows less; a coarse one has long strides."""
    whole = usefulness(et.chart("dilation"))
    part = et.chart("dilation").replace(ranges=((-1.0, -0.6), (-np.pi, np.pi)))
    assert (whole.coverage, whole.error) > (0.99, 0)
    assert abs(whole.slope - 1) < 0.1
    assert usefulness(part).coverage < 0.2
    assert usefulness(part).slope < 0.5
    coarse = et.chart("dilation").replace(size=(64, 8))
    assert usefulness(coarse).stride == pytest.approx(8 * whole.stride)
    with pytest.warns(UserWarning, match=r"it covers \d+% of the image"):
        warn_unless_useful(part)


@pytest.mark.parametrize("transformation", [(x / lens, y / lens), et.RADIAL_LENS], ids=["formula", "flow"])
def test_a_lens_is_followed(transformation):
    """Orbits run into the centre without an end; two derivatives fade out the content there."""
    chart = derive(transformation, name="lens")
    assert chart.order == 2
    slopes = []
    for seed in range(3):
        torch.manual_seed(seed)
        pictures = glyphs(128)
        slopes.append(et.self_consistency(et.EquivariantTransformer(chart), pictures, (-0.5, 0.5), size=(64, 64)).slope)
    assert abs(float(torch.stack(slopes).mean()) - 1) < 0.15
