import math

import pytest
import torch

import equivariant_transformers as et

PAPER_TABLE = {  # rho_1 and rho_2 in the first quadrant, from the paper's table of canonical coordinates
    "x_translation": lambda x, y: (x, y),
    "y_translation": lambda x, y: (y, x),
    "rotation": lambda x, y: (torch.atan(y / x), torch.hypot(x, y)),
    "dilation": lambda x, y: (torch.hypot(x, y).log(), torch.atan(y / x)),
    "x_scale": lambda x, y: (x.log(), y),
    "y_scale": lambda x, y: (y.log(), x),
    "hyperbolic_rotation": lambda x, y: ((x / y).sqrt().log(), (x * y).sqrt()),
    "x_shear": lambda x, y: (-x / y, y),
    "y_shear": lambda x, y: (y / x, x),
    "x_perspective": lambda x, y: (1 / x, torch.atan(y / x)),
    "y_perspective": lambda x, y: (1 / y, torch.atan(x / y)),
    "cartesian": lambda x, y: (x, y),
    "log_polar": lambda x, y: (torch.atan(y / x), torch.hypot(x, y).log()),
    "log_log": lambda x, y: (x.log(), y.log()),
}


def test_the_table_is_the_papers():
    assert set(et.CHARTS) == set(PAPER_TABLE)
    points = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.01
    for name, formula in PAPER_TABLE.items():
        expected = torch.stack(formula(*points.unbind(-1)), -1)
        torch.testing.assert_close(et.chart(name).to_canonical(points), expected)


def test_the_ranges_cover_most_of_the_image():
    for name, chart in et.CHARTS.items():
        assert chart.coverage() > (0.8 if name == "log_log" else 0.85), name


def test_only_whole_periods_wrap():
    assert et.chart("rotation").periodic == (True, False)
    assert et.chart("rotation").replace(ranges=((-1, 1), (0, 1))).periodic == (False, False)
    assert et.chart("dilation").periodic == (False, True)


def test_a_range_may_lie_across_the_cut_of_an_angle():
    rotation = et.chart("rotation")
    for low in (-1.0, 1.0, 3.0, math.pi):
        part = rotation.replace(ranges=((low, low + math.pi), rotation.ranges[1]))
        assert part.coverage() == pytest.approx(rotation.coverage() / 2, abs=0.01)


def test_lists_are_as_good_as_tuples():
    chart = et.chart("x_shear")
    assert chart.replace(size=[64, 64], ranges=[[-5, 5], [-1, 1]]) == chart


def test_one_sample_sits_in_the_middle_of_its_range():
    grid = et.chart("cartesian").replace(size=(1, 1)).grid()
    assert torch.equal(grid, torch.zeros(1, 1, 1, 2))


def test_perspective_moves_both_half_planes_together_through_infinity():
    chart = et.chart("x_perspective")
    points = torch.tensor([[0.5, 0.1], [-0.5, 0.1]], dtype=torch.float64)
    moved = chart.groups[0].transform(-3.0, points)  # 1/x goes from 2 to -1: past the horizon
    torch.testing.assert_close(chart.to_canonical(moved)[:, 0], torch.tensor([-1.0, -5.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: et.chart("logpolar"), r"unknown chart 'logpolar'. Did you mean 'log_polar'\?"),
        (lambda: et.chart("x_shear").replace(ranges=((1, 0), (0, 1))), "low < high"),
        (lambda: et.chart("x_shear").replace(ranges=((0, math.inf), (0, 1))), "finite"),
        (lambda: et.chart("x_shear").replace(size=(0, 4)), "at least 1"),
        (lambda: et.chart("x_shear").replace(size=64), r"size must be \(height, width\)"),
        (lambda: et.chart(["x_shear"]), "unknown chart"),
        (lambda: et.chart("x_shear").replace(groups=()), "one or two groups"),
    ],
)
def test_bad_input_is_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()
