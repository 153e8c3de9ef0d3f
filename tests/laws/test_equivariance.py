"""The paper's promise, over every group and whatever the weights: f(T phi) = f(phi) + theta and L(T phi) = L(phi)."""

import math

import pytest
import torch
from glyphs import glyphs

import equivariant_transformers as et

LOG2 = math.log(2)
THETA = {  # the ranges of the paper's table; scales as far as the content grows
    "x_translation": (-0.5, 0.5),
    "y_translation": (-0.5, 0.5),
    "rotation": (-math.pi, math.pi),
    "dilation": (-LOG2, 0.0),
    "x_scale": (-LOG2, 0.0),
    "y_scale": (-LOG2, 0.0),
    "hyperbolic_rotation": (-math.log(1.5), math.log(1.5)),
    "x_shear": (-1.5, 1.5),
    "y_shear": (-1.5, 1.5),
    "x_perspective": (-0.6, 0.6),
    "y_perspective": (-0.6, 0.6),
}
PICTURES = glyphs()


def bounds(name):
    if name.endswith("perspective"):  # the singular point is inside the image, and orbits run into it unevenly
        return {"slope": 0.6, "median": 0.13, "rms": 0.25}
    if name == "dilation":
        return {"slope": 0.12, "median": 0.04, "rms": 0.1}
    return {"slope": 0.05, "median": 0.025, "rms": 0.05}


def random_layer(chart, seed, **options):
    torch.manual_seed(seed)
    return et.EquivariantTransformer(chart, in_channels=1, **options)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", THETA)
def test_poses_follow_the_transformation(name, seed):
    et.assert_equivariant(random_layer(name, seed), PICTURES, THETA[name], size=(64, 64), **bounds(name))


@pytest.mark.parametrize("size", [(32, 32), (48, 80), (160, 160)])
@pytest.mark.parametrize("name", ["rotation", "x_shear", "x_scale"])
def test_poses_follow_at_every_image_size(name, size):
    et.assert_equivariant(random_layer(name, 0), PICTURES, THETA[name], size=size, slope=0.06, median=0.03, rms=0.08)


@pytest.mark.parametrize("name", ["rotation", "hyperbolic_rotation", "x_shear", "y_scale", "log_polar"])
def test_poses_do_not_change_when_an_empty_border_is_cropped(name):
    """A square without its upper and lower rows, or without its outer columns, has the coordinates of the square."""
    layer = random_layer(name, 0)
    turned = et.Warp.projective(et.group("rotation").matrix(0.7)).image(PICTURES)
    expected = layer(turned).pose
    for cropped in (turned[:, :, 40:-40], turned[..., 40:-40]):  # circular orbits fade out close to the border
        torch.testing.assert_close(layer(cropped).pose, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["rotation", "x_shear", "x_scale", "x_translation"])
def test_a_constant_background_changes_nothing(name):
    layer = random_layer(name, 1)
    et.assert_equivariant(layer, 0.4 + 0.6 * PICTURES, THETA[name], size=(64, 64), **bounds(name))


@pytest.mark.parametrize("chart", ["cartesian", "log_polar", "log_log"])
def test_two_parameters_are_read_at_once(chart):
    layer = random_layer(chart, 0)
    for column, group in enumerate(layer.chart.groups):
        low, high = THETA[group.name]
        result = et.self_consistency(
            lambda images, column=column: layer(images).pose[:, column],
            PICTURES,
            (low / 2, high / 2),
            group=group,
            size=(64, 64),
        )
        assert abs(float(result.slope) - 1) < 0.15, result
        assert float(result.median) < 0.08, result


@pytest.mark.parametrize("name", ["rotation", "x_shear", "x_translation"])
def test_the_canonical_image_stays_the_same(name):
    layer = random_layer(name, 0)
    low, high = THETA[name]
    theta = torch.linspace(low / 3, high / 3, 3)
    result = et.invariance(layer, PICTURES, theta, group=name, size=(64, 64))
    untouched = et.invariance(lambda images: images.flatten(1), PICTURES, theta, group=name, size=(64, 64))
    assert float(result.overall) < 0.2 < float(untouched.overall)


@pytest.mark.parametrize("name", THETA)
def test_derived_charts_follow_like_those_of_the_table(name):
    et.assert_equivariant(random_layer(et.derive(name), 0), PICTURES, THETA[name], size=(64, 64), **bounds(name))


OWN = {  # generators, and how far they move the pictures
    "diagonal_shear": ([[0.5, -0.5, 0], [0.5, -0.5, 0], [0, 0, 0]], (-0.8, 0.8)),
    "spiral": ([[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]], (-1.5, 1.5)),
    "off_centre_dilation": ([[1, 0, 0.2], [0, 1, 0.1], [0, 0, 0]], (-LOG2, 0)),
    "off_centre_x_scale": ([[1, 0, 0.2], [0, 0, 0], [0, 0, 0]], (-LOG2, 0)),
}


@pytest.mark.parametrize("name", OWN)
def test_derived_charts_of_other_groups_follow(name):
    generator, theta = OWN[name]
    layer = random_layer(et.derive(et.Group.from_generator(generator, name=name)), 0)
    et.assert_equivariant(layer, PICTURES, theta, size=(64, 64), slope=0.1, median=0.05, rms=0.08)


@pytest.mark.parametrize("name", ["x_shear", "rotation", "dilation"])
def test_charts_that_follow_the_orbits_numerically_follow(name):
    layer = random_layer(et.derive(name, method="numeric"), 0)
    et.assert_equivariant(layer, PICTURES, THETA[name], size=(64, 64), **bounds(name))


def test_the_papers_predictor_does_not_keep_the_promise():
    """The reason for the consistent predictor: a softmax lets the empty background hold the pose back."""
    result = et.self_consistency(random_layer("x_shear", 0, predictor="softmax"), PICTURES, (-1.5, 1.5), size=(64, 64))
    assert float(result.slope) < 0.5
