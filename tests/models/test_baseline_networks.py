"""Baselines: discrete canonicalization, search over poses and steerable features, each with what it promises."""

import math
import sys

import pytest
import torch
from glyphs import glyphs
from torch import nn

from equivariant_transformers import Canonicalized, Canonicalizer, Warp, group
from equivariant_transformers.models import (
    DiscretelyCanonicalized,
    DiscretePredictor,
    PoseSearch,
    Span,
    SteerableCNN,
    prior_loss,
)


@pytest.fixture
def images():
    return glyphs(33)


def backbone(in_channels=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(in_channels, 10, 5), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(90, 10))


def turned(images, theta):
    return Warp.projective(group("rotation").matrix(torch.tensor(theta))).image(images)


# Discrete canonicalization


@pytest.mark.parametrize(("count", "turns"), [(4, 1), (4, 2), (4, 3), (8, 2), (8, 6)])
def test_the_pose_follows_rotations_of_the_cyclic_group_for_any_weights(images, count, turns):
    torch.manual_seed(count)
    model = DiscretelyCanonicalized(backbone(), size=(33, 33), count=count).eval()
    theta = 2 * math.pi * turns / count  # by a right angle or two: the pixels stay pixels
    canonicalizer = model.network.canonicalizer
    before, after = canonicalizer(images), canonicalizer(turned(images, theta))
    difference = (after.pose - before.pose - theta).remainder(2 * math.pi)
    assert torch.minimum(difference, 2 * math.pi - difference).max() < 1e-4
    torch.testing.assert_close(after.image, before.image, rtol=0, atol=2e-3)
    torch.testing.assert_close(model(turned(images, theta)), model(images), rtol=0, atol=1e-3)


def test_poses_are_few_and_the_heatmap_starts_at_rotation_0(images):
    torch.manual_seed(1)
    predictor = DiscretePredictor(count=8).eval()
    found = predictor(images[:, :, None])
    steps = found.pose[:, 0] / (math.pi / 4)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-5)
    assert steps.abs().max() <= 4
    assert torch.equal(found.heatmaps[0].argmax(1), steps.round().long() % 8)
    torch.testing.assert_close(found.heatmaps[0].sum(1), torch.ones(len(images)))


def test_the_prior_teaches_that_training_images_are_upright(images):
    torch.manual_seed(0)
    model = DiscretelyCanonicalized(backbone(), size=(33, 33))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    labels = torch.arange(len(images)) % 10
    for _ in range(30):
        optimizer.zero_grad()
        loss = prior_loss(model(images), labels, classes=10)
        loss.backward()
        optimizer.step()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    for quarters in range(4):
        pose = model.network.canonicalizer(turned(images, quarters * math.pi / 2)).pose[:, 0]
        assert (torch.cos(pose - quarters * math.pi / 2) > 0.99).float().mean() > 0.8


def test_the_weight_of_the_prior():
    output = torch.tensor([[2.0, 0.0, -0.5, -1.0], [0.0, 1.0, -0.25, -2.0]])
    labels = torch.tensor([0, 1])
    plain = nn.functional.cross_entropy(output[:, :2], labels)
    torch.testing.assert_close(prior_loss(output, labels, classes=2, weight=0.0), plain)
    torch.testing.assert_close(prior_loss(output, labels, classes=2, weight=2.0), plain + 2 * 0.375)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        DiscretePredictor(count=0)


# Search


class Template(nn.Module):
    """A classifier that is sure of class 1 where the image is like a template."""

    def __init__(self, template):
        super().__init__()
        self.template = template

    def forward(self, images):
        distance = (images - self.template).square().mean((1, 2, 3))
        return torch.stack((torch.zeros_like(distance), 2 - 60 * distance), 1)


def test_the_search_refines_the_best_pose_of_the_grid(images):
    one = images[:1]
    network = Canonicalized(Template(one), Canonicalizer([]))
    spans = {"rotation": Span(1.0, 5), "x_shear": Span(0.4, 3)}
    theta = torch.tensor([[0.62, -0.27], [-0.35, 0.33]])
    moved = [group(name).matrix(theta[:, axis]) for axis, name in reversed([*enumerate(spans)])]
    seen = Warp.projective(moved[0] @ moved[1]).image(one.expand(2, -1, -1, -1))
    coarse, fine = (PoseSearch(network, spans, rounds=rounds).eval() for rounds in (0, 5))
    assert (coarse.evaluations, fine.evaluations) == (15, 35)
    plain, rough, exact = (found.softmax(1)[:, 1] for found in (network(seen), coarse(seen), fine(seen)))
    assert (rough >= plain - 1e-6).all()
    assert (exact > rough).all()
    assert (exact > 0.8).all()


def test_the_search_treats_images_one_by_one_and_starts_at_the_grid(images):
    network = Canonicalized(backbone(), Canonicalizer([])).eval()
    search = PoseSearch(network, {"rotation": Span(0.6, 3), "dilation": Span(0.2, 1)}, rounds=2).eval()
    torch.testing.assert_close(search(images)[1:2], search(images[1:2]), rtol=1e-4, atol=1e-5)
    assert (search(images).amax(1) >= network(images).log_softmax(1).amax(1) - 1e-5).all()
    still = PoseSearch(network, {"rotation": Span(0.6, 1)}, rounds=0).eval()
    torch.testing.assert_close(still(images), network(images).log_softmax(1))
    assert torch.equal(search.train()(images), network(images))
    with pytest.raises(ValueError, match="at least one group"):
        PoseSearch(network, {})


# Steerable features


def test_steerable_features_are_invariant_to_right_angles(images):
    pytest.importorskip("escnn.nn", reason="needs escnn, which needs numpy 1", exc_type=ImportError)
    torch.manual_seed(0)
    model = SteerableCNN(1, 10, fields=2).eval()
    for theta in (math.pi / 2, math.pi):
        torch.testing.assert_close(model(turned(images, theta)), model(images), rtol=0, atol=1e-3)


def test_without_escnn_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "escnn.gspaces", None)
    with pytest.raises(ModuleNotFoundError, match="pip install escnn 'numpy<2'"):
        SteerableCNN()
