"""Several poses: the peaks of a posterior, and a classifier that chooses between them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from textures import textures
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.nn.canonicalization import Step
from equivariant_transformers.nn.layers import make_layer
from equivariant_transformers.nn.poses import likely_poses

HALF_TURN = et.Warp.projective(et.group("rotation").matrix(torch.tensor(math.pi)))


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)
    )


def sure(names, **options):
    """A network with random weights whose evidence outweighs the prior."""
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(names, in_channels=3, channels=4, **options)
    for layer in canonicalizer.layers:
        nn.init.normal_(layer.predictor.head.weight, std=20)
    return et.Canonicalized(classifier(), canonicalizer).eval()


def step(name, evidence):
    layer = make_layer(name, 1, predictor="posterior", channels=2).eval()
    found = layer.predictor.read(evidence)
    return Step(layer, found.pose, found.confidence, found.heatmaps, et.Warp.identity(), evidence)


def bumps(chart: Chart, poses, heights, width=1 / 40):
    """Evidence `(1, W)` with a bump at each pose, given in fractions of the range."""
    low, high = chart.ranges[0]
    places = (chart.centre[0] - chart.axes()[0]) / (high - low)  # pose of each sample, in fractions
    total = torch.zeros_like(places)
    for pose, height in zip(poses, heights, strict=True):
        apart = places - pose
        apart = apart - apart.round() if chart.periodic[0] else apart
        total = total + height * torch.exp(-((apart / width) ** 2) / 2)
    return total[None]


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["rotation", "x_shear", "dilation"]),
    first=st.floats(-0.35, -0.2),
    second=st.floats(0.1, 0.35),
    lead=st.floats(5, 20),  # a pose between two samples lowers a bump by up to 5 %
)
def test_the_peaks_are_found_in_the_order_of_their_heights(name, first, second, lead):
    layer = make_layer(name, 1, predictor="posterior", channels=2)
    low, high = layer.chart.ranges[0]
    found = step(name, bumps(layer.chart, (first, second), (60, 60 + lead)))
    log_p, poses = likely_poses(found, 2)
    assert log_p[0, 0] > log_p[0, 1]
    expected = torch.tensor([second, first]) * (high - low)
    torch.testing.assert_close(poses[0, :, 0], expected, rtol=0, atol=0.01 * (high - low))


def test_a_single_peak_is_the_pose_of_the_layer():
    found = step("rotation", bumps(et.chart("rotation"), (0.3,), (60,)))
    log_p, poses = likely_poses(found, 4)
    torch.testing.assert_close(poses[:, 0], found.pose, rtol=0, atol=1e-4)
    assert log_p[0, 0] > -5
    assert (log_p[0, 2:] < log_p[0, 0] - 40).all()  # at most the prior is left


@pytest.mark.parametrize("name", ["log_polar", "cartesian"])
def test_two_poses_of_a_layer_lie_apart(name):
    torch.manual_seed(0)
    layer = make_layer(name, 3, predictor="posterior", channels=4).eval()
    nn.init.normal_(layer.predictor.head.weight, std=20)
    (found,) = layer(textures(3, (32, 32))).steps
    log_p, poses = likely_poses(found, 3)
    assert poses.shape == (3, 3, 2)
    assert (log_p.diff(dim=1) <= 0).all()
    kept = log_p[0].isfinite()
    assert kept.sum() > 1
    for one in range(int(kept.sum())):
        for other in range(one):
            apart = (poses[0, one] - poses[0, other]).abs() / layer.widths
            assert (torch.minimum(apart, 1 - apart) if name == "log_polar" else apart).max() > 0.05


@pytest.mark.parametrize("names", [["rotation"], ["rotation", "x_shear"], ["x_shear", "rotation"]])
def test_one_pose_gives_the_classes_of_the_network(names):
    network = sure(names)
    images = textures(6, (32, 32))
    with torch.no_grad():
        expected, found = network(images).softmax(1), et.SeveralPoses(network, count=1)(images).softmax(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)


def test_the_classifier_chooses_between_two_poses_that_the_layer_cannot_tell_apart():
    network = sure(["rotation"])
    predictor = network.canonicalizer.layers[0].predictor
    predictor.prior.zero_()
    predictor.head.register_forward_hook(lambda *call: call[-1] + call[-1].roll(call[-1].shape[-1] // 2, -1))
    images = textures(12, (32, 32))
    with torch.no_grad():
        out = network.canonicalizer(images)
        peak = likely_poses(out.steps[0], 1)[1][:, 0, 0]
        upright = et.Warp.projective(et.group("rotation").matrix(-peak))
        templates = upright.image(images, fill=out.fill).flatten(1)
        network.backbone = nn.Sequential(nn.Flatten(), nn.Linear(templates.shape[1], 12))
        centred = templates - templates.mean(1, keepdim=True)
        network.backbone[1].weight.copy_(200 * centred / centred.square().sum(1, keepdim=True))
        network.backbone[1].bias.zero_()
        turned = HALF_TURN.image(images)
        several = et.SeveralPoses(network, count=2)
        labels = torch.arange(12)
        assert (several(images).argmax(1) == labels).all()
        assert (several(turned).argmax(1) == labels).all()
        assert (network(turned).argmax(1) != labels).any()
        upright, back = several.canonicalize(images), several.canonicalize(turned)
        apart = (back.pose - upright.pose)[:, 0].abs()
        torch.testing.assert_close(apart, torch.full_like(apart, math.pi), rtol=0, atol=0.05)


def test_training_uses_the_network_as_it_is():
    network = sure(["rotation"], fill=0.0)
    model = et.SeveralPoses(network.train())
    images = textures(3, (32, 32))
    with torch.no_grad():
        torch.manual_seed(1)
        expected = network(images)
        torch.manual_seed(1)
        assert torch.equal(model(images), expected)


def test_padding_has_no_effect():
    network = sure(["rotation"])
    images = textures(2, (32, 32))
    mask = torch.zeros(2, 1, 32, 32, dtype=torch.bool)
    mask[..., 4:28] = True
    model = et.SeveralPoses(network, count=2)
    with torch.no_grad():
        first, second = (model(torch.where(mask, images, value), mask=mask) for value in (0.0, 1.0))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: et.SeveralPoses(classifier()), TypeError, "must be a Canonicalized network, got a Sequential"),
        (
            lambda: et.SeveralPoses(et.Canonicalized(classifier(), et.Canonicalizer([], in_channels=3))),
            ValueError,
            "need a layer with the predictor posterior",
        ),
        (lambda: et.SeveralPoses(sure(["rotation"]), count=0), ValueError, "poses must be at least 1, got 0"),
        (lambda: et.SeveralPoses(sure(["rotation"]), count=10**6), ValueError, "poses must be at most 256"),
    ],
)
def test_networks_without_several_poses_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_outputs_that_are_no_logits_are_refused():
    network = et.Canonicalized(nn.Identity(), et.Canonicalizer(["rotation"], in_channels=3)).eval()
    with pytest.raises(TypeError, match=r"logits \(B, classes\), got shape \(2, 3, 16, 16\)"):
        et.SeveralPoses(network)(torch.rand(2, 3, 16, 16))
