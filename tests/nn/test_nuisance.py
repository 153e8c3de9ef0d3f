"""Random warps that a predictor learns to ignore: small, and without effect on the pose of the layer."""

import pytest
import torch

import equivariant_transformers as et
from equivariant_transformers.geometry.motion import group_warp
from equivariant_transformers.nn.layers import make_layer
from equivariant_transformers.nn.nuisance import AMOUNT, Nuisance

LENS = et.Group.from_flow(vector_field=lambda points: points * points.square().sum(-1, keepdim=True), name="lens")
IMAGES = torch.zeros(200, 1, 8, 8)
LINE = torch.linspace(-0.7, 0.7, 8)
POINTS = torch.stack(torch.meshgrid(LINE, LINE, indexing="xy"), -1).reshape(1, -1, 2)


def distance(warp):
    moved = warp.points(POINTS.expand(len(IMAGES), -1, -1)) - POINTS
    return moved.square().sum(-1).mean(-1).sqrt()


@pytest.mark.parametrize("name", list(et.CHARTS))
def test_no_transformation_of_the_groups_undoes_a_part_of_the_warp(name):
    torch.manual_seed(0)
    groups = et.chart(name).groups
    warp = Nuisance(groups).random(IMAGES)
    still = distance(warp)
    for group in groups:
        for theta in (0.1, -0.1):
            assert (distance(warp.compose(group_warp(group, torch.tensor(theta)))) > 0.97 * still).float().mean() > 0.95


@pytest.mark.parametrize("group", [et.group("rotation"), et.group("x_perspective"), LENS], ids=lambda group: group.name)
def test_warps_are_small_and_differ(group):
    torch.manual_seed(0)
    nuisance = Nuisance((group,))
    moved = distance(nuisance.random(IMAGES))
    assert moved.max() < 1.3 * AMOUNT * len(nuisance.generators) ** 0.5
    assert moved.mean() > 0.5 * AMOUNT
    assert moved.std() > 0.01


def test_generators_that_resemble_a_flow_are_left_out():
    assert len(Nuisance((LENS,)).generators) == 5  # all but the dilation


def test_a_layer_sees_the_warps_in_training_only():
    torch.manual_seed(0)
    layer = make_layer("x_shear", 1, predictor="posterior", channels=4)
    torch.nn.init.normal_(layer.predictor.head.weight)
    images = torch.rand(4, 1, 32, 32)
    layer.eval()
    assert torch.equal(layer(images).steps[0].evidence, layer(images).steps[0].evidence)
    layer.training = True  # the predictor inside keeps its running statistics
    assert not torch.equal(layer(images).steps[0].evidence, layer(images).steps[0].evidence)


def test_layers_can_be_made_without_storage():
    with torch.device("meta"):
        assert Nuisance((et.group("rotation"),)).generators.is_meta
