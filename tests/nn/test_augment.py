import math

import pytest
import torch
from glyphs import glyphs

import equivariant_transformers as et
from equivariant_transformers import models
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.augment import RandomViews, motion, parse_reach
from equivariant_transformers.nn.layers import InChart, Viewed

LENS = et.RADIAL_LENS


def test_each_image_is_moved_as_far_as_the_reach_and_no_farther():
    torch.manual_seed(0)
    matrices = RandomViews({"rotation": 1.2}).draw(torch.zeros(2000, 1, 4, 4)).matrix
    theta = torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0])
    assert theta.abs().max() <= 1.2
    assert theta.std().item() == pytest.approx(1.2 / math.sqrt(3), rel=0.05)  # uniform
    torch.testing.assert_close(theta.mean(), torch.tensor(0.0), atol=0.05, rtol=0)


def test_views_are_for_training_alone():
    images = glyphs(32)
    views = RandomViews({"rotation": 3.0, "x_shear": 0.3})
    assert not torch.allclose(views.draw(images).matrix, torch.eye(3), atol=0.01)
    assert views.eval().draw(images).image(images).equal(images)
    assert not list(views.state_dict())


@pytest.mark.parametrize("group", ["x_shear", LENS], ids=["matrix", "flow"])
def test_a_view_is_the_image_under_the_group(group):
    """By the group's own action: what a point shows is what lies where the transformation takes it."""
    torch.manual_seed(0)
    points = torch.rand(5, 7, 2) - 0.5
    theta = torch.tensor([-0.2, -0.1, 0.0, 0.1, 0.2])
    found = group if isinstance(group, et.Group) else et.group(group)
    torch.testing.assert_close(motion(found, theta).points(points), found.transform(theta[:, None], points))


def test_a_stack_sees_views_without_sampling_them_first():
    """The layers look through the random warp: the same poses and image as for images that were moved before."""
    torch.manual_seed(0)
    images = glyphs(64)
    canonicalizer = et.Canonicalizer(["x_shear"], channels=4, views={"x_shear": 0.4})
    still = et.Canonicalizer(list(canonicalizer.layers))
    torch.manual_seed(1)
    seen = canonicalizer(images)
    torch.manual_seed(1)
    warp = canonicalizer.views.draw(images)
    moved = still(warp.image(images))
    torch.testing.assert_close(seen.pose, moved.pose, atol=0.03, rtol=0)
    together = warp.compose(moved.warp)
    torch.testing.assert_close(seen.warp.matrix, together.matrix, atol=0.03, rtol=0)
    canonicalizer.eval()
    still.eval()
    torch.testing.assert_close(canonicalizer(images).pose, still(images).pose)


@pytest.mark.parametrize("chart", [None, "log_polar"])
def test_a_network_without_layers_sees_views_by_one_sampling(chart, monkeypatch):
    """What it sees of a view is what the network alone sees of the moved image, which is sampled once more there."""
    seen = []
    model = Viewed(torch.nn.Identity(), {"rotation": 1.0, "x_shear": 0.3}, chart, background=0.0)
    alone = torch.nn.Identity() if chart is None else InChart(chart, background=0.0)
    images = glyphs(64)
    torch.manual_seed(1)
    moved = model.views.draw(images).image(images, background=0.0)
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
def test_every_network_can_be_shown_views(options):
    torch.manual_seed(0)
    model = models.build(views={"rotation": 1.0}, dropout=0.0, **options)
    images = glyphs(64)
    before = torch.get_rng_state()
    first = model(images)
    assert not torch.allclose(model(images), first)
    torch.set_rng_state(before)
    torch.testing.assert_close(model(images), first)
    model.eval()
    torch.testing.assert_close(model(images), model(images))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: RandomViews({"rotation": -1.0}), ValueError, "positive number"),
        (lambda: RandomViews({"rotation": math.inf}), ValueError, "positive number"),
        (lambda: RandomViews({"rotatoin": 1.0}), ValueError, "Did you mean 'rotation'"),
        (lambda: parse_reach(("rotation",)), ValueError, "rotation=3.14"),
        (lambda: parse_reach(("rotation=far",)), ValueError, "rotation=3.14"),
        (lambda: parse_reach(("rotatoin=1",)), ValueError, "Did you mean 'rotation'"),
    ],
)
def test_mistakes_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def stack(layers=("x_shear",), **options):
    torch.manual_seed(0)
    return models.build(
        "z2cnn", layers=layers, chart="log_polar", views={"rotation": 3.0, "x_shear": 0.4}, **options
    ).eval()


@pytest.mark.parametrize("group", ["x_shear", LENS], ids=["matrix", "flow"])
def test_spread_views_begin_with_none_and_go_half_as_far(group):
    views = RandomViews({group: 0.4, "rotation": 2.0})
    points = torch.tensor([[0.3, -0.2]])
    still, *moved = views.spread(torch.zeros(1, 1, 8, 8), 16).points(points.expand(16, 1, 2))
    torch.testing.assert_close(still, points)
    assert len({tuple(place[0].tolist()) for place in moved}) == 15
    shears = RandomViews({"x_shear": 0.4}).spread(torch.zeros(3, 1, 8, 8), 1000).matrix[:, 0, 1].reshape(1000, 3)
    assert (shears == shears[:, :1]).all()  # the same for all images
    thetas = shears[:, 0].sort().values
    torch.testing.assert_close(thetas, torch.linspace(-0.2, 0.2, 1000), atol=0.002, rtol=0)  # evenly


@pytest.mark.parametrize("layers", [("x_shear",), ()], ids=["layers", "plain"])
@pytest.mark.parametrize("looks", [2, 5])
def test_several_looks_are_the_mean_of_the_answers_to_each(looks, layers):
    model = stack(layers, looks=looks)
    images = glyphs(64)
    views = model.random_views().spread(images[:1], looks).matrix
    answers = [model.answer(images, Warp.projective(view)).softmax(1) for view in views]
    assert not torch.allclose(answers[1], answers[0])
    torch.testing.assert_close(model(images).exp(), torch.stack(answers).mean(0))
    torch.testing.assert_close(model(images[:1]), model(images)[:1])
    alone = stack(layers)
    alone.load_state_dict(model.state_dict())
    torch.testing.assert_close(answers[0], alone(images).softmax(1))


def test_a_network_that_was_shown_views_is_the_same_network():
    options = {"chart": "log_polar", "background": -0.4}
    model, plain = models.build(views={"rotation": 1.0}, **options).eval(), models.build(**options).eval()
    plain[1].load_state_dict(model.backbone.state_dict())
    images = glyphs(64) + 0.1
    torch.testing.assert_close(model(images), plain(images))


@pytest.mark.parametrize("layers", [("x_shear",), ()], ids=["layers", "plain"])
def test_one_image_alone_is_refused(layers):
    for looks in (1, 2):
        with pytest.raises(ValueError, match="shape"):
            stack(layers, looks=looks)(torch.zeros(1, 64, 64))


def test_training_looks_once():
    model, images = stack(looks=3).train(), glyphs(64)
    seen = []
    model.canonicalizer.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    model(images)
    assert seen == [len(images)]


def test_looks_need_views():
    with pytest.raises(ValueError, match="had none"):
        models.build("z2cnn", layers=["x_shear"], looks=2)
    with pytest.raises(ValueError, match="had none"):
        et.Canonicalized(torch.nn.Identity(), et.EquivariantTransformer("x_shear"), looks=2)
    with pytest.raises(ValueError, match="had none"):
        models.build("z2cnn", looks=2)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        models.build("z2cnn", layers=["x_shear"], looks=0)
