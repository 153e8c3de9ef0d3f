"""The stages of a stack are what its layers did, one after the other."""

import pytest
import torch
from glyphs import glyphs

import equivariant_transformers as et
from equivariant_transformers.nn.stages import stages

IMAGES = glyphs(48)[:2]


def test_each_stage_is_a_shorter_stack():
    stack = et.Canonicalizer(["x_shear", "log_polar", "y_scale"])
    found = stages(stack, stack(IMAGES))
    assert [len(stage.heatmaps) for stage in found] == [1, 2, 1]
    for depth, stage in enumerate(found, 1):
        shorter = et.Canonicalizer(list(stack.layers[:depth]))(IMAGES)
        torch.testing.assert_close(stage.image, shorter.image)
        torch.testing.assert_close(stage.pose, shorter.pose[:, -stage.pose.shape[1] :])
        torch.testing.assert_close(stage.heatmaps[-1], shorter.heatmaps[-1])


@pytest.mark.parametrize("views", [{}, {"rotation": 3.0, "dilation": 0.2}])
def test_a_layer_predicts_its_pose_from_what_it_saw(views):
    stack = et.Canonicalizer(["x_shear", et.SpatialTransformer("rotation"), "x_perspective"], passes=2, views=views)
    out = stack(IMAGES)
    found = stages(stack, out)
    assert [len(stage.heatmaps) for stage in found] == [1, 0, 1] * 2
    assert torch.equal(found[-1].image, out.image)
    for stage in found:
        torch.testing.assert_close(stage.layer.predictor(stage.seen).pose, stage.pose)


@pytest.mark.parametrize("kind", [et.EquivariantTransformer, et.SpatialTransformer])
def test_one_layer_is_one_stage(kind):
    layer = kind("dilation")
    out = layer(IMAGES)
    (stage,) = stages(layer, out)
    assert torch.equal(stage.image, out.image)
    assert torch.equal(stage.pose, out.pose)
