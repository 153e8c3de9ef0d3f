"""Content that moves inside a fixed frame: every cause of a wrong pose that the whole moving picture hides."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equivariant_transformers as et
from equivariant_transformers import audit
from equivariant_transformers.audit.probes import MAX_THETA, THETA, filling_crop, fills_frame, on_canvas
from equivariant_transformers.audit.rendering import off_grid
from equivariant_transformers.geometry.frame import pixel_centres

SIZE = (48, 48)
FULL = 1 / math.sqrt(2)


def textures(batch=6, size=(192, 192), dtype=torch.float32, seed=0):
    """Smooth random images that fill their frame, `(B, 1, *size)`; the pattern does not depend on the size."""
    generator = torch.Generator().manual_seed(seed)
    y, x = (torch.arange(count, dtype=dtype) - (count - 1) / 2 for count in size)
    x, y = (ticks / (max(size) / 2) for ticks in (x[None, :], y[:, None]))
    pictures = []
    for _ in range(batch):
        picture = torch.zeros(size, dtype=dtype)
        for a, b, phase in torch.randn(12, 3, generator=generator).tolist():
            picture += torch.cos(4 * a * x + 4 * b * y + 3 * phase)
        pictures.append(0.5 + picture / 24)
    return torch.stack(pictures)[:, None]


def angle_within(radius, centre=(0, 0)):
    """Predictor of the angle of the first moment about `centre`, in pixels, within `radius` of half the shorter side.

    The weight fades smoothly to 0 at the radius. An infinite radius reads the whole frame, corners included.
    """

    def read(images):
        height, width = images.shape[-2:]
        x = (torch.arange(width) - (width - 1) / 2 - centre[0]).to(images.dtype)
        y = (torch.arange(height) - (height - 1) / 2 - centre[1]).to(images.dtype)[:, None]
        r = torch.hypot(x, y) / (min(height, width) / 2)
        weight = (1 - (r / radius) ** 2).clamp_min(0) ** 2
        even = (weight * images[:, 0]).sum((1, 2), keepdim=True) / weight.sum()
        moment = [(weight * (images[:, 0] - even) * ticks).sum((1, 2)) for ticks in (x, y)]
        return -torch.atan2(moment[1], moment[0])

    return read


def rotation(predictor, pictures, theta=(-math.pi, math.pi), **options):
    return audit.self_consistency(predictor, pictures, theta, group="rotation", size=SIZE, **options)


# The four causes


def test_a_predictor_that_reads_the_corners_is_exact_only_on_a_canvas():
    whole, inscribed = angle_within(math.inf), angle_within(1.0)
    for predictor in (whole, inscribed):
        assert rotation(predictor, on_canvas(textures(), 192)).rms_theta < 0.1
    assert rotation(whole, textures(), crop=FULL).rms_theta > 0.3
    assert rotation(inscribed, textures(), crop=FULL).rms_theta < 0.02
    with pytest.raises(AssertionError, match="not equivariant"):
        audit.assert_equivariant(whole, textures(), (-math.pi, math.pi), group="rotation", size=SIZE, crop=FULL)


def test_a_predictor_of_multiples_of_45_degrees_is_exact_only_at_these():
    step = math.pi / 4
    inscribed = angle_within(1.0)

    def stepwise(images):
        return (inscribed(images) / step).round() * step

    even = rotation(stepwise, textures(), torch.linspace(-math.pi, math.pi, 9), crop=FULL)
    assert even.median < 1e-6
    assert rotation(stepwise, on_canvas(textures(), 192)).median < 1e-6  # the range without a crop is even, as always
    assert rotation(stepwise, textures(), crop=FULL).rms_theta > step / 6


def test_a_centre_off_the_middle_disturbs_who_reads_about_the_middle():
    centre = (3.0, -2.0)
    middle, moved = angle_within(0.8), angle_within(0.8, centre)
    crop = 0.6  # room for the larger distance of the corners from the centre
    assert rotation(middle, textures(), crop=crop).rms_theta < 0.02
    assert rotation(middle, textures(), crop=crop, centre=centre).rms_theta > 0.1
    assert rotation(moved, textures(), crop=crop, centre=centre).rms_theta < 0.02
    assert rotation(moved, textures(), crop=crop).rms_theta > 0.1


def pitches(size):
    return [float(ticks.flatten()[1] - ticks.flatten()[0]) for ticks in pixel_centres(size, torch.float64, "cpu")]


def test_a_rotation_of_an_image_that_is_not_square_is_a_rotation_of_the_picture():
    pictures = textures(size=(144, 240))
    found = audit.self_consistency(
        angle_within(1.0), pictures, (-math.pi, math.pi), group="rotation", size=(36, 60), crop=0.5
    )
    assert found.rms_theta < 0.03


# Geometry of the frame


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(48, 48), (24, 40)])
def test_the_frame_shows_a_fraction_of_the_image_and_is_sampled_once(size, dtype):
    seen = []

    def look(images):
        seen.append(images)
        return torch.zeros(len(images))

    pictures = textures(2, (4 * size[0], 4 * size[1]), dtype)
    audit.self_consistency(look, pictures, (-0.1, 0.1), group="x_translation", size=size, crop=0.5)
    assert seen[0].dtype == dtype
    zoom = et.Warp.projective(torch.diag(torch.tensor([0.5, 0.5, 1], dtype=dtype)))
    torch.testing.assert_close(seen[0], zoom.image(pictures, size=size, antialias=True))


@pytest.mark.parametrize("name", ["x_translation", "x_perspective", "rotation"])
def test_the_group_acts_in_the_units_of_the_frame(name):
    """A crop of half the side sees T_theta of its own coordinates, not of those of the picture around it."""
    seen = []
    read = lambda images: seen.append(images) or torch.zeros(len(images))  # noqa: E731
    pictures = textures(2)
    theta = torch.tensor([0.1, 0.3])
    audit.self_consistency(read, pictures, theta, group=name, size=SIZE, crop=0.5)
    half = et.Warp.projective(torch.diag(torch.tensor([0.5, 0.5, 1])))
    for images, value in zip(seen[1:], theta, strict=True):
        acting = et.Warp.projective(et.group(name).matrix(value))
        torch.testing.assert_close(images, (half @ acting).image(pictures, size=SIZE, antialias=True))


def test_the_centre_is_in_pixels_of_the_test_image():
    """Half a turn about a pixel maps the picture on itself, reflected in that pixel."""
    seen = []
    read = lambda images: seen.append(images) or torch.zeros(len(images))  # noqa: E731
    theta = torch.tensor([math.pi, -math.pi])
    audit.self_consistency(read, textures(1), theta, group="rotation", size=(49, 49), crop=0.5, centre=(3, -5))
    x, y = 24 + 3, 24 - 5
    around = seen[0][..., y - 10 : y + 11, x - 10 : x + 11]
    turned = seen[1][..., y - 10 : y + 11, x - 10 : x + 11]
    torch.testing.assert_close(turned, around.flip(-1, -2), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", MAX_THETA)
def test_content_fills_a_square_frame_over_the_whole_range(name):
    limit = MAX_THETA[name]
    theta = torch.linspace(-limit, limit, 65)
    crop = filling_crop(et.group(name), theta, SIZE)
    assert crop > 0.6
    seen = []
    read = lambda images: seen.append(images) or torch.zeros(len(images))  # noqa: E731
    audit.self_consistency(read, torch.ones(1, 1, 96, 96), theta, group=name, size=SIZE, crop=crop, fill=0)
    assert min(images.min() for images in seen) > 0.99


@given(st.floats(-1, 0.9), st.floats(0.05, 3))
def test_values_of_a_range_lie_off_every_grid(low, length):
    values = off_grid(low, low + length)
    assert len(values) == 9
    assert low < values.min()
    assert values.max() < low + length
    places = (values - low) / length * 9
    assert places.floor().tolist() == list(range(9))
    for samples in (8, 16, 64, 72, 128):  # sample spacings that divide the range
        off = (places / 9 * samples) % 1
        assert (torch.minimum(off, 1 - off) > 0.005).all()
        assert torch.minimum(off, 1 - off).median() > 0.1


def test_images_that_fill_their_frame_are_told_from_content_on_an_even_ground():
    assert fills_frame(textures())
    assert not fills_frame(on_canvas(textures(), 192))
    assert not fills_frame(torch.zeros(2, 1, 1, 1))


# Errors in units


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(48, 48), (24, 40), (40, 24)])
def test_errors_are_also_in_the_unit_of_theta_and_in_pixels(size, dtype):
    constant = lambda images: torch.zeros(len(images))  # noqa: E731
    theta = torch.tensor([0.3, -0.3])
    pictures = textures(2, (2 * size[0], 2 * size[1]), dtype)
    for axis, name in enumerate(("x_translation", "y_translation")):
        found = audit.self_consistency(constant, pictures, theta, group=name, size=size)
        assert found.rms_theta.item() == pytest.approx(0.3)
        assert found.rms_pixels.item() == pytest.approx(0.3 / pitches(size)[axis])
        assert found.displacement.shape == (1, 2, 2)


def test_displacements_are_those_of_a_disc_and_limited_to_the_image():
    constant = lambda images: torch.zeros(len(images))  # noqa: E731
    theta = torch.tensor([0.02, -0.02])
    found = audit.self_consistency(constant, textures(1), theta, group="rotation", size=SIZE)
    radius = 0.7 / math.sqrt(2) * (SIZE[0] - 1) / 2  # rms over a disc, in pixels
    assert found.rms_pixels.item() == pytest.approx(0.02 * radius, rel=0.03)
    found = audit.self_consistency(constant, textures(1), torch.tensor([50.0, -50]), group="x_perspective", size=SIZE)
    assert found.rms_pixels <= SIZE[0]
    nan = audit.self_consistency(lambda x: torch.full((len(x),), math.nan), textures(1), (-1, 1), group="rotation")
    assert nan.rms_pixels.isnan().all()


@pytest.mark.parametrize("name", THETA)
def test_a_random_layer_is_audited_in_a_fixed_frame(name):
    torch.manual_seed(0)
    layer = et.EquivariantTransformer(et.chart(name).replace(size=(16, 16)), channels=2)
    limit = MAX_THETA[name]
    found = audit.self_consistency(layer, textures(2, (64, 64)), (-limit, limit), size=(16, 16), crop=0.7)
    assert found.predicted.isfinite().all()
    invariant = audit.invariance(layer, textures(2, (64, 64)), (-limit, limit), size=(16, 16), crop=0.7, centre=(1, 0))
    torch.testing.assert_close(invariant.theta, off_grid(-limit, limit))
