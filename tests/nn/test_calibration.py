"""A calibrated canonicalizer leaves upright images where they are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from textures import textures
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.nn.alignment import TOLERANCE, frame_distance
from equivariant_transformers.nn.calibration import MOVED, _shifted


def sure_of_itself(name="rotation", *, seed=0, strength=100.0):
    """A canonicalizer whose random evidence varies by about `strength` along the pose axis, and moves most images."""
    torch.manual_seed(seed)
    canonicalizer = et.Canonicalizer([name], in_channels=3, channels=4).eval()
    head = canonicalizer.layers[0].predictor.head
    nn.init.normal_(head.weight)
    with torch.no_grad():
        evidence = canonicalizer(textures(8, (32, 32))).steps[0].evidence
        head.weight *= strength / evidence.flatten(1).std(1).mean()
    return canonicalizer


@torch.no_grad()
def share_moved(canonicalizer, images):
    return (frame_distance(canonicalizer.eval()(images).warp, images) > TOLERANCE).float().mean()


class Profile(nn.Module):
    """Trunk whose only feature is a given evidence `(B, W)` along the pose axis, which follows the content."""

    def __init__(self, evidence):
        super().__init__()
        self.evidence = evidence

    def forward(self, _):
        return self.evidence[:, None, None]


def with_evidence(evidence):
    """A rotation layer that reads `evidence` `(B, 64)` from the images. Pose 0 is at place 32."""
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3).eval()
    predictor = canonicalizer.layers[0].predictor
    predictor.trunk, predictor.head = Profile(evidence), nn.Conv2d(1, 1, 1, bias=False)
    nn.init.ones_(predictor.head.weight)
    return canonicalizer


def bump(height):
    """Evidence of `height` for the upright pose."""
    return (height * torch.exp(-(torch.arange(64) - 32.0).square() / 8)).expand(20, -1)


@pytest.mark.parametrize("name", ["rotation", "x_shear", "log_polar"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), strength=st.floats(1, 1000))
def test_few_of_the_images_are_moved(name, seed, strength):
    images = textures(40, (32, 32))
    canonicalizer = sure_of_itself(name, seed=seed, strength=strength)
    (factor,) = et.calibrate(canonicalizer, images)
    assert 1 / 16 <= factor <= 4
    if factor > 1 / 16:
        assert share_moved(canonicalizer, images) <= MOVED


def test_timid_evidence_is_strengthened_until_poses_are_undone():
    (factor,) = et.calibrate(with_evidence(bump(3.0)), textures(20, (32, 32)))
    assert factor > 1
    assert et.calibrate(with_evidence(bump(30.0)), textures(20, (32, 32))) == (1.0,)


def test_evidence_that_tells_nothing_moves_nothing():
    """Each image seems to have another pose. Some factors undo a few poses by chance, and move upright images."""
    noise = 6 * torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    canonicalizer, images = with_evidence(noise), textures(20, (32, 32))
    assert share_moved(canonicalizer, images) > 0.5
    (factor,) = et.calibrate(canonicalizer, images)
    assert factor < 1
    assert share_moved(canonicalizer, images) == 0


def test_shifted_evidence_is_that_of_images_with_another_pose():
    """The poses that count as right are read from evidence for the upright pose, on periodic and open axes."""
    for name in ("rotation", "log_polar", "x_shear"):
        predictor = et.Canonicalizer([name], in_channels=3).layers[0].predictor.eval()
        evidence = -100 * (predictor.chart.axes()[0] - predictor.chart.centre[0]).abs()
        if predictor.poses == 2:
            down = predictor.chart.axes()[1] - predictor.chart.centre[1]
            evidence = evidence - 100 * down.abs()[:, None]
        for fraction in (-0.75, -0.25, 0.0, 0.25, 0.75):
            shifted, right = _shifted(predictor.chart, evidence[None], fraction)
            spacing = torch.tensor([axis[1] - axis[0] for axis in predictor.chart.axes()[: predictor.poses]])
            assert ((predictor.read(shifted).pose - right).abs() < spacing).all()


def test_a_layer_that_is_too_sure_is_scaled_once():
    images = textures(40, (32, 32))
    canonicalizer = sure_of_itself(strength=10.0)
    assert share_moved(canonicalizer, images) > 0.5
    (factor,) = et.calibrate(canonicalizer, images)
    assert factor < 1
    assert et.calibrate(canonicalizer, images) == (1.0,)


def test_a_layer_that_leaves_images_in_place_is_not_changed():
    canonicalizer = sure_of_itself(strength=0.1)
    before = canonicalizer.layers[0].predictor.head.weight.clone()
    assert et.calibrate(canonicalizer, textures(10, (32, 32))) == (1.0,)
    assert torch.equal(before, canonicalizer.layers[0].predictor.head.weight)


def test_batches_count_as_one_set_and_modes_stay():
    images = textures(40, (32, 32))
    whole, parts = sure_of_itself(strength=30.0), sure_of_itself(strength=30.0).train()
    assert et.calibrate(whole, images) == et.calibrate(parts, images.split(7))
    assert all(part.training for part in parts.modules())


def test_other_layers_are_left_alone():
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3, predictor="consistent")
    before = {name: tensor.clone() for name, tensor in canonicalizer.state_dict().items()}
    assert et.calibrate(canonicalizer, textures(4, (32, 32))) == ()
    assert all(torch.equal(tensor, before[name]) for name, tensor in canonicalizer.state_dict().items())


@pytest.mark.parametrize(
    ("canonicalizer", "images", "message"),
    [
        (nn.Identity(), torch.rand(1, 3, 32, 32), "takes a Canonicalizer"),
        (et.Canonicalizer(["rotation"], 3), [], "at least one image"),
        (et.Canonicalizer(["rotation"], 3), torch.rand(1, 1, 32, 32), "3 channels"),
    ],
)
def test_unusable_arguments_are_refused(canonicalizer, images, message):
    with pytest.raises((TypeError, ValueError), match=message):
        et.calibrate(canonicalizer, images)
