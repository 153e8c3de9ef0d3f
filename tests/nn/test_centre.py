"""The predictor of both translations: its centre turns with the content about any point."""

import math

import pytest
import torch
from glyphs import glyphs
from pairs import takes
from textures import textures

import equivariant_transformers as et
from equivariant_transformers.models.backbones import make_backbone
from equivariant_transformers.nn.centre import CentrePredictor
from equivariant_transformers.nn.predictors import ConsistentPredictor

SIZE = (64, 64)
ANGLES = (-math.pi, math.pi)


def layer(kind=CentrePredictor, in_channels=1, seed=0, size=SIZE):
    torch.manual_seed(seed)
    chart = et.chart("cartesian").replace(size=size)
    return et.EquivariantTransformer(chart, in_channels, predictor=kind(chart, in_channels, channels=8)).eval()


def bump():
    """Weights `(64, 64)` of a spot off the centre, for content on an even ground."""
    ticks = torch.linspace(-1, 1, 64)
    return torch.exp(-8 * ((ticks - 0.2) ** 2 + (ticks[:, None] + 0.1) ** 2))


def centre_errors(predictor, pictures, about):
    """Return how far the centre moves in the content, in pixels: rms over angles, per image."""
    seen = []

    def read(images):
        seen.append(-predictor(images).pose)
        return torch.zeros(len(images))

    result = et.self_consistency(read, pictures, ANGLES, group="rotation", size=SIZE, crop=0.6, centre=about)
    pitch = 2 / (SIZE[0] - 1)
    point = torch.tensor(about) * pitch
    back = []
    for angle, centre in zip([0.0, *result.theta.tolist()], seen, strict=True):
        matrix = et.group("rotation").matrix(torch.tensor(angle))[:2, :2]
        back.append((centre - point) @ matrix.mT + point)
    return torch.stack([(place - back[0]).norm(dim=-1) for place in back[1:]]).square().mean(0).sqrt() / pitch


def angle_errors(stack, pictures, about, size=SIZE):
    column = stack(pictures[:1]).names.index("rotation")
    read = lambda images: stack(images).pose[:, column]  # noqa: E731
    result = et.self_consistency(read, pictures, ANGLES, group="rotation", size=size, crop=0.6, centre=about)
    return (result.predicted[0] - result.theta[:, None]).square().mean(0).sqrt()


@pytest.mark.parametrize("about", [(0.0, 0.0), (2.0, 0.0), (3.0, -4.0)])
def test_the_centre_of_content_on_an_even_ground_turns_with_it(about):
    assert centre_errors(layer(), glyphs(), about).max() < 0.5
    assert centre_errors(layer(ConsistentPredictor), glyphs(), about).max() > 1


def stack(first, second, in_channels=1):
    """A stack of a cartesian layer and one behind it, whose weights do not depend on the first."""
    torch.manual_seed(0)
    behind = et.EquivariantTransformer(second, in_channels)
    return et.Canonicalizer([*first, behind], in_channels).eval()


@pytest.mark.parametrize("second", ["rotation", "log_polar"])
def test_stacks_follow_rotations_about_a_point_off_the_centre(second):
    about = (2.0, 0.0)
    assert angle_errors(stack([layer()], second), glyphs(), about).median() < 0.15
    assert angle_errors(stack([layer(ConsistentPredictor)], second), glyphs(), about).median() > 0.15
    assert angle_errors(stack([], second), glyphs(), about).median() > 0.15


@pytest.mark.parametrize("size", [(64, 64), (48, 80)])
def test_a_picture_that_fills_its_frame_stays_in_place(size):
    pictures, about = textures(8, (192, 192)), (0.0, 0.0)
    errors = angle_errors(stack([layer(in_channels=3)], "rotation", 3), pictures, about, size)
    torch.testing.assert_close(errors, angle_errors(stack([], "rotation", 3), pictures, about, size))
    before = stack([layer(ConsistentPredictor, 3)], "rotation", 3)
    assert angle_errors(before, pictures, about, size).median() > 2 * errors.median()


@pytest.mark.parametrize("size", [(64, 64), (48, 64)])
def test_the_centre_follows_translations_for_any_weights(size):
    for seed in range(2):
        found = et.self_consistency(layer(seed=seed, size=size), glyphs(), (-0.4, 0.4), size=SIZE)
        assert (found.slope - 1).abs().max() < 0.02
        assert found.rms.max() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_empty_image_stays_in_place(dtype):
    empty = layer().to(dtype).train()
    with torch.no_grad():
        empty.predictor.bias.fill_(0.5)
    images = torch.full((2, 1, 32, 32), 0.7, dtype=dtype, requires_grad=True)
    out = empty(images)
    assert not out.pose.any()
    assert not out.confidence.any()
    out.pose.sum().backward()
    assert images.grad.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in empty.parameters() if weight.grad is not None)


def test_gradients_reach_every_weight():
    trained = layer().train()
    trained(glyphs(64)).pose.square().sum().backward()
    assert all(weight.grad.isfinite().all() and weight.grad.any() for weight in trained.parameters())


def test_what_is_outside_the_picture_is_no_evidence():
    pictures = textures(4, (64, 64)) * bump()
    mask = torch.ones(4, 1, 64, 64, dtype=torch.bool)
    mask[..., :8] = False
    stack = et.Canonicalizer([layer(in_channels=3)], 3)
    dark, bright = (stack(torch.where(mask, pictures, bar), mask=mask).pose for bar in (-3.0, 3.0))
    torch.testing.assert_close(dark, bright, atol=1e-3, rtol=0)
    wide = pictures[..., 12:52, :]
    for value in (-3.0, 3.0):
        filled = et.Canonicalizer([layer(in_channels=3)], 3, fill=value)
        torch.testing.assert_close(filled(wide).pose, stack(wide).pose, atol=1e-3, rtol=0)


def test_brightness_and_contrast_do_not_matter():
    pictures, found = textures(4, (64, 64)) * bump(), layer(in_channels=3)
    torch.testing.assert_close(found(5 * pictures + 1).pose, found(pictures).pose, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", [name for name in et.CHARTS if not takes("centre", name)])
def test_other_charts_are_refused(name):
    message = f"the predictor centre is for the chart 'cartesian' alone, got '{name}'"
    with pytest.raises(ValueError, match=message):
        et.EquivariantTransformer(name, predictor="centre")
    with pytest.raises(ValueError, match=message):
        et.Canonicalizer(["cartesian", name], predictor="centre")


def test_the_stack_of_a_centre_and_a_rotation_is_saved_with_its_network_and_alone(tmp_path):
    centred = et.EquivariantTransformer("cartesian", 3, predictor="centre", channels=8)
    both = et.Canonicalizer([centred, "rotation"], 3, predictor="consistent", channels=8)
    model = et.Canonicalized(make_backbone("resnet10", 3, 4), both).eval()
    et.hub.save_network(model, tmp_path / "file", "resnet10", size=(32, 32))
    images = textures(2, (36, 36))[..., :32, :32] * bump()[::2, ::2]
    assert torch.equal(et.hub.load_network(tmp_path / "file").canonicalizer(images).pose, both(images).pose)
    et.hub.save_canonicalizer(both, tmp_path / "other")
    assert torch.equal(et.hub.load_canonicalizer(tmp_path / "other")(images).pose, both(images).pose)


def test_a_chart_with_few_samples_is_refused():
    with pytest.raises(ValueError, match="at least 4 x 4 samples"):
        et.EquivariantTransformer(et.chart("cartesian").replace(size=(3, 8)), predictor="centre")
