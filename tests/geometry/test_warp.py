import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equivariant_transformers as et
from equivariant_transformers import Warp
from equivariant_transformers.geometry import resampling
from equivariant_transformers.geometry.steps import stacked

SOURCE = Path(et.__file__).parent


def random_matrices(batch, *, seed=0, dtype=torch.float32, size=0.2):
    generator = torch.Generator().manual_seed(seed)
    return torch.eye(3, dtype=dtype) + size * torch.randn(batch, 3, 3, generator=generator, dtype=dtype).clamp(-1, 1)


def smooth_images(batch, channels, height, width, dtype=torch.float32, waves=1.0):
    x = torch.linspace(-1, 1, width, dtype=dtype)
    y = torch.linspace(-1, 1, height, dtype=dtype)[:, None]
    waves = [torch.cos(waves * x + k) * torch.sin(waves * y - k) + 0.3 * x for k in range(batch * channels)]
    return torch.stack(waves).reshape(batch, channels, height, width)


def lens(theta):
    return Warp.flow(et.RADIAL_LENS.transform, theta)


# Conventions


def test_positive_x_is_right_and_positive_y_is_down():
    images = torch.zeros(1, 1, 5, 5)
    images[0, 0, 2, 3] = 1  # one pixel right of the centre
    to_right = Warp.projective(et.group("x_translation").matrix(0.5))  # samples the input half a unit further right
    assert to_right.image(images)[0, 0, 2, 2] == 1
    images = torch.zeros(1, 1, 5, 5)
    images[0, 0, 3, 2] = 1  # one pixel below the centre
    assert Warp.projective(et.group("y_translation").matrix(0.5)).image(images)[0, 0, 2, 2] == 1


def test_the_action_composes_on_the_right():
    """(T phi)(x) = phi(T x), so phi seen through a @ b is (phi seen through a) seen through b."""
    a, b = (Warp.projective(matrix) for matrix in random_matrices(2, dtype=torch.float64, size=0.05).split(1))
    images = smooth_images(1, 1, 65, 65, dtype=torch.float64)
    both = (a @ b).image(images)
    one_after_the_other = b.image(a.image(images))
    inside = b.image(a.valid((65, 65)).double()) > 1 - 1e-5
    torch.testing.assert_close(both[inside], one_after_the_other[inside], rtol=0, atol=2e-3)


def test_points_follow_the_image():
    """What stands at p in the output stood at warp.points(p) in the input."""
    images = smooth_images(3, 1, 33, 49, dtype=torch.float64)
    warp = Warp.projective(random_matrices(3, dtype=torch.float64, size=0.1))
    points = torch.rand(3, 10, 2, dtype=torch.float64) - 0.5
    seen = torch.cat([Warp.identity().sample(warp.image(images)[i : i + 1], points[i : i + 1]) for i in range(3)])
    there = torch.cat([Warp.identity().sample(images[i : i + 1], warp.points(points)[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(seen, there, rtol=0, atol=3e-3)


# Algebra


@given(seed=st.integers(0, 1000), batch=st.integers(1, 4))
def test_composition_and_inverse(seed, batch):
    a = Warp.projective(random_matrices(batch, seed=seed, dtype=torch.float64))
    b = lens(torch.linspace(-0.3, 0.1, batch, dtype=torch.float64))
    c = Warp.projective(random_matrices(1, seed=seed + 1, dtype=torch.float64)[0])
    points = 0.4 * torch.rand(batch, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    chain = a @ b @ c
    torch.testing.assert_close(chain.points(points), a.points(b.points(c.points(points))))
    torch.testing.assert_close((a @ (b @ c)).points(points), chain.points(points))
    torch.testing.assert_close(chain.inverse().points(chain.points(points)), points)
    torch.testing.assert_close((Warp.identity() @ chain).points(points), chain.points(points))


def test_projective_chains_stay_one_matrix():
    warp = Warp.identity()
    for seed in range(20):
        warp = warp @ Warp.projective(random_matrices(2, seed=seed, size=0.01))
    assert len(warp.steps) == 1
    assert warp.matrix.shape == (2, 3, 3)
    mixed = warp @ lens(torch.zeros(2)) @ warp @ warp
    assert len(mixed.steps) == 3
    with pytest.raises(TypeError, match="no matrix"):
        _ = mixed.matrix


def test_any_number_of_warps_resamples_once(monkeypatch):
    calls = []
    original = resampling.F.grid_sample
    monkeypatch.setattr(resampling.F, "grid_sample", lambda *a, **k: calls.append(1) or original(*a, **k))
    warp = Warp.identity()
    for seed in range(7):
        warp = warp @ Warp.projective(random_matrices(2, seed=seed, size=0.01)) @ lens(torch.zeros(2))
    images = torch.rand(2, 1, 8, 8)
    warp.inverse().image(images)
    assert len(calls) == 1
    warp.sample(images, et.chart("hyperbolic_rotation").grid())
    assert len(calls) == 2
    warp.image(images, antialias=True)
    assert len(calls) == 3


def test_only_one_line_resamples():
    uses = [
        path.name for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines() if "grid_sample(" in line
    ]
    assert uses == ["resampling.py"]


# Resampling


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic", "sharp_bicubic"])
@pytest.mark.parametrize("size", [(1, 1), (1, 5), (28, 28), (37, 50)])
@pytest.mark.parametrize("antialias", [False, True])
def test_the_identity_is_the_identity_bit_for_bit(dtype, mode, size, antialias):
    images = torch.randn(2, 3, *size).to(dtype)
    for warp in (
        Warp.identity(),
        Warp.projective(torch.eye(3)),
        Warp.projective(et.group("rotation").matrix(torch.zeros(2))),
    ):
        result = warp.image(images, mode=mode, antialias=antialias)
        assert result.dtype == dtype
        assert torch.equal(result, images)
    assert torch.equal(Warp.identity().image(images, fill=0.3), images)


def test_the_identity_passes_gradients_to_image_and_warp():
    theta = torch.zeros(2, requires_grad=True)
    images = torch.rand(2, 1, 9, 9, requires_grad=True)
    weights = torch.rand(2, 1, 9, 9)
    (Warp.projective(et.group("rotation").matrix(theta)).image(images) * weights).sum().backward()
    torch.testing.assert_close(images.grad, weights, rtol=0, atol=1e-5)
    assert (theta.grad.abs() > 1e-3).all()


@pytest.mark.parametrize(("size", "waves"), [((64, 64), 0.7), ((48, 80), 0.5), ((224, 160), 1.0)])
def test_there_and_back_again(size, waves):
    images = smooth_images(4, 2, *size, waves=waves)
    for warp in (Warp.projective(random_matrices(4, size=0.1)), lens(torch.linspace(-0.3, 0.2, 4))):
        back = warp.inverse().image(warp.image(images))
        inside = (warp.inverse().image(warp.valid(size).float()) > 1 - 1e-5).expand_as(images)
        assert inside.float().mean() > 0.3
        assert (back - images)[inside].abs().max() < 1e-3
        assert torch.equal(warp.restore(images), warp.inverse().image(images))


@pytest.mark.parametrize("height", [1, 2, 5])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_every_size_works(height, width):
    images = torch.rand(2, 3, height, width)
    warp = Warp.projective(random_matrices(2))
    assert warp.image(images).shape == images.shape
    assert warp.image(images, antialias=True).isfinite().all()
    assert warp.image(images, size=(4, 6)).shape == (2, 3, 4, 6)
    assert warp.valid((height, width)).shape == (2, 1, height, width)
    chart = et.chart("x_scale").replace(size=(5, 7))
    assert warp.sample(images, chart.grid()).shape == (2, 3, 2, 5, 7)


def test_batches_broadcast_and_may_be_empty():
    one, many = torch.rand(1, 1, 6, 6), Warp.projective(random_matrices(3))
    torch.testing.assert_close(many.image(one), many.image(one.expand(3, -1, -1, -1)))
    single = Warp.projective(random_matrices(1)[0])
    assert single.image(torch.rand(4, 1, 6, 6)).shape == (4, 1, 6, 6)
    assert single.image(torch.rand(0, 1, 6, 6)).shape == (0, 1, 6, 6)
    assert Warp.projective(torch.empty(0, 3, 3)).image(torch.rand(0, 1, 6, 6)).shape == (0, 1, 6, 6)


def test_a_chart_is_sampled_through_a_warp_in_one_go():
    images = smooth_images(2, 1, 65, 65, dtype=torch.float64)
    warp = Warp.projective(random_matrices(2, dtype=torch.float64, size=0.05))
    grid = et.chart("rotation").replace(ranges=((-3, 3), (0.1, 0.6))).grid(dtype=torch.float64)
    at_once = warp.sample(images, grid)
    expected = Warp.identity().sample(warp.image(images), grid)
    torch.testing.assert_close(at_once, expected, rtol=0, atol=3e-3)


def test_what_lies_outside():
    images = torch.full((1, 2, 4, 4), 0.5)
    away = Warp.projective(et.group("x_translation").matrix(10.0))
    assert (away.image(images) == 0).all()
    assert (away.image(images, padding="border") == 0.5).all()
    assert (away.image(images, padding="reflection") == 0.5).all()
    assert (away.image(images, fill=0.25) == 0.25).all()
    colours = torch.tensor([0.1, 0.9]).reshape(2, 1, 1)
    torch.testing.assert_close(away.image(images, fill=colours), colours.expand(1, 2, 4, 4))
    grid = et.chart("x_scale").grid()
    torch.testing.assert_close(away.sample(images, grid, fill=colours)[0, :, 0, 0, 0], torch.tensor([0.1, 0.9]))
    with pytest.raises(ValueError, match="fill value needs padding='zeros'"):
        away.image(images, fill=1.0, padding="border")


def test_beyond_the_horizon_there_is_nothing():
    warp = Warp.projective(et.group("x_perspective").matrix(2.0))  # w = 2 x + 1 <= 0 for x <= -1/2
    images = torch.ones(1, 1, 9, 9)
    valid = warp.valid((9, 9))[0, 0, 4]
    assert not valid[:3].any()
    assert (warp.image(images)[0, 0, :, :3] == 0).all()
    assert warp.visible(torch.tensor([[-0.6, 0.0], [0.6, 0.0]])).tolist() == [False, True]
    scaled = Warp.projective(1e-6 * et.group("x_perspective").matrix(2.0))
    torch.testing.assert_close(scaled.image(images), warp.image(images))


def test_valid_marks_the_inside():
    warp = Warp.projective(et.group("dilation").matrix(0.7))
    images = torch.ones(1, 1, 21, 21)
    assert torch.equal(warp.image(images) == 1, warp.valid((21, 21)))
    assert Warp.identity().valid((3, 4)).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint32, torch.int64, torch.float32])
def test_masks_keep_their_labels(dtype):
    labels = torch.arange(64).reshape(1, 1, 8, 8) * 3_000_001 % 251
    scale = {torch.uint32: 2**24, torch.int64: 2**33}.get(dtype, 1)
    labels = (labels * scale + (scale > 1)).to(dtype)
    warp = Warp.projective(random_matrices(1))
    seen = warp.mask(labels)
    assert seen.dtype == dtype
    assert set(seen.flatten().tolist()) <= {*labels.flatten().tolist(), 0}
    assert torch.equal(Warp.identity().mask(labels), labels)
    if not labels.is_floating_point():
        assert torch.equal(warp.restore(labels), warp.inverse().mask(labels))


def test_boxes_hold_their_points():
    warp = Warp.projective(random_matrices(5, size=0.1))
    boxes = torch.tensor([-0.4, -0.3, 0.2, 0.5]).expand(5, 3, 4)
    hull = warp.boxes(boxes)
    inside = torch.rand(5, 100, 2) * torch.tensor([0.6, 0.8]) + torch.tensor([-0.4, -0.3])
    points = warp.points(inside)
    assert (points >= hull[:, :1, :2] - 1e-6).all()
    assert (points <= hull[:, :1, 2:] + 1e-6).all()
    torch.testing.assert_close(Warp.identity().boxes(boxes), boxes)
    over_the_horizon = Warp.projective(et.group("x_perspective").matrix(3.0)).boxes(boxes[0])
    assert over_the_horizon.abs().eq(torch.inf).all()


def test_a_flow_may_move_one_coordinate_alone():
    """Theta and points broadcast, although torch.stack wants coordinates of one shape."""
    wave = et.Group.from_flow(lambda theta, p: torch.stack((p[..., 0] + theta * p[..., 1].sin(), p[..., 1]), -1))
    theta, images = torch.tensor([0.3, -0.2]), torch.rand(2, 1, 8, 8)
    both = et.Warp.flow(wave.flow, theta).image(images)
    for one, image, value in zip(both, images, theta, strict=True):
        torch.testing.assert_close(one[None], et.Warp.flow(wave.flow, value).image(image[None]))


def test_boxes_hold_their_points_under_a_flow_too():
    barrel = lens(torch.tensor(-0.5))
    hull = barrel.boxes(torch.tensor([[-1.0, -1.0, 1.0, 1.0]]))
    edge = torch.stack((torch.ones(50), torch.linspace(-1, 1, 50)), -1)
    assert barrel.points(edge)[:, 0].max() <= hull[0, 2] + 1e-3


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_the_scale_of_a_matrix_does_not_matter(scale):
    matrix = random_matrices(2)
    images = torch.rand(2, 1, 6, 6)
    warp = Warp.projective(scale * matrix)
    torch.testing.assert_close(warp.image(images), Warp.projective(matrix).image(images), rtol=0, atol=1e-4)
    points = torch.rand(2, 3, 2) / 2
    torch.testing.assert_close(warp.inverse().points(warp.points(points)), points, rtol=0, atol=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("width", [2, 3, 9])
def test_cubic_convolution_is_affine_in_its_slope(padding, width):
    """Along a line, a = -1 is 4/3 of a = -3/4 (PyTorch's) less 1/3 of a = 0 (bilinear after a smooth step)."""
    images = torch.rand(2, 3, 1, width, dtype=torch.float64)
    x = torch.linspace(-2.5, 2.5, 101, dtype=torch.float64).reshape(1, 1, -1)
    pixel = (x + 1) * (width - 1) / 2
    t = pixel - pixel.floor()
    smooth = 2 * (pixel.floor() + t * t * (3 - 2 * t)) / (width - 1) - 1
    sharp, cubic = (
        resampling.resample(images, stacked(x, 0 * x), x < 9, mode=mode, padding=padding)
        for mode in ("sharp_bicubic", "bicubic")
    )
    step = resampling.resample(images, stacked(smooth, 0 * x), x < 9, padding=padding)
    torch.testing.assert_close(sharp, 4 / 3 * cubic - 1 / 3 * step)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_cubic_convolution_treats_both_axes_alike(padding):
    images = torch.rand(2, 2, 7, 7, dtype=torch.float64)
    matrix = random_matrices(2, dtype=torch.float64, size=0.5)
    swap = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    seen = Warp.projective(matrix).image(images, mode="sharp_bicubic", padding=padding)
    swapped = Warp.projective(swap @ matrix @ swap).image(images.mT, mode="sharp_bicubic", padding=padding)
    torch.testing.assert_close(swapped.mT, seen)


def test_cubic_convolution_skips_only_what_is_empty():
    images = torch.rand(3, 2, 9, 11) * (torch.rand(3, 2, 9, 11) < 0.05)
    warp = Warp.projective(random_matrices(3))
    skipping = warp.image(images, mode="sharp_bicubic")
    full = warp.image(images.requires_grad_(), mode="sharp_bicubic")
    assert torch.equal(skipping, full.detach())
    assert (skipping == 0).any()
    assert warp.image(torch.zeros(3, 1, 4, 4), mode="sharp_bicubic").eq(0).all()
    nothing = Warp.identity().image(torch.rand(0, 1, 6, 6), mode="sharp_bicubic", size=(2, 2))
    assert nothing.shape == (0, 1, 2, 2)


def test_antialiasing_removes_what_cannot_be_shown():
    stripes = (torch.arange(128) % 2).float().expand(1, 1, 128, 128)  # grey when seen from afar
    shrink = Warp.projective(et.group("dilation").matrix(torch.tensor(3.7).log()))
    inside = shrink.valid((128, 128))
    inside = inside & (torch.nn.functional.avg_pool2d(inside.float(), 9, 1, 4) == 1)
    plain, filtered = (shrink.image(stripes, antialias=flag)[inside] for flag in (False, True))
    assert filtered.sub(0.5).abs().max() < 0.05 < plain.sub(0.5).abs().max()
    enlarge = Warp.projective(et.group("dilation").matrix(-0.5))
    torch.testing.assert_close(enlarge.image(stripes, antialias=True), enlarge.image(stripes))


def cubic(theta):
    """The flow of x' = x^3, on which points leave the plane in finite time."""
    return Warp.flow(et.Group.from_flow(vector_field=lambda points: points**3).transform, theta)


OVERFLOWING = {
    "integrated": cubic,
    "raw": lambda theta: Warp.flow(lambda t, points: points / torch.sqrt(1 - 2 * t[..., None] * points**2), theta),
    "lens": lens,
}


@pytest.mark.parametrize("kind", OVERFLOWING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_where_a_flow_leaves_the_plane_there_is_nothing(kind, dtype, padding):
    theta = torch.tensor([5.0, 0.1], dtype=dtype, requires_grad=True)
    images = torch.rand(2, 1, 9, 9, dtype=dtype, requires_grad=True)
    shrink = Warp.projective(et.group("dilation").matrix(torch.tensor(-20.0, dtype=dtype)))
    for warp in (OVERFLOWING[kind](theta), shrink @ OVERFLOWING[kind](theta)):  # shrunk, far away is in the image
        valid = warp.valid((9, 9))
        corner, centre = torch.tensor([[-0.9, 0.9]], dtype=dtype), torch.tensor([[0.1, 0.1]], dtype=dtype)
        assert warp.visible(corner.expand(2, 1, 2))[:, 0].tolist() == [False, True]
        assert warp.visible(centre.expand(2, 1, 2)).all()
        assert not valid[0, 0, 0, 0]
        assert valid[:, 0, 4, 4].all()
        assert warp.boxes(torch.tensor([[-1.0, -1.0, 1.0, 1.0]] * 2, dtype=dtype))[0].isinf().all()
        for mode in ("bilinear", "nearest", "bicubic", "sharp_bicubic"):
            seen = warp.image(images, mode=mode, padding=padding)
            assert seen.isfinite().all()
            if padding == "zeros":
                assert seen[0, 0, 0, 0] == 0
                filled = warp.image(images, mode=mode, fill=0.25)
                assert filled[0, 0, 0, 0] == 0.25
            (gradient,) = torch.autograd.grad(seen.sum(), images, retain_graph=True)
            assert gradient.isfinite().all()
            if mode != "nearest":
                assert torch.autograd.grad(seen.sum(), theta)[0].isfinite().all()
        assert warp.points(centre.expand(2, 1, 2)).isfinite().all()


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic", "sharp_bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_coordinates_of_any_size_are_sampled_safely(mode, padding):
    """`grid_sample` reads outside of the image's memory at NaN."""
    images = torch.rand(1, 1, 28, 28, requires_grad=True)
    for value in (1e18, 3e38, -3e38, torch.inf, -torch.inf, torch.nan):
        x = torch.full((1, 3, 4), value, requires_grad=True)
        places = stacked(x, 0 * x.detach().nan_to_num())
        seen = resampling.resample(images, places, x < torch.inf, mode=mode, padding=padding)
        assert seen.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(seen.sum(), (images, x)))


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e20, 3e38])
def test_the_scale_of_a_matrix_may_be_extreme(scale):
    matrix = et.group("rotation").matrix(torch.tensor([0.7, -0.8]))
    images = torch.rand(2, 1, 6, 6)
    factor = torch.tensor(scale, requires_grad=True)
    warp = Warp.projective(factor * matrix)
    torch.testing.assert_close(warp.image(images), Warp.projective(matrix).image(images), rtol=0, atol=1e-3)
    if scale > 1:  # the gradient of a tiny number is too large to be one
        assert torch.autograd.grad(warp.image(images).sum(), factor)[0].isfinite()


# Derivatives


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "sharp_bicubic"])
def test_gradients(mode, antialias):
    images = torch.rand(2, 1, 5, 6, dtype=torch.float64, requires_grad=True)
    matrix = random_matrices(2, dtype=torch.float64).requires_grad_()
    theta = torch.tensor([0.11, -0.2], dtype=torch.float64, requires_grad=True)

    def see(images, matrix, theta):
        return (Warp.projective(matrix) @ lens(theta)).inverse().image(images, mode=mode, fill=0.3)

    assert torch.autograd.gradcheck(see, (images, matrix, theta))
    # With anti-aliasing the choice of filter is held fixed, so only the image is checked.
    assert torch.autograd.gradcheck(lambda i: Warp.projective(matrix.detach()).image(i, antialias=antialias), (images,))


def test_points_have_gradients():
    points = torch.rand(2, 3, 2, dtype=torch.float64, requires_grad=True)
    matrix = random_matrices(2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda p, m: Warp.projective(m).points(p), (points, matrix))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # from torch.compile itself
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_flow_compiles_into_one_graph_with_gradients(backend):
    images = torch.rand(3, 1, 7, 9)

    def loss(theta):
        return lens(theta).image(images).square().sum()

    plain, compiled = (torch.tensor([0.2, -0.3, 2.0], requires_grad=True) for _ in range(2))
    loss(plain).backward()
    torch.compile(loss, fullgraph=True, backend=backend)(compiled).backward()
    torch.testing.assert_close(compiled.grad, plain.grad)


def test_a_flow_takes_part_in_torch_func():
    images, theta = torch.rand(1, 1, 7, 9, dtype=torch.float64), torch.tensor([0.2, -0.3, 2.0], dtype=torch.float64)

    def loss(theta, images=images):
        return lens(theta).image(images).square().sum()

    leaf = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.vmap(loss)(theta), torch.stack([loss(one) for one in theta]))
    torch.testing.assert_close(torch.func.grad(loss)(theta), expected)
    # Before 2.12, torch has no batches of gradients of `grid_sample` unless the images have a gradient as well.
    found, _ = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, None))(theta, images)
    torch.testing.assert_close(found, expected)
    points, forward = torch.rand(4, 2, dtype=torch.float64) / 2, torch.ones((), dtype=torch.float64)
    velocity = torch.func.jvp(lambda t: lens(t).points(points), (0 * forward,), (forward,))[1]
    torch.testing.assert_close(velocity, et.RADIAL_LENS.vector_field(points))


def test_gradients_are_finite_at_the_horizon():
    theta = torch.tensor([1.0, 2.0], requires_grad=True)  # the horizon runs through pixel centres
    images = torch.rand(2, 1, 9, 9, requires_grad=True)
    Warp.projective(et.group("x_perspective").matrix(theta)).image(images).sum().backward()
    assert theta.grad.isfinite().all()
    assert images.grad.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"fill": 0.3}, {"padding": "border"}, {"antialias": True}])
@pytest.mark.parametrize("inside", [True, False])
def test_corrections_that_no_point_needs_change_nothing(options, inside):
    """Points may be known to need no division, no horizon and no bounds. The compiler, which knows nothing, agrees."""
    turn = et.group("rotation").matrix(torch.tensor([0.4, -0.3]))
    matrix = turn if inside else turn @ et.group("x_perspective").matrix(torch.tensor([0.2, 1.5]))
    images = torch.rand(2, 3, 24, 24)
    leaf = matrix.clone().requires_grad_()
    seen = Warp.projective(matrix).image(images, **options)
    with_gradient = Warp.projective(leaf).image(images, **options)
    torch.testing.assert_close(with_gradient, seen)

    def traced(matrix):
        return Warp((matrix,)).image(images, **options)

    torch.testing.assert_close(torch.func.functionalize(traced)(matrix), seen)
    (gradient,) = torch.autograd.grad(with_gradient.square().sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda m: traced(m).square().sum())(matrix), gradient)
    assert gradient[:, 2].abs().min() > 0  # also for the last row of an affine matrix


def test_a_point_that_is_not_a_number_lies_outside():
    points = torch.tensor([[[0.0, 0.0], [torch.nan, 0.0], [torch.inf, 0.0]]])
    turn = Warp.projective(et.group("rotation").matrix(torch.tensor([0.5])))
    samples, valid = turn.sample_valid(torch.ones(1, 1, 8, 8), points, fill=2.0)
    assert samples.flatten().tolist() == [1, 2, 2]
    assert valid.flatten().tolist() == turn.visible(points).flatten().tolist() == [True, False, False]


# Use


def test_bad_input_is_explained():
    images, warp = torch.rand(2, 1, 4, 4), Warp.projective(torch.eye(3))
    with pytest.raises(TypeError, match=r"must be a torch.Tensor, got list"):
        warp.image([[1.0]])
    with pytest.raises(TypeError, match="unsupported operand"):
        warp @ 3
    bad_matrices = [
        (torch.eye(2), r"shape \(B, 3, 3\) or \(3, 3\), got \(2, 2\)"),
        ([[1, 0, 0]], "got list"),
        (torch.full((2, 3, 3), float("nan")), "warp matrix 0 has NaN or infinite entries"),
        (torch.stack([torch.eye(3), torch.ones(3, 3)]), "warp matrix 1 has a zero determinant"),
    ]
    for matrix, message in bad_matrices:
        with pytest.raises(ValueError, match=message):
            Warp.projective(matrix)
    with pytest.raises(TypeError, match=r"floating-point numbers, got torch.int64; convert with .float\(\)"):
        Warp.projective(torch.eye(3, dtype=torch.long))
    with pytest.raises(TypeError, match=r"images must be floating point, got torch.uint8; convert with"):
        warp.image(images.to(torch.uint8))
    for call, message in [
        (lambda: warp.image(images[0]), r"shape \(B, C, H, W\), got \(1, 4, 4\)"),
        (lambda: warp.image(images[..., :0]), "at least one pixel"),
        (lambda: Warp.projective(random_matrices(3)).image(images), "2 images and 3 warps: the counts must be equal"),
        (lambda: warp.image(images, mode="cubic"), "the modes are"),
        (lambda: warp.image(images, padding="wrap"), "the paddings are"),
        (lambda: lens(torch.zeros(2, 2)), r"shape \(B,\) or \(\)"),
        (
            lambda: Warp.projective(random_matrices(3)) @ Warp.projective(random_matrices(2)),
            "cannot compose 3 warps with 2",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


SPARSE = torch.zeros(2, 5, 2).to_sparse()


@pytest.mark.parametrize(
    "junk", [None, [[0.0, 1.0]], "x", SPARSE, torch.zeros(2, 5, 2) * 1j], ids=lambda value: type(value).__name__
)
def test_what_is_not_a_dense_tensor_is_refused(junk):
    for warp in (Warp.projective(torch.eye(3)), lens(torch.zeros(2))):
        for call in (warp.points, warp.visible, warp.boxes, warp.image, warp.mask, warp.restore):
            with pytest.raises(TypeError, match="must be"):
                call(junk)
        with pytest.raises(TypeError, match="must be"):
            warp.sample(torch.rand(2, 1, 4, 4), junk)


def test_matrices_and_parameters_without_values_are_refused():
    for matrix in (torch.eye(3).to_sparse(), torch.eye(3) * 1j, torch.eye(3).to(torch.float8_e4m3fn)):
        with pytest.raises(TypeError, match=r"must be (dense|real numbers)|floating-point numbers, got"):
            Warp.projective(matrix)
        with pytest.raises(TypeError, match=r"must be (dense|real numbers)|floating-point numbers, got"):
            Warp.flow(et.RADIAL_LENS.transform, matrix[0])
    for theta in (None, "a", [0.1], object()):
        with pytest.raises(TypeError, match="theta of a flow is a number or a tensor"):
            Warp.flow(et.RADIAL_LENS.transform, theta)
    with pytest.raises(TypeError, match="a flow is a function"):
        Warp.flow(3, 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda warp: warp.points(torch.zeros(2, 5, 3)), r"points have shape \(B, ..., 2\), as \(x, y\), got"),
        (lambda warp: warp.points(torch.zeros(())), "points have shape"),
        (lambda warp: warp.points(torch.zeros(3, 5, 2)), "3 images and 2 warps"),
        (lambda warp: warp.visible(torch.zeros(3, 5, 2)), "3 images and 2 warps"),
        (lambda warp: warp.boxes(torch.zeros(2, 5, 2)), r"boxes have shape \(B, ..., 4\), as \(left, top"),
        (lambda warp: warp.boxes(torch.zeros(3, 5, 4)), "3 images and 2 warps"),
        (lambda warp: warp.sample(torch.rand(2, 1, 4, 4), torch.zeros(5, 2)), r"shape \(..., h, w, 2\)"),
        (lambda warp: warp @ Warp.projective(random_matrices(3)), "cannot compose 2 warps with 3"),
        (lambda warp: warp @ lens(torch.zeros(3)), "cannot compose 2 warps with 3"),
        (lambda warp: warp.valid((4, -1)), "neither below 0"),
        (lambda warp: warp.valid((2.5, 3)), "two whole numbers"),
        (lambda warp: warp.image(torch.rand(2, 1, 4, 4), size=3), "two whole numbers"),
        (lambda warp: warp.image(torch.rand(2, 1, 4, 4), size=(10**10, 10**10)), r"at most 2\*\*30 pixels"),
        (lambda warp: warp.mask(torch.ones(2, 1, 4, 4), size=(3, 3, 3)), "two whole numbers"),
    ],
)
def test_shapes_and_sizes_that_do_not_fit_are_explained(call, message):
    for warp in (Warp.projective(random_matrices(2)), lens(torch.zeros(2))):
        with pytest.raises(ValueError, match=message):
            call(warp)


def test_integer_points_are_refused():
    for call in (Warp.identity().points, lens(torch.zeros(2)).visible):
        with pytest.raises(TypeError, match=r"points must be floating point, got torch.int64; convert with .float\(\)"):
            call(torch.zeros(2, 5, 2, dtype=torch.int64))


def test_missing_points_stay_missing():
    points = torch.tensor([[[0.1, 0.2], [torch.nan, torch.nan]]])
    for warp in (Warp.projective(random_matrices(1)), lens(torch.zeros(1))):
        assert warp.points(points).isnan().any(-1).tolist() == [[False, True]]
        assert warp.visible(points).tolist() == [[True, False]]


def test_warps_pickle():
    warp = Warp.projective(random_matrices(2)) @ lens(torch.zeros(2))
    images = torch.rand(2, 1, 5, 5)
    assert torch.equal(pickle.loads(pickle.dumps(warp)).image(images), warp.image(images))


@pytest.mark.parametrize("shape", [(2,), (1, 5, 2), (3, 4, 5, 2)])
def test_what_is_visible_has_the_shape_of_the_points(shape):
    warp = Warp.projective(random_matrices(3))
    points = torch.rand(shape)
    assert warp.visible(points).shape == warp.points(points).shape[:-1]
