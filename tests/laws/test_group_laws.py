"""The axioms of a one-parameter group, once, over every group, dtype and batch shape."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import equivariant_transformers as et
from equivariant_transformers import Group

CUSTOM = {
    "spiral": Group.from_generator([[0.3, -1, 0], [1, 0.3, 0], [0, 0, 0]]),
    "rotation about a point": Group.from_generator([[0, -1, 0.2], [1, 0, -0.4], [0, 0, 0]]),
    "diagonal shear": Group.from_generator([[0.5, -0.5, 0], [0.5, -0.5, 0], [0, 0, 0]]),
    "affine, real eigenvalues": Group.from_generator([[1, 0.5, 0.1], [0.2, -0.5, 0.3], [0, 0, 0]]),
    "jordan block of 2": Group.from_generator([[1, 1, 0], [0, 1, 0], [0, 0, 0]]),
    "jordan block of 3": Group.from_generator([[0, 1, 0], [0, 0, 1], [0, 0, 0]]),
    "projective": Group.from_generator([[0.2, -0.1, 0.1], [0.3, 0.1, 0], [0.2, 0.1, -0.3]]),
}
MATRIX_GROUPS = et.GROUPS | CUSTOM
FLOWS = {
    "lens": et.RADIAL_LENS,
    "lens, integrated": Group.from_flow(vector_field=lambda p: p * p.square().sum(-1, keepdim=True)),
}
EVERY_GROUP = MATRIX_GROUPS | FLOWS

every_group = pytest.mark.parametrize("group", EVERY_GROUP.values(), ids=EVERY_GROUP)
every_matrix_group = pytest.mark.parametrize("group", MATRIX_GROUPS.values(), ids=MATRIX_GROUPS)
thetas = st.floats(-0.4, 0.4)
coordinates = st.floats(-0.7, 0.7)


def tolerance(dtype):
    return 1e-10 if dtype == torch.float64 else 1e-4


def blows_up(group, time, x, y):
    """True if the integrated lens, which moves a point to infinity at the time 1 / (2 r^2), comes close to it."""
    return group is FLOWS["lens, integrated"] and time * (x * x + y * y) > 0.4


@every_group
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(x=coordinates, y=coordinates)
def test_zero_is_the_identity(group, dtype, x, y):
    points = torch.tensor([x, y], dtype=dtype)
    torch.testing.assert_close(
        group.transform(0.0, points), points, rtol=0, atol=0 if group in et.GROUPS.values() else 1e-6
    )


@every_group
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(a=thetas, b=thetas, x=coordinates, y=coordinates)
def test_parameters_add_under_composition(group, dtype, a, b, x, y):
    assume(not blows_up(group, abs(a) + abs(b), x, y))
    a, b = torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)
    points = torch.tensor([x, y], dtype=dtype)
    twice = group.transform(a, group.transform(b, points))
    atol = max(tolerance(dtype), 1e-7) if group is FLOWS["lens, integrated"] else tolerance(dtype)
    torch.testing.assert_close(group.transform(group.compose(a, b), points), twice, rtol=atol, atol=atol)
    back = group.transform(group.inverse(a), group.transform(a, points))
    torch.testing.assert_close(back, points, rtol=atol, atol=atol)


@every_group
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(x=coordinates, y=coordinates)
def test_the_vector_field_is_the_derivative_at_zero(group, dtype, x, y):
    points = torch.tensor([x, y], dtype=torch.float64)
    h = 1e-4
    velocity = (group.transform(h, points) - group.transform(-h, points)) / (2 * h)
    torch.testing.assert_close(
        group.vector_field(points.to(dtype)), velocity.to(dtype), rtol=1e-5, atol=1e-6, check_dtype=True
    )


@every_matrix_group
@given(a=st.floats(-3, 3))
def test_the_matrix_is_the_exponential_of_the_generator(group, a):
    theta = torch.tensor(a, dtype=torch.float64)
    expected = torch.linalg.matrix_exp(theta * torch.tensor(group.generator, dtype=torch.float64))
    torch.testing.assert_close(group.matrix(theta), expected, rtol=1e-10, atol=1e-10)


@every_matrix_group
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_matrices_take_the_shape_and_dtype_of_theta(group, shape, dtype):
    theta = torch.linspace(-0.5, 0.5, math.prod(shape)).reshape(shape).to(dtype)
    matrix = group.matrix(theta)
    assert matrix.shape == (*shape, 3, 3)
    assert matrix.dtype == dtype
    exact = group.matrix(theta.double())
    torch.testing.assert_close(matrix.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@every_group
def test_gradients(group):
    theta = torch.tensor([-0.3, 0.0, 0.4], dtype=torch.float64, requires_grad=True)
    points = torch.tensor([[0.3, -0.2], [0.5, 0.1], [-0.4, 0.6]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(group.transform, (theta, points))
    if group.generator is not None:
        assert torch.autograd.gradcheck(group.matrix, (theta,))


@every_matrix_group
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_extreme_parameters_stay_finite(group, dtype):
    huge = torch.finfo(dtype).max
    theta = torch.tensor([-huge, -1e4, -1e-30, 0.0, 1e-30, 1e4, huge], dtype=dtype, requires_grad=True)
    if group not in et.GROUPS.values():
        theta = theta[2:5]  # several exponentials in one entry: only the sum saturates, not its derivative
        assert group.matrix(torch.tensor([-1e3, 1e3])).isfinite().all()
    matrix = group.matrix(theta)
    assert matrix.isfinite().all()
    (gradient,) = torch.autograd.grad(matrix.sum(), theta)
    assert not gradient.isnan().any()


@pytest.mark.parametrize("name", MATRIX_GROUPS)
def test_a_period_brings_every_point_back(name):
    group = MATRIX_GROUPS[name]
    assert (group.period is not None) == (name in ("rotation", "rotation about a point"))
    if group.period is not None:
        points = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(group.transform(group.period, points), points)
        assert (group.transform(group.period / 2, points) - points).abs().max() > 0.1
