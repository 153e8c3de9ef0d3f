import math

import pytest
import torch
from glyphs import glyphs

import equivariant_transformers as et
from equivariant_transformers import models
from equivariant_transformers.geometry.motion import group_warp
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn import TTA, Augmentation, Augmented, ChartSampler
from equivariant_transformers.nn.augment import parse_max_theta

LENS = et.RADIAL_LENS
MAX_THETA = {"rotation": 3.0, "x_shear": 0.4}


def test_each_image_is_moved_up_to_max_theta_and_no_farther():
    torch.manual_seed(0)
    matrices = Augmentation({"rotation": 1.2}).random(torch.zeros(2000, 1, 4, 4)).matrix
    theta = torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0])
    assert theta.abs().max() <= 1.2
    assert theta.std().item() == pytest.approx(1.2 / math.sqrt(3), rel=0.05)  # uniform
    torch.testing.assert_close(theta.mean(), torch.tensor(0.0), atol=0.05, rtol=0)


@pytest.mark.parametrize("group", ["x_shear", LENS], ids=["matrix", "flow"])
def test_the_warp_of_a_group_moves_points_as_the_group_does(group):
    torch.manual_seed(0)
    points = torch.rand(5, 7, 2) - 0.5
    theta = torch.tensor([-0.2, -0.1, 0.0, 0.1, 0.2])
    found = group if isinstance(group, et.Group) else et.group(group)
    torch.testing.assert_close(group_warp(found, theta).points(points), found.transform(theta[:, None], points))


def test_a_stack_sees_augmented_images_without_sampling_them_first():
    """The layers see the input through the random warp: the same poses as for images that were moved before."""
    torch.manual_seed(0)
    images = glyphs(64)
    stack = et.Canonicalizer(["x_shear"], channels=4, predictor="consistent")
    warp = Augmentation({"x_shear": 0.4}).random(images)
    seen, moved = stack(images, warp), stack(warp.image(images))
    torch.testing.assert_close(seen.pose, moved.pose, atol=0.03, rtol=0)
    torch.testing.assert_close(seen.warp.matrix, warp.compose(moved.warp).matrix, atol=0.03, rtol=0)


@pytest.mark.parametrize("chart", [None, "log_polar"])
def test_a_network_without_layers_is_augmented_by_one_sampling(chart, monkeypatch):
    seen = []
    network = et.Canonicalized(torch.nn.Identity(), et.Canonicalizer([], fill=0.0), chart)
    model = Augmented(network, {"rotation": 1.0, "x_shear": 0.3})
    alone = torch.nn.Identity() if chart is None else ChartSampler(chart, fill=0.0)
    images = glyphs(64)
    torch.manual_seed(1)
    moved = model.augmentation.random(images).image(images, fill=0.0)
    torch.manual_seed(1)
    monkeypatch.setattr(Warp, "sample", count(Warp.sample, seen))
    monkeypatch.setattr(Warp, "image", count(Warp.image, seen))
    found = model(images)
    assert len(seen) == 1
    if chart is None:
        assert found.equal(moved)
    else:
        assert (found - alone(moved)).abs().mean() < 0.02 < (found - alone(images)).abs().mean()
    assert model.eval()(images).equal(alone(images))


def count(method, calls):
    def counted(*arguments, **options):
        calls.append(method)
        return method(*arguments, **options)

    return counted


@pytest.mark.parametrize("options", [{}, {"chart": "log_polar"}, {"layers": ["x_shear"]}], ids=str)
def test_every_network_can_be_augmented(options):
    torch.manual_seed(0)
    network = models.build(dropout=0.0, **options)
    model = Augmented(network, {"rotation": 1.0})
    images = glyphs(64)
    before = torch.get_rng_state()
    first = model(images)
    assert not torch.allclose(model(images), first)
    torch.set_rng_state(before)
    torch.testing.assert_close(model(images), first)
    model.eval()
    assert torch.equal(model(images), network(images))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Augmentation({"rotation": -1.0}), ValueError, "positive finite number"),
        (lambda: Augmentation({"rotation": math.inf}), ValueError, "positive finite number"),
        (lambda: Augmentation({"rotation": math.nan}), ValueError, "must be a number, got nan"),
        (lambda: Augmentation({"rotation": None}), TypeError, "max_theta of 'rotation' must be a number, got None"),
        (lambda: Augmentation({"rotation": 30}), ValueError, "whole period of 6.283; angles are in radians"),
        (lambda: Augmentation(["rotation"]), TypeError, "max_theta must map groups to numbers"),
        (lambda: Augmentation({"rotatoin": 1.0}), ValueError, "Did you mean 'rotation'"),
        (lambda: parse_max_theta(("rotation",)), ValueError, "rotation=3.14"),
        (lambda: parse_max_theta(("rotation=far",)), ValueError, "rotation=3.14"),
        (lambda: parse_max_theta(("rotatoin=1",)), ValueError, "Did you mean 'rotation'"),
        (lambda: TTA(stack(), {}, 2), ValueError, "tta > 1 needs a network trained with augmentation"),
        (lambda: TTA(stack(), MAX_THETA, 0), ValueError, "tta must be at least 1, got 0"),
        (lambda: TTA(stack(), MAX_THETA, 1.5), TypeError, r"tta must be a whole number, got 1\.5"),
        (lambda: TTA(stack(), MAX_THETA, 10**9), ValueError, "tta must be at most 256, got 1000000000"),
    ],
)
def test_mistakes_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def stack(layers=("x_shear",)):
    torch.manual_seed(0)
    return models.build("z2cnn", layers=layers, chart="log_polar").eval()


@pytest.mark.parametrize("group", ["x_shear", LENS], ids=["matrix", "flow"])
def test_spread_warps_begin_with_the_identity_and_go_half_as_far(group):
    augmentation = Augmentation({group: 0.4, "rotation": 2.0})
    points = torch.tensor([[0.3, -0.2]])
    still, *moved = augmentation.spread(torch.zeros(1, 1, 8, 8), 16).points(points.expand(16, 1, 2))
    torch.testing.assert_close(still, points)
    assert len({tuple(place[0].tolist()) for place in moved}) == 15
    shears = Augmentation({"x_shear": 0.4}).spread(torch.zeros(3, 1, 8, 8), 1000).matrix[:, 0, 1].reshape(1000, 3)
    assert (shears == shears[:, :1]).all()  # the same for all images
    thetas = shears[:, 0].sort().values
    torch.testing.assert_close(thetas, torch.linspace(-0.2, 0.2, 1000), atol=0.002, rtol=0)  # evenly


@pytest.mark.parametrize("layers", [("x_shear",), ()], ids=["layers", "plain"])
@pytest.mark.parametrize("count", [2, 5])
def test_tta_is_the_mean_of_the_probabilities(count, layers):
    network = stack(layers)
    model = TTA(network, MAX_THETA, count)
    images = glyphs(64)
    warps = model.augmentation.spread(images[:1], count).matrix
    shares = [network(images, Warp.projective(warp)).softmax(1) for warp in warps]
    assert not torch.allclose(shares[1], shares[0])
    torch.testing.assert_close(model(images).exp(), torch.stack(shares).mean(0))
    torch.testing.assert_close(model(images[:1]), model(images)[:1])
    torch.testing.assert_close(shares[0], network(images).softmax(1))


@pytest.mark.parametrize("output", [lambda x: x, lambda x: x.mean((1, 2, 3)), lambda x: {"logits": x}])
def test_tta_of_a_network_that_is_not_a_classifier_is_refused(output):
    class Backbone(torch.nn.Module):
        def forward(self, images):
            return output(images)

    model = TTA(et.Canonicalized(Backbone(), et.Canonicalizer(["x_shear"], predictor="consistent")), MAX_THETA, 2)
    with pytest.raises(TypeError, match=r"needs a classifier that returns logits \(B, classes\), got"):
        model(glyphs(32))


def test_weight_names_do_not_depend_on_augmentation():
    plain, layered = stack(()), stack()
    assert all(name.startswith("backbone.") for name in plain.state_dict())
    assert {n for n in layered.state_dict() if n.startswith("backbone.")} == set(plain.state_dict())
    assert Augmented(plain, MAX_THETA).network.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("layers", [("x_shear",), ()], ids=["layers", "plain"])
def test_one_image_alone_is_refused(layers):
    for model in (stack(layers), TTA(stack(layers), MAX_THETA, 2)):
        with pytest.raises(ValueError, match="shape"):
            model(torch.zeros(1, 64, 64))
