"""Pictures of any shape have one unit in both directions: the longer side spans [-1, 1]."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

import equivariant_transformers as et
from equivariant_transformers import Warp
from equivariant_transformers.geometry import reduction
from equivariant_transformers.geometry.frame import extent, from_pixels, pixel_centres, same_frame, to_pixels
from equivariant_transformers.geometry.reduction import Pyramid
from equivariant_transformers.geometry.resampling import smooth
from equivariant_transformers.geometry.steps import follow_steps

DTYPES = (torch.float32, torch.float64)
MODES = ("bilinear", "nearest", "bicubic", "sharp_bicubic")
SIZES = st.tuples(st.integers(2, 40), st.integers(2, 40))
QUARTER = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])


def random(*shape, seed=0, dtype=torch.float64):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rotation(angle, dtype=torch.float64):
    return Warp.projective(et.group("rotation").matrix(torch.as_tensor(angle, dtype=dtype)))


def projective(seed, batch=2, dtype=torch.float64):
    return Warp.projective(torch.eye(3, dtype=dtype) + 0.3 * (random(batch, 3, 3, seed=seed, dtype=dtype) - 0.5))


# Coordinates


@given(SIZES)
def test_the_unit_is_the_same_in_both_directions(size):
    x, y = (axis.flatten() for axis in pixel_centres(size, torch.float64, None))
    unit = 2 / (max(size) - 1)
    torch.testing.assert_close(x.diff(), torch.full_like(x[1:], unit))
    torch.testing.assert_close(y.diff(), torch.full_like(y[1:], unit))
    torch.testing.assert_close((x[-1].item(), y[-1].item()), extent(size))
    assert max(extent(size)) == 1


def test_a_picture_of_48_by_80_pixels():
    assert extent((48, 80)) == (1, 47 / 79)
    assert extent((80, 48)) == (47 / 79, 1)
    assert extent((1, 1)) == extent((1, 9)) == extent((64, 64)) == (1, 1)


@given(SIZES, st.integers(2, 9))
def test_a_smaller_picture_of_the_same_frame_is_recognised(size, stride):
    for rounded in (math.floor, math.ceil, round):
        small = tuple(max(rounded(side / stride), 1) for side in size)
        assert same_frame(size, small)
        assert same_frame(small, size)


@pytest.mark.parametrize("other", [(80, 48), (64, 64), (47, 80), (48, 78), (25, 40)])
def test_another_aspect_ratio_is_another_frame(other):
    assert not same_frame((48, 80), other)
    assert not same_frame(other, (48, 80))


# Squares are as they were


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_squares_are_sampled_as_by_grid_sample(mode, padding, dtype):
    images, matrix = random(2, 3, 17, 17, dtype=dtype), projective(5, dtype=dtype).matrix
    for pixels in (17, 32):
        ticks = torch.linspace(-1, 1, pixels, dtype=dtype)
        grid = et.Warp.projective(matrix).points(torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)[None])
        expected = F.grid_sample(images, grid, mode=mode, padding_mode=padding, align_corners=True)
        seen = Warp.projective(matrix).image(images, size=(pixels, pixels), mode=mode, padding=padding)
        # the bicubic kernel rounds differently for grids in another memory layout
        atol = 4 * torch.finfo(dtype).eps if mode == "bicubic" else 0
        torch.testing.assert_close(seen, expected, rtol=0, atol=atol)


# Pictures of any shape


@pytest.mark.parametrize("dtype", DTYPES)
@given(size=st.tuples(st.integers(1, 20), st.integers(1, 20)), mode=st.sampled_from(MODES), antialias=st.booleans())
def test_the_identity_returns_any_shape_bit_for_bit(dtype, size, mode, antialias):
    images = random(1, 2, *size, dtype=dtype)
    assert torch.equal(Warp.identity().image(images, mode=mode, antialias=antialias), images)
    assert torch.equal(rotation(0.0, dtype).restore(images, size=size), images)


@pytest.mark.parametrize("dtype", DTYPES)
@given(size=SIZES, turns=st.integers(-2, 2))
def test_quarter_turns_are_those_of_torch(dtype, size, turns):
    images = random(1, 2, *size, dtype=dtype)
    expected = torch.rot90(images, turns, (-2, -1))
    matrix = torch.linalg.matrix_power(QUARTER.to(dtype), turns % 4)
    for warp in (Warp.projective(matrix), rotation(turns * torch.pi / 2, dtype)):
        shape = tuple(expected.shape[-2:])
        assert torch.equal(warp.image(images, size=shape, mode="nearest"), expected)
        labels = (1000 * images).long()
        assert torch.equal(warp.mask(labels, size=shape), torch.rot90(labels, turns, (-2, -1)))
        for mode in ("bilinear", "bicubic", "sharp_bicubic"):
            seen = warp.image(images, size=shape, mode=mode, padding="border")
            torch.testing.assert_close(seen, expected, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-10)


@given(angle=st.floats(-3, 3), size=SIZES, seed=st.integers(0, 100))
def test_a_rotation_keeps_distances_in_pixels(angle, size, seed):
    points = random(1, 6, 2, seed=seed) * torch.tensor(size[::-1])
    turned = rotation(angle).points(points, size=size)
    torch.testing.assert_close(torch.cdist(turned, turned), torch.cdist(points, points))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "sharp_bicubic"])
def test_a_disc_stays_a_disc(mode):
    x, y = pixel_centres((48, 80), torch.float64, None)
    disc = torch.exp(-20 * (x**2 + y**2))[None]
    turned = rotation(0.7).image(disc, mode=mode)
    assert (turned - disc).abs().max() < 0.02


def test_another_aspect_ratio_crops_or_adds_fill_and_never_stretches():
    wide, square = random(1, 1, 5, 9), random(1, 1, 9, 9)
    framed = Warp.identity().image(wide, size=(9, 9), fill=-1.0)
    torch.testing.assert_close(framed[:, :, 2:7], wide)
    assert (framed[:, :, (0, 1, 7, 8)] == -1).all()
    torch.testing.assert_close(Warp.identity().image(square, size=(5, 9)), square[:, :, 2:7])


@pytest.mark.parametrize(("size", "other"), [((48, 80), (24, 40)), ((13, 21), (52, 84)), ((7, 10), (50, 80))])
def test_the_same_aspect_ratio_shows_the_same_frame(size, other):
    images = random(1, 1, *size)
    resized = Warp.identity().image(images, size=other)
    torch.testing.assert_close(resized, F.interpolate(images, other, mode="bilinear", align_corners=True))


@given(seed=st.integers(0, 50), stride=st.integers(1, 8))
def test_a_coarse_prediction_is_restored_to_the_frame_of_the_input(seed, stride):
    """Interpolation is exact on a linear function, so its restored values do not depend on the resolution."""
    size, warp = (41, 65), projective(seed)
    x, y = (
        torch.linspace(-end, end, -(-side // stride), dtype=torch.float64)
        for end, side in zip(extent(size), size[::-1], strict=True)
    )
    restored = warp.restore((2 * x - 3 * y[:, None]).expand(2, 1, -1, -1), size=size)
    (source_x, source_y), _ = follow_steps(warp.inverse().steps, *pixel_centres(size, torch.float64, None))
    inside = warp.inverse().valid(size)[:, 0]
    assert inside.float().mean() > 0.2
    torch.testing.assert_close(restored[:, 0][inside], (2 * source_x - 3 * source_y)[inside], rtol=0, atol=1e-9)


def test_a_prediction_of_any_shape_covers_the_frame():
    prediction = random(1, 1, 9, 9)
    restored = Warp.identity().restore(prediction, size=(33, 65))
    torch.testing.assert_close(restored, F.interpolate(prediction, (33, 65), mode="bilinear", align_corners=True))
    labels = (9 * prediction).long() + 1
    assert Warp.identity().restore(labels, size=(33, 65)).ne(0).all()


# Points and boxes in pixels


@given(size=SIZES, seed=st.integers(0, 100))
def test_pixels_and_coordinates_are_converted_both_ways(size, seed):
    rows, columns = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) for side in size), indexing="ij")
    pixels = torch.stack((columns, rows), -1)
    x, y = pixel_centres(size, torch.float64, None)
    centres = torch.stack(torch.broadcast_tensors(x, y), -1)[0]
    torch.testing.assert_close(from_pixels(pixels, size), centres)
    torch.testing.assert_close(to_pixels(centres, size), pixels)
    warp = projective(seed) @ Warp.flow(et.RADIAL_LENS.transform, torch.tensor(-0.1, dtype=torch.float64))
    points = random(2, 5, 2, seed=seed) * torch.tensor(size[::-1])
    in_pixels = warp.points(points, size=size)
    torch.testing.assert_close(from_pixels(in_pixels, size), warp.points(from_pixels(points, size)))
    boxes = torch.cat((points, points + 2), -1)
    torch.testing.assert_close(from_pixels(warp.boxes(boxes, size=size), size), warp.boxes(from_pixels(boxes, size)))
    torch.testing.assert_close(warp.inverse().points(in_pixels, size=size), points)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (48, 80), (81, 49)])
def test_the_identity_keeps_pixels(size, dtype):
    points = 20 * random(2, 4, 2, dtype=dtype)
    torch.testing.assert_close(Warp.identity().points(points, size=size), points)
    boxes = torch.cat((points, points + 5), -1)
    torch.testing.assert_close(Warp.identity().boxes(boxes, size=size), boxes)


def test_the_hull_of_a_box_that_reaches_the_horizon_is_the_whole_plane_in_pixels():
    warp = Warp.projective(et.group("x_perspective").matrix(3.0))
    assert warp.boxes(torch.tensor([[0.0, 0.0, 79.0, 47.0]]), size=(48, 80)).isinf().all()


@given(seed=st.integers(0, 50), scale=st.sampled_from([1, 4]))
def test_points_boxes_and_restored_predictions_agree(seed, scale):
    """A spot of a prediction is restored to where `points` maps it, inside the hull of its box."""
    size, warp = (49, 81), projective(seed, batch=1)
    places = torch.meshgrid(torch.arange(-(-size[0] // scale)), torch.arange(-(-size[1] // scale)), indexing="ij")
    row, column = (scale * place for place in places)
    spot = torch.tensor([44.0, 22.0], dtype=torch.float64)
    prediction = torch.exp(-((column - spot[0]) ** 2 + (row - spot[1]) ** 2) / (2 * 5.0**2))[None, None]
    restored = warp.restore(prediction, size=size)[0, 0]
    found = divmod(restored.argmax().item(), size[1])[::-1]
    expected = warp.points(spot[None], size=size)[0]
    if ((expected > 4) & (expected < torch.tensor(size[::-1]) - 5)).all():
        assert (torch.tensor(found) - expected).abs().max() < 2.5
        left, top, right, bottom = warp.boxes(torch.cat((spot - 5, spot + 5))[None], size=size)[0]
        assert left < found[0] < right
        assert top < found[1] < bottom


# Validity


@given(size=SIZES, seed=st.integers(0, 100), kind=st.sampled_from(["projective", "flow", "identity"]))
def test_inside_is_where_samples_are_free_of_fill(size, seed, kind):
    lens = Warp.flow(et.RADIAL_LENS.transform, torch.tensor([0.4, -0.3], dtype=torch.float64))
    warp = {"projective": projective(seed), "flow": projective(seed) @ lens, "identity": Warp.identity()}[kind]
    grid = et.chart("log_polar").replace(size=(24, 20)).grid(dtype=torch.float64) + 1e-3
    sampled = warp.sample(torch.ones(2, 1, *size, dtype=torch.float64), grid, fill=-1.0)[:, 0]
    inside = warp.inside(grid, size)
    assert inside.shape == (1 if kind == "identity" else 2, *grid.shape[:-1])
    assert torch.equal(inside.expand_as(sampled), sampled > 1 - 1e-9)


def test_inside_takes_points_of_any_shape_and_dtype():
    assert Warp.identity().inside(torch.zeros(2), (4, 5)).tolist() == [True]
    points = torch.tensor([[1.0, 0.59], [1.0, 0.6], [-1.01, 0.0], [torch.nan, 0.0]])
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert rotation(0.0).inside(points.to(dtype), (48, 80)).tolist() == [[True, False, False, False]]
    behind = Warp.projective(et.group("x_perspective").matrix(2.0))
    assert behind.inside(torch.tensor([[-0.6, 0.0], [0.6, 0.0]]), (48, 80)).tolist() == [[False, True]]


@given(size=SIZES, seed=st.integers(0, 100))
def test_valid_is_inside_at_the_pixel_centres(size, seed):
    warp = projective(seed)
    centres = torch.stack(torch.broadcast_tensors(*pixel_centres(size, torch.float64, None)), -1)[0]
    assert torch.equal(warp.valid(size)[:, 0], warp.inside(centres, size))
    assert Warp.identity().valid(size).all()


# Smoothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("padding", ["border", "zeros"])
def test_smoothing_is_a_binomial_filter(padding, level, dtype):
    images = torch.rand(2, 3, 21, 34, dtype=dtype, requires_grad=True)
    spacing = 2 ** (level - 1)
    weights = torch.tensor([1, 4, 6, 4, 1], dtype=dtype) / 16
    kernel = (weights[:, None] * weights).expand(3, 1, 5, 5)
    wide = F.pad(images, [2 * spacing] * 4, mode="constant" if padding == "zeros" else "replicate")
    expected = F.conv2d(wide, kernel, dilation=spacing, groups=3)
    smoothed = smooth(images, level, padding)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(smoothed, expected, rtol=0, atol=tolerance)
    gradients = [torch.autograd.grad((part * part.detach()).sum(), images)[0] for part in (smoothed, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=8 * tolerance)


def test_smoothing_for_a_grid_is_the_same_in_both_directions():
    grid = et.chart("rotation").replace(size=(32, 32)).grid()
    wide = torch.rand(1, 1, 40, 128)
    torch.testing.assert_close(Pyramid(wide).smoothed(grid), Pyramid(wide.mT).smoothed(grid).mT)
    padded = F.pad(wide, (0, 0, 44, 44))
    torch.testing.assert_close(Pyramid(wide).smoothed(grid)[:, :, 8:-8], Pyramid(padded).smoothed(grid)[:, :, 52:-52])


def test_a_smoothed_copy_is_computed_once(monkeypatch):
    levels = []
    monkeypatch.setattr(reduction, "smooth", lambda images, level: levels.append(level) or smooth(images, level))
    images = torch.rand(2, 3, 96, 128)
    stack = et.Canonicalizer(["rotation", "x_shear", "x_perspective"], in_channels=3, channels=4).eval()
    stack(images)
    assert levels == [1, 2]  # charts for photographs have 32 rows
    pyramid = Pyramid(images)
    for layer in stack.layers:
        expected = smooth(smooth(images, 1), 2)
        assert torch.equal(pyramid.smoothed(layer.grid), expected)
