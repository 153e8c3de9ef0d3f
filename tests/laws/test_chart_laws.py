"""The identities of canonical coordinates, once, over every chart, sheet and dtype."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equivariant_transformers as et

every_chart = pytest.mark.parametrize("chart", et.CHARTS.values(), ids=et.CHARTS)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
signs = st.sampled_from([-1.0, 1.0])
magnitudes = st.floats(0.15, 0.95)


def tolerance(dtype):
    return 1e-10 if dtype == torch.float64 else 1e-4


@every_chart
@both_dtypes
@given(x=magnitudes, y=magnitudes, sign_x=signs, sign_y=signs, theta=st.floats(-0.6, 0.6))
def test_a_transformation_is_a_translation(chart, dtype, x, y, sign_x, sign_y, theta):
    points = torch.tensor([sign_x * x, sign_y * y], dtype=dtype)
    before = chart.to_canonical(points)
    for axis, group in enumerate(chart.groups):
        moved = group.transform(theta, points)
        shift = chart.wrap(chart.to_canonical(moved) - before)
        expected = torch.zeros(2, dtype=dtype)
        expected[axis] = theta
        torch.testing.assert_close(shift, expected, rtol=0, atol=tolerance(dtype))
        assert chart.sheet(moved) == chart.sheet(points)


@every_chart
@both_dtypes
@given(x=magnitudes, y=magnitudes, sign_x=signs, sign_y=signs)
def test_round_trips(chart, dtype, x, y, sign_x, sign_y):
    points = torch.tensor([sign_x * x, sign_y * y], dtype=dtype)
    u = chart.to_canonical(points)
    back = chart.to_plane(u, chart.sheet(points))
    torch.testing.assert_close(back, points, rtol=tolerance(dtype), atol=tolerance(dtype))
    torch.testing.assert_close(chart.to_canonical(back), u, rtol=tolerance(dtype), atol=tolerance(dtype))


@every_chart
def test_every_sheet_is_reached_and_disjoint(chart):
    points = torch.tensor([[0.5, 0.3], [-0.5, 0.3], [0.5, -0.3], [-0.5, -0.3]], dtype=torch.float64)
    sheets = chart.sheet(points)
    assert set(sheets.tolist()) == set(range(chart.sheets))
    grid = chart.replace(size=(5, 7)).grid(dtype=torch.float64)
    inside = chart.valid(grid)
    expected = torch.arange(chart.sheets)[:, None, None].expand(inside.shape)
    assert torch.equal(chart.sheet(grid)[inside], expected[inside])


@every_chart
@both_dtypes
def test_singular_points_are_finite_and_masked(chart, dtype):
    special = torch.tensor([0.0, -0.0, 1e-30, 0.5, -0.5], dtype=dtype)
    points = torch.cartesian_prod(special, special).requires_grad_()
    u = chart.to_canonical(points)
    assert u.isfinite().all()
    u.sum().backward()
    assert points.grad.isfinite().all()
    valid = chart.valid(points.detach())
    assert valid[-1]
    if chart.name not in ("x_translation", "y_translation", "cartesian"):
        assert not valid[0]
    # Where the mask is set the identity holds, near the singular set too.
    ok = points.detach()[valid].double()
    shift = chart.wrap(chart.to_canonical(chart.groups[0].transform(0.1, ok)) - chart.to_canonical(ok))
    torch.testing.assert_close(shift[:, 0], torch.full_like(shift[:, 0], 0.1))


@every_chart
@both_dtypes
def test_the_way_back_is_finite_everywhere(chart, dtype):
    u = torch.cartesian_prod(
        *[torch.tensor([-100.0, -3.0, -1.0, -0.0, 0.0, 1e-30, 2.0, 100.0], dtype=dtype)] * 2
    ).requires_grad_()
    for sheet in range(chart.sheets):
        points = chart.to_plane(u, sheet)
        assert points.isfinite().all()
        (gradient,) = torch.autograd.grad(points.sum(), u)
        assert gradient.isfinite().all()


@every_chart
def test_gradients(chart):
    points = torch.tensor([[0.3, -0.2], [0.5, 0.7], [-0.4, 0.6]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(chart.to_canonical, (points,))
    u = chart.to_canonical(points).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda u: chart.to_plane(u, chart.sheet(points)), (u,))


@every_chart
def test_charts_are_values(chart):
    assert pickle.loads(pickle.dumps(chart)) == chart
    assert copy.deepcopy(chart) == chart
    assert hash(copy.deepcopy(chart)) == hash(chart)
    assert chart.replace(size=(3, 4)) != chart
    assert chart.name in repr(chart)


@every_chart
def test_the_grid_samples_the_ranges(chart):
    small = chart.replace(size=(6, 10))
    grid = small.grid(dtype=torch.float64)
    assert grid.shape == (chart.sheets, 6, 10, 2)
    first, second = small.axes(dtype=torch.float64)
    for samples, (low, high), periodic in zip((first, second), chart.ranges, chart.periodic, strict=True):
        assert samples[0] == low
        gap = samples[1] - samples[0]
        torch.testing.assert_close(samples.diff(), gap.expand(len(samples) - 1))
        end = samples[-1] + (gap if periodic else 0)  # a periodic axis leaves its end point out
        torch.testing.assert_close(end, torch.tensor(high, dtype=torch.float64))
    # Along the width of the grid the first coordinate grows, along its height the second.
    inside = chart.valid(grid)
    u = chart.to_canonical(grid)
    expected = torch.stack(torch.meshgrid(first, second, indexing="xy"), -1).repeat(chart.sheets, 1, 1, 1)
    if chart.mirrored:  # the second sheet runs from minus the end of the range to minus its start
        expected[1, ..., 0] = -first.flip(0)
    difference = chart.wrap(u - expected)[inside]
    torch.testing.assert_close(difference, torch.zeros_like(difference), rtol=0, atol=1e-9)
