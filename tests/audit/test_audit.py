import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import equivariant_transformers as et
from equivariant_transformers import audit
from equivariant_transformers.nn.predictors import Prediction

SIZE = 32
AXIS = torch.linspace(-1, 1, SIZE)


def blobs(centres=((0.1, 0.05),), sharpness=25.0, size=SIZE):
    """Smooth bumps at the given centres, `(B, 1, size, size)`."""
    axis = torch.linspace(-1, 1, size)
    return torch.stack([torch.exp(-sharpness * ((axis - x) ** 2 + (axis[:, None] - y) ** 2)) for x, y in centres])[
        :, None
    ]


def waves(batch=2):
    """Smooth images that reach their edges, and are far from 0 there."""
    shifts = torch.arange(batch)[:, None, None]
    return (2 + torch.cos(4 * AXIS + shifts) * torch.sin(3 * AXIS[:, None] - shifts))[:, None]


def centroid(images):
    """The centre of mass of images `(B, C, H, W)`, as (x, y)."""
    y, x = (torch.linspace(-1, 1, count, dtype=images.dtype) for count in images.shape[-2:])
    rows, columns, mass = images.sum((1, 3)), images.sum((1, 2)), images.sum((1, 2, 3))
    return torch.stack(((columns * x).sum(-1) / mass, (rows * y).sum(-1) / mass), -1)


def x_pose(images):
    return -centroid(images)[:, 0]


def angle_pose(images):
    x, y = centroid(images).unbind(-1)
    return -torch.atan2(y, x)


class Recorder(nn.Module):
    """A pose predictor that remembers how it was called."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.inner = nn.Dropout()
        self.calls = []

    def forward(self, images):
        self.calls.append((tuple(images.shape), self.training or self.inner.training, torch.is_grad_enabled()))
        return x_pose(images) * self.scale


class Reading(nn.Module):
    """A layer's predictor whose poses are `read(images)`."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, images):
        pose = self.read(images[:, :, 0])[:, None]
        return Prediction(pose, torch.ones_like(pose), ())


def layer_reading(read, name="x_translation", **options):
    layer = et.EquivariantTransformer(name, **options)
    layer.predictor = Reading(read)
    return layer


# Self-consistency


def test_an_exact_predictor_has_slope_one_and_no_error():
    result = audit.self_consistency(x_pose, blobs([(0.1, 0), (-0.1, 0.2)]), (-0.3, 0.3), group="x_translation")
    assert result.names == ("x_translation",)
    assert result.predicted.shape == (1, 9, 2)
    torch.testing.assert_close(result.theta, torch.linspace(-0.3, 0.3, 9, dtype=torch.float64))
    torch.testing.assert_close(result.slope, torch.ones(1, dtype=torch.float64), atol=1e-4, rtol=0)
    assert result.rms < 1e-4
    assert result.median < 1e-4
    assert result.slope_interval < 1e-4


def test_the_sign_is_that_of_the_paper():
    """f(T phi) = f(phi) + theta, so a predictor that returns the centroid itself has slope -1."""
    result = audit.self_consistency(lambda images: -x_pose(images), blobs(), (-0.3, 0.3), group="x_translation")
    assert abs(result.slope + 1) < 1e-4


def test_a_constant_predictor_has_slope_zero():
    result = audit.self_consistency(lambda images: torch.full((len(images), 1), 0.7), blobs(), (0, 1), group="x_shear")
    assert result.slope == 0
    torch.testing.assert_close(result.error[0, :, 0], -result.theta)
    assert result.slope_interval.isnan().all()  # one image


def test_half_the_pose_has_slope_one_half_and_a_known_error():
    theta = torch.tensor([0.4, -0.4, 0.1, -0.2], dtype=torch.float64)
    result = audit.self_consistency(lambda images: x_pose(images) / 2, blobs(), theta, group="x_translation")
    sizes = theta.abs() / 2 / 0.8
    assert abs(result.slope - 0.5) < 1e-4
    assert abs(result.rms - sizes.square().mean().sqrt()) < 1e-4
    assert abs(result.median - 0.15 / 0.8) < 1e-4


def test_the_interval_of_the_slope_comes_from_the_spread_over_images():
    factors = torch.tensor([0.5, 1.0, 1.5])
    images = blobs([(0.1, 0), (0, 0.1), (-0.1, 0)])
    result = audit.self_consistency(lambda x: x_pose(x) * factors, images, (-0.2, 0.2), group="x_translation")
    torch.testing.assert_close(result.slopes[0], factors.double(), atol=1e-3, rtol=0)
    assert abs(result.slope_interval - 1.96 * 0.5 / math.sqrt(3)) < 1e-3


def test_errors_wrap_around_where_the_group_is_periodic():
    images = blobs([(0.5, 0.1), (-0.4, 0.3)])
    result = audit.self_consistency(angle_pose, images, (-math.pi, math.pi), group="rotation")
    assert abs(result.slope - 1) < 1e-4
    assert result.rms < 1e-4
    turned = audit.self_consistency(
        lambda x: angle_pose(x) + 20 * math.pi * torch.rand(()).round(), images, (-3, 3), group="rotation"
    )
    assert abs(turned.slope - 1) < 1e-4


def test_every_parameter_has_its_group():
    groups = ("x_translation", et.group("y_translation"))
    result = audit.self_consistency(lambda x: -centroid(x), blobs(), (-0.3, 0.3), group=groups)
    assert result.names == ("x_translation", "y_translation")
    torch.testing.assert_close(result.slope, torch.ones(2, dtype=torch.float64), atol=1e-4, rtol=0)
    swapped = audit.self_consistency(lambda x: -centroid(x).flip(-1), blobs(), (-0.3, 0.3), group=groups)
    assert swapped.slope.abs().max() < 1e-4


def test_poses_may_come_in_an_object():
    result = audit.self_consistency(
        lambda images: SimpleNamespace(pose=x_pose(images)), blobs(), (-0.3, 0.3), group="x_translation"
    )
    assert abs(result.slope - 1) < 1e-4


def test_a_flow_that_no_matrix_gives():
    """The radial lens adds -theta to 1 / (2 r^2) of every point; its invariant area element is r^-4 dx dy."""
    axis = torch.linspace(-1, 1, 96)
    squared_radius = axis**2 + axis[:, None] ** 2

    def lens_pose(images):
        mass = images[:, 0] / squared_radius**2
        return (mass / (2 * squared_radius)).sum((1, 2)) / mass.sum((1, 2))

    images = blobs([(0.6, 0), (0, -0.55)], sharpness=100, size=96)
    result = audit.self_consistency(lens_pose, images, (-0.2, 0.2), group=et.RADIAL_LENS)
    assert abs(result.slope - 1) < 0.02
    assert result.rms < 0.01


def test_layers_know_their_groups():
    torch.manual_seed(0)
    images = blobs([(0.1, 0), (-0.1, 0.2)])
    layer = et.EquivariantTransformer("log_polar")
    assert audit.self_consistency(layer, images, (-0.2, 0.2)).names == ("rotation", "dilation")
    exact = audit.self_consistency(layer_reading(x_pose), images, (-0.3, 0.3))
    assert abs(exact.slope - 1) < 1e-2
    still = audit.self_consistency(et.SpatialTransformer("x_shear"), images, (-0.3, 0.3))
    assert still.slope == 0


def test_a_stack_and_a_model_around_it():
    canonicalizer = et.Canonicalizer([layer_reading(x_pose), "rotation"], iterations=2, predictor="consistent")
    images = blobs([(0.1, 0), (-0.1, 0.2)])
    result = audit.self_consistency(canonicalizer, images, (-0.3, 0.3))
    assert result.names == ("x_translation", "rotation")
    assert abs(result.slope[0] - 1) < 1e-2
    model = et.Canonicalized(nn.Flatten(), canonicalizer)
    torch.testing.assert_close(audit.self_consistency(model, images, (-0.3, 0.3)).predicted, result.predicted)


def test_an_untrained_equivariant_layer_follows_a_rotation():
    torch.manual_seed(0)
    images = blobs([(0.5, 0.1), (-0.2, 0.4)]) + blobs([(-0.3, -0.1), (0.1, -0.3)])
    assert audit.assert_equivariant(et.EquivariantTransformer("rotation"), images, (-3, 3)).rms < 0.05


# How test images are made


def test_a_module_is_left_as_it_was_found():
    model = Recorder()
    model.inner.eval()
    result = audit.self_consistency(model, blobs(), (-0.3, 0.3), group="x_translation")
    assert (model.training, model.inner.training) == (True, False)
    assert not result.predicted.requires_grad
    assert model.calls == [((1, 1, SIZE, SIZE), False, False)] * 10  # nine values and the reference
    assert torch.is_grad_enabled()


def test_a_module_is_left_as_it_was_found_after_an_error():
    model = Recorder()
    with pytest.raises(ValueError, match="1 pose parameters but 2 groups"):
        audit.self_consistency(model, blobs(), (-0.3, 0.3), group=("rotation", "dilation"))
    assert model.training
    assert model.inner.training


def test_batches_change_nothing_but_memory():
    images = blobs([(0.1 * i, 0) for i in range(5)])
    model = Recorder()
    at_once = audit.self_consistency(model, images, (-0.3, 0.3), group="x_translation")
    model.calls.clear()
    in_parts = audit.self_consistency(model, images, (-0.3, 0.3), group="x_translation", batch_size=2)
    assert {shape[0] for shape, _, _ in model.calls} == {2, 1}
    torch.testing.assert_close(in_parts.predicted, at_once.predicted, atol=1e-6, rtol=0)
    whole, parts = (
        audit.invariance(nn.Flatten(), images, (-0.3, 0.3), group="x_translation", batch_size=n) for n in (5, 2)
    )
    torch.testing.assert_close(parts.error, whole.error)


def test_large_originals_are_sampled_at_the_size_asked_for():
    model = Recorder()
    images = blobs(size=4 * SIZE)
    result = audit.self_consistency(model, images, (-0.3, 0.3), group="x_translation", size=(SIZE, SIZE + 4))
    assert {shape for shape, _, _ in model.calls} == {(1, 1, SIZE, SIZE + 4)}
    assert abs(result.slope - 1) < 1e-4


def test_an_enlargement_keeps_what_the_image_shows():
    """The reference is filtered like the moved images, so it is the image but for a slight blur."""
    seen = []

    def look(images):
        seen.append(images)
        return x_pose(images)

    audit.self_consistency(look, waves(), (-0.3, 0.3), group="x_translation")
    inside = (..., slice(2, -2), slice(2, -2))
    torch.testing.assert_close(seen[0][inside], waves()[inside], atol=0.02, rtol=0)
    audit.self_consistency(look, torch.ones(1, 1, SIZE, SIZE), (-0.3, 0.3), group="x_translation", fill=1)
    torch.testing.assert_close(seen[-1], torch.ones(1, 1, SIZE, SIZE))


@pytest.mark.parametrize(("given", "expected"), [(None, 0.3), (0.6, 0.6)])
def test_outside_the_images_is_the_background(given, expected):
    layer = layer_reading(x_pose, fill=0.3)
    for model in (layer, et.Canonicalizer([layer], predictor="consistent"), et.Canonicalized(nn.Flatten(), layer)):
        seen = []
        model.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        audit.invariance(model, waves(), torch.tensor([0.5, 1.0]), group="x_translation", fill=given)
        reference, *moved = seen
        assert (reference[0, 0, :, -2] > 0.8).all()
        assert all(((images[..., -4:] - expected).abs() < 1e-6).all() for images in moved)


def test_double_precision():
    result = audit.self_consistency(x_pose, blobs().double(), (-0.2, 0.2), group="x_translation")
    assert abs(result.slope - 1) < 1e-4


# Invariance


def test_an_invariant_function_has_no_error():
    result = audit.invariance(lambda images: images.mean((1, 2, 3)), blobs([(0, 0)]), (-3, 3), group="rotation")
    assert result.overall < 1e-3
    assert result.per_theta.shape == (9,)
    assert result.changed is None


def test_other_functions_have_one():
    result = audit.invariance(nn.Flatten(), blobs(), torch.tensor([0.0, 0.1, 0.3]), group="x_translation")
    assert result.per_theta[0] == 0
    assert 0.1 < result.per_theta[1] < result.per_theta[2]


def test_errors_and_changed_classes_are_known_for_a_known_model():
    def logits(images):
        x = centroid(images)[:, 0]
        return torch.stack((x, -x), -1)

    images = blobs([(0.2, 0), (0.2, 0.1)])
    result = audit.invariance(logits, images, torch.tensor([0.1, 0.4]), group="x_translation")
    torch.testing.assert_close(result.per_theta, torch.tensor([0.5, 2.0]).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(result.error, torch.tensor([[0.5, 0.5], [2.0, 2.0]]).double(), atol=1e-3, rtol=0)
    assert result.overall == pytest.approx(math.sqrt((0.25 + 4) / 2), abs=1e-3)
    assert result.changed_per_theta.tolist() == [0, 1]
    assert result.changed_overall == 0.5


def test_canonical_images_of_an_exact_layer_agree():
    images = blobs([(0.1, 0), (-0.1, 0.2)])
    exact = audit.invariance(layer_reading(x_pose), images, (-0.3, 0.3), group="x_translation")
    none = audit.invariance(et.SpatialTransformer("x_translation"), images, (-0.3, 0.3), group="x_translation")
    assert exact.overall < 0.03
    assert none.overall > 0.5


def test_pixels_from_outside_the_images_do_not_count():
    """Images that differ from the background at their edges, and a layer that knows the pose."""
    theta = torch.tensor([0.2, -0.5, 0.9])
    poses = iter([0.0, *theta.tolist()])
    layer = layer_reading(lambda images: torch.full((len(images),), next(poses)), "rotation")
    assert audit.invariance(layer, waves(), theta, group="rotation").overall < 0.02


def test_what_a_transformation_brings_in_from_outside_does_not_count():
    """Stripes along x stay the same under translation, whatever the layer does, except beyond their ends."""
    stripes = (2 + torch.sin(5 * AXIS[:, None])).expand(1, 1, SIZE, SIZE)
    result = audit.invariance(et.SpatialTransformer("rotation"), stripes, (-0.5, 0.5), group="x_translation")
    assert result.overall < 1e-3


def test_a_flow_changes_the_output_of_a_function_of_pixels():
    result = audit.invariance(nn.Flatten(), blobs(), (-0.2, 0.2), group=et.RADIAL_LENS)
    assert result.name == "radial_lens"
    assert result.overall > 1e-3


# Assertions and errors


def test_an_assertion_returns_what_it_measured():
    result = audit.assert_equivariant(x_pose, blobs(), (-0.3, 0.3), group="x_translation", rms=1e-3)
    assert isinstance(result, audit.SelfConsistency)


def test_an_assertion_names_the_bound_and_shows_the_table():
    def half(images):
        return -centroid(images) * torch.tensor([1.0, 0.5])

    with pytest.raises(AssertionError) as error:
        audit.assert_equivariant(half, blobs(), (-0.3, 0.3), group=("x_translation", "y_translation"), rms=0.2)
    first, *table = str(error.value).splitlines()
    assert "the slope of y_translation is 0.5, not 1 ± 0.05" in first
    assert "the median error of y_translation is 0.125, above 0.02" in first
    assert "rms" not in first
    assert "of x_translation" not in first
    assert [line.split()[0] for line in table] == ["self-consistency:", "parameter", "x_translation", "y_translation"]


def test_an_assertion_fails_on_nan():
    with pytest.raises(AssertionError, match="slope of rotation is nan"):
        audit.assert_equivariant(lambda x: torch.full((len(x),), math.nan), blobs(), (-1, 1), group="rotation")


def test_results_print_as_tables():
    result = audit.self_consistency(lambda images: torch.zeros(len(images), 1), blobs(), (-1, 1), group="x_shear")
    assert str(result).splitlines()[-1].split() == [
        "x_shear",
        "0.000",
        "±",
        "nan",
        "0.3227",
        "0.2500",
        "0.6455",
        "3.45",
    ]
    lines = str(audit.invariance(nn.Flatten(), blobs(), torch.tensor([0.0, 0.1]), group="rotation")).splitlines()
    assert lines[2].split() == ["0.000", "0.0000", "0.0%"]
    assert lines[-1].split()[0] == "overall"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"theta": torch.tensor([0.2])}, ValueError, "two distinct"),
        ({"theta": (0.2, 0.2)}, ValueError, "two distinct"),
        ({"theta": torch.tensor([])}, ValueError, "two distinct"),
        ({"theta": torch.zeros(2, 2)}, ValueError, "two distinct"),
        ({"theta": (0.0, math.inf)}, ValueError, "finite"),
        ({"images": torch.rand(1, 16, 16)}, ValueError, r"\(B, C, H, W\).*\(1, 16, 16\)"),
        ({"images": torch.rand(0, 1, 16, 16)}, ValueError, "at least one"),
        ({"images": torch.ones(1, 1, 16, 16, dtype=torch.uint8)}, TypeError, "floating point"),
        ({"group": ("rotation", "dilation")}, ValueError, "1 pose parameters but 2 groups"),
        ({"group": "rotaton"}, ValueError, "Did you mean 'rotation'"),
        ({"group": None}, ValueError, "x_pose does not define the group.*group="),
        ({"layer": lambda images: images}, TypeError, r"must return poses.*shape \(1, 1, 16, 16\)"),
        ({"layer": lambda _: {"pose": 1}}, TypeError, "must return poses.*dict"),
        ({"layer": lambda _: torch.zeros(3)}, ValueError, "3 outputs for 1 images"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"batch_size": 1.5}, TypeError, "batch_size must be a whole number, got 1.5"),
        *(
            ({"theta": theta}, ValueError, "two distinct finite values")
            for theta in (None, 5, "ab", (0, "a"), {0: 1, 2: 3}, {1, 2}, (0, 10**400), torch.tensor([1j, 2]))
        ),
        ({"theta": torch.empty(3, device="meta")}, ValueError, "two distinct finite values"),
        ({"size": 0}, ValueError, r"size must be \(height, width\)"),
        ({"size": ()}, ValueError, r"size must be \(height, width\)"),
        ({"size": (8, 0)}, ValueError, "width must be at least 1, got 0"),
        ({"size": (8.5, 8)}, TypeError, "height must be a whole number, got 8.5"),
        ({"size": (10**9, 10**9)}, ValueError, "height must be at most 16384"),
        *(({"crop": crop}, ValueError, r"crop must be a fraction.*\(0, 1\]") for crop in (0, -1, 1.5)),
        ({"crop": "half"}, TypeError, "crop must be a number, got 'half'"),
        *(({"centre": centre}, ValueError, r"centre must be \(dx, dy\) in pixels") for centre in (1, (1,), None)),
        ({"centre": (math.inf, 0)}, ValueError, "centre must be finite"),
        ({"centre": ("left", 0)}, TypeError, "dx must be a number"),
        ({"fill": "black"}, TypeError, "fill must be a number, got 'black'"),
        ({"fill": math.nan}, ValueError, "fill must be a number, got nan"),
        ({"group": 5}, ValueError, "group must be a group or its name"),
        ({"group": []}, ValueError, "group must be a group or its name"),
        ({"layer": None}, TypeError, "a layer or a function of images, got None"),
        ({"images": [[1.0]]}, ValueError, r"\(B, C, H, W\).*list"),
        ({"images": torch.rand(1, 1, 16, 16, device="meta")}, ValueError, "meta device have no pixels"),
        ({"images": torch.rand(1, 1, 16, 16).to_sparse()}, TypeError, "must be dense"),
        ({"images": torch.rand(1, 1, 0, 16)}, ValueError, "at least one pixel"),
    ],
)
def test_mistakes_are_explained(changes, error, message):
    arguments = {
        "layer": x_pose,
        "images": torch.rand(1, 1, 16, 16),
        "theta": (-0.3, 0.3),
        "group": "x_translation",
        **changes,
    }
    with pytest.raises(error, match=message):
        audit.self_consistency(**arguments)


@pytest.mark.parametrize("limit", ["slope", "median", "rms"])
def test_the_limits_of_an_assertion_are_numbers(limit):
    for value in ("small", None, math.nan, -0.1):
        with pytest.raises((TypeError, ValueError), match=limit):
            audit.assert_equivariant(x_pose, blobs(), (-0.3, 0.3), group="x_translation", **{limit: value})


def test_mistakes_with_invariance_are_explained():
    images = torch.rand(1, 1, 16, 16)
    with pytest.raises(ValueError, match="one group at a time, got 2"):
        audit.invariance(nn.Flatten(), images, (0, 1), group=("rotation", "dilation"))
    with pytest.raises(TypeError, match=r"must return a tensor \(B, \.\.\.\).* got dict"):
        audit.invariance(lambda _: {}, images, (0, 1), group="rotation")


# Plots


def test_a_plot_has_a_line_an_image_the_median_and_the_diagonal():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    from equivariant_transformers import viz

    images = blobs([(0.1, 0), (0, 0.1), (-0.1, 0)])
    result = audit.self_consistency(x_pose, images, torch.tensor([0.2, -0.2, 0.0]), group="x_translation")
    axes = figure.subplots()
    viz.pose_plot(result, axes)
    diagonal, *faint, median = axes.lines
    assert len(faint) == 3
    assert diagonal.get_xdata().tolist() == diagonal.get_ydata().tolist() == sorted(result.theta.tolist())
    assert abs(median.get_ydata() - median.get_xdata()).max() < 1e-4
    assert axes.get_title() == "x translation: slope 1.000"


@pytest.mark.parametrize("name", ["x_translation", "y_translation"])
@pytest.mark.parametrize(("images", "size"), [((24, 40), None), ((96, 160), (24, 40)), ((40, 24), None)])
def test_pictures_of_any_shape_are_rendered_in_the_frame_of_the_test_images(name, images, size):
    """A translation by some pixels' worth of the plane moves the test images by whole pixels."""
    y, x = (torch.linspace(-1, 1, count) for count in images)
    picture = (torch.cos(4 * x) * torch.sin(3 * y[:, None]))[None, None]
    height, width = size or images
    unit, seen = 2 / (max(height, width) - 1), []

    def record(rendered):
        seen.append(rendered)
        return rendered.flatten(1)

    et.invariance(record, picture, torch.tensor([3 * unit, -2 * unit]), group=name, size=size)
    axis = -1 if name == "x_translation" else -2
    for moved, pixels in zip(seen[1:], (3, -2), strict=True):
        inner = (slice(None), slice(None), slice(6, -6), slice(6, -6))
        torch.testing.assert_close(moved[inner], seen[0].roll(-pixels, axis)[inner], rtol=0, atol=1e-4)
