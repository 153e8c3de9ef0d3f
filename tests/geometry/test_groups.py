import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch

import equivariant_transformers as et
from equivariant_transformers import Group

PAPER_TABLE = {  # T_theta (x, y), from the paper's table of transformations
    "x_translation": lambda t, x, y: (x + t, y),
    "y_translation": lambda t, x, y: (x, y + t),
    "rotation": lambda t, x, y: (x * t.cos() - y * t.sin(), x * t.sin() + y * t.cos()),
    "dilation": lambda t, x, y: (x * t.exp(), y * t.exp()),
    "x_scale": lambda t, x, y: (x * t.exp(), y),
    "y_scale": lambda t, x, y: (x, y * t.exp()),
    "hyperbolic_rotation": lambda t, x, y: (x * t.exp(), y * (-t).exp()),
    "x_shear": lambda t, x, y: (x - t * y, y),
    "y_shear": lambda t, x, y: (x, y + t * x),
    "x_perspective": lambda t, x, y: (x / (t * x + 1), y / (t * x + 1)),
    "y_perspective": lambda t, x, y: (x / (t * y + 1), y / (t * y + 1)),
}


def test_the_table_is_the_papers():
    assert set(et.GROUPS) == set(PAPER_TABLE)
    points = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    theta = torch.linspace(-0.9, 0.9, 50, dtype=torch.float64)
    for name, formula in PAPER_TABLE.items():
        expected = torch.stack(formula(theta, *points.unbind(-1)), -1)
        torch.testing.assert_close(et.group(name).transform(theta, points), expected)


def test_a_group_is_a_value():
    spiral = [[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]]
    group = Group.from_generator(spiral, name="spiral")
    assert group == Group.from_generator(torch.tensor(spiral, dtype=torch.float64), name="spiral")
    assert pickle.loads(pickle.dumps(group)) == group
    assert et.group(group) is group
    with pytest.raises(AttributeError):
        group.name = "other"


def test_the_radial_lens_reaches_far_but_never_nan():
    points = torch.tensor([[0.0, 0.0], [0.9, 0.9]], requires_grad=True)
    moved = et.RADIAL_LENS.transform(2.0, points)
    assert moved.isfinite().all()
    assert moved[1].norm() > 100
    moved.sum().backward()
    assert points.grad.isfinite().all()


def test_only_matrix_groups_have_matrices():
    with pytest.raises(TypeError, match=r"flow and has no 3x3 matrix"):
        et.RADIAL_LENS.matrix(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: et.group("rotatoin"), r"unknown group 'rotatoin'. Did you mean 'rotation'\? The groups are: x_trans"),
        (lambda: Group.from_generator([[1, 2], [3, 4]]), r"3x3 matrix, got shape \(2, 2\)"),
        (lambda: Group.from_generator([[0, float("nan"), 0], [0, 0, 0], [0, 0, 0]]), "must be finite"),
        (lambda: Group.from_generator(torch.zeros(3, 3)), "moves nothing"),
        (lambda: Group.from_generator(2 * torch.eye(3)), "moves nothing"),
        (lambda: Group.from_flow(), "exactly one"),
        (lambda: Group.from_flow(vector_field=lambda points: points, steps=0), "at least 1"),
        (lambda: Group("nothing"), "either a generator or a flow"),
        (lambda: Group("still", generator=((0, 0, 0),) * 3), "moves nothing"),
        (lambda: Group.from_generator([[1e300, 0, 0], [0, 0, 0], [0, 0, 0]]), "largest entry .* between 1e-18 and"),
        (lambda: Group.from_generator([[1e-300, 0, 0], [0, 0, 0], [0, 0, 0]]), "largest entry"),
        (lambda: Group.from_flow(in_place, period=float("nan")), "positive number or None, got nan"),
        (lambda: Group.from_flow(vector_field=lambda points: points, steps=1.5), "whole number, at least 1, got 1.5"),
        (lambda: et.group(10**5000), "unknown group a number of about 5001 digits"),
        (lambda: et.chart("x" * 10**6), "unknown chart 'xxx"),
        (lambda: et.group("rotation").transform(0.1, torch.zeros(3)), r"shape \(..., 2\).*got \(3,\)"),
    ],
)
def test_bad_input_is_explained(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert len(str(caught.value)) < 500


def in_place(_, points):
    return points


SPARSE, META = torch.eye(3).to_sparse(), torch.zeros(3, 3, device="meta")


@pytest.mark.parametrize(
    "generator",
    ["abc", [["1", "0", "0"]] * 3, np.eye(3) * 1j, torch.eye(3) * 1j, [[10**400, 0, 0]] * 3, SPARSE, META, {}, object(),
     [[1], [1, 2], [3]], np.array([[object()] * 3] * 3), [[torch.ones(2), 0, 0]] * 3],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_generator_of_anything_but_real_numbers_is_refused(generator):
    with pytest.raises(TypeError, match=r"(?s)3x3 matrix of real numbers.* A rotation is \[\[0, -1, 0\]"):
        Group.from_generator(generator)


def test_generators_of_every_real_dtype_are_taken():
    turn = et.group("rotation")
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64):
        assert Group.from_generator(torch.tensor(turn.generator).to(dtype), name="rotation") == turn


@pytest.mark.parametrize("group", [et.group("rotation"), et.RADIAL_LENS], ids=lambda group: group.name)
@pytest.mark.parametrize(
    "theta",
    ["a", None, 1j, torch.tensor(1j), np.array([1j]), 10**400, object(), SPARSE[0]],
    ids=lambda value: type(value).__name__,
)
def test_a_parameter_that_is_not_a_real_number_is_refused(group, theta):
    with pytest.raises(TypeError, match="theta is a number or a"):
        group.transform(theta, torch.zeros(2))


@pytest.mark.parametrize("group", [et.group("rotation"), et.RADIAL_LENS], ids=lambda group: group.name)
@pytest.mark.parametrize(
    "points",
    [[0.0, 1.0], None, torch.zeros(2, dtype=torch.int64), SPARSE, torch.ones(2) * 1j],
    ids=lambda value: type(value).__name__,
)
def test_points_that_are_not_floating_point_tensors_are_refused(group, points):
    for call in (lambda: group.transform(0.1, points), lambda: group.vector_field(points)):
        with pytest.raises(TypeError, match=r"points (must be|are)"):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_point_that_leaves_the_plane_lands_far_away(dtype):
    """x' = x^3 reaches infinity at theta = 1 / (2 x^2)."""
    cubic = Group.from_flow(vector_field=lambda points: points**3)
    points = torch.tensor([[0.1, 0.2], [0.9, -0.1]], dtype=dtype, requires_grad=True)
    theta = torch.tensor(5.0, dtype=dtype, requires_grad=True)
    moved = cubic.transform(theta, points)
    assert moved.isfinite().all()
    assert moved[1].norm() > 1e5
    near = points[0] / (1 - 2 * theta * points[0] ** 2).sqrt()
    torch.testing.assert_close(moved[0], near, rtol=1e-4, atol=0)
    found, expected = (torch.autograd.grad(out.sum(), (points, theta), retain_graph=True) for out in (moved, near))
    assert all(gradient.isfinite().all() for gradient in found)
    torch.testing.assert_close(found[0][0], expected[0][0], rtol=1e-3, atol=0)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=0)


def test_a_rotation_seen_through_any_matrix_keeps_its_period():
    turn = np.array(et.group("rotation").generator)
    for seed in range(100):
        change = np.eye(3) + 0.3 * np.random.default_rng(seed).uniform(-1, 1, (3, 3))
        tilted = Group.from_generator(change @ turn @ np.linalg.inv(change))
        assert tilted.period == pytest.approx(2 * math.pi)
    assert Group.from_generator(turn + 1e-3 * np.diag([1, 1, 0])).period is None  # a spiral


def test_a_group_is_its_generator_however_it_is_made():
    turn, grow = et.group("rotation"), et.group("dilation")
    for made in (Group("mine", generator=turn.generator), dataclasses.replace(grow, generator=turn.generator)):
        torch.testing.assert_close(made.matrix(0.5), turn.matrix(0.5))
        assert made.period == turn.period


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_three_equal_eigenvalues_are_one_however_a_generator_is_written(value):
    """Rounding splits them by its cube root, so that they looked like three."""
    block = value * np.eye(3) + np.diag([1.0, 1.0], 1)
    for seed in range(30):
        change = np.eye(3) + 0.3 * np.random.default_rng(seed).uniform(-1, 1, (3, 3))
        generator = change @ block @ np.linalg.inv(change)
        expected = torch.linalg.matrix_exp(torch.tensor(2 * generator))
        theta = torch.tensor(2.0, dtype=torch.float64)
        torch.testing.assert_close(Group.from_generator(generator).matrix(theta), expected)


@pytest.mark.parametrize("scale", [1e-6, 1e3, 1e6])
def test_generators_may_be_in_any_unit(scale):
    grow = Group.from_generator([[scale, 0, 0], [0, scale / 2, 0], [0, 0, 0]])
    torch.testing.assert_close(grow.matrix(1 / scale), torch.diag(torch.tensor([math.e, math.sqrt(math.e), 1.0])))


def test_eigenvalues_too_close_to_tell_apart_are_refused():
    with pytest.raises(ValueError, match="too close"):
        Group.from_generator([[1.0, 1e6, 0], [0, 1 + 1e-2, 0], [0, 0, 0]])


def test_real_eigenvalues_of_a_nearly_nilpotent_generator_stay_real():
    entries = [
        [-2.831441222690046, 2.8426530435681343, -0.010159220546483994],
        [-2.793914072215557, 2.838334740139544, 0.0009462606394663453],
        [-0.07848186790943146, -0.0020104548893868923, 0.0],
    ]
    theta = torch.tensor([-1.0, 0.3, 1.0], dtype=torch.float64)
    expected = torch.linalg.matrix_exp(theta[:, None, None] * torch.tensor(entries, dtype=torch.float64))
    torch.testing.assert_close(Group.from_generator(entries).matrix(theta), expected)


def test_integer_parameters_are_converted():
    assert et.group("rotation").matrix(torch.tensor([0, 1])).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_matrices_are_finite_for_every_finite_parameter(dtype):
    """Infinite terms of opposite signs are NaN in sum."""
    generators = (
        [[1, 2, 3], [4, -5, 6], [7, 8, -9]],
        [[0, 1, 0], [0, 0, 1], [1e-3, 0, 0]],
        [[1, 1, 0], [0, 1, 0], [0, 0, 0]],
    )
    groups = [*et.GROUPS.values(), *(Group.from_generator(generator) for generator in generators)]
    theta = torch.tensor([0.5, 40.0, 3e4, torch.finfo(dtype).max], dtype=dtype)
    for group in groups:
        assert group.matrix(torch.cat((-theta, theta))).isfinite().all()
