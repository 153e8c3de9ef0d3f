"""The steps of a canonicalization are what its layers did, one after the other."""

import pytest
import torch
from glyphs import glyphs

import equivariant_transformers as et
from equivariant_transformers.nn import Augmentation

IMAGES = glyphs(48)[:2]


def test_each_step_is_a_shorter_stack():
    stack = et.Canonicalizer(["x_shear", "log_polar", "y_scale"], predictor="consistent")
    out = stack(IMAGES)
    assert [len(step.heatmaps) for step in out.steps] == [1, 2, 1]
    for depth, step in enumerate(out.steps, 1):
        shorter = et.Canonicalizer(list(stack.layers[:depth]), predictor="consistent")(IMAGES)
        torch.testing.assert_close(out.after(depth).image, shorter.image)
        torch.testing.assert_close(out.after(depth).pose, shorter.pose)
        torch.testing.assert_close(step.pose, shorter.pose[:, -step.pose.shape[1] :])
        torch.testing.assert_close(step.heatmaps[-1], shorter.heatmaps[-1])


@pytest.mark.parametrize("max_theta", [{}, {"rotation": 3.0, "dilation": 0.2}])
def test_a_layer_predicts_its_pose_from_what_it_saw(max_theta):
    stack = et.Canonicalizer(
        ["x_shear", et.SpatialTransformer("rotation"), "x_perspective"], iterations=2, predictor="consistent"
    )
    out = stack(IMAGES, Augmentation(max_theta).random(IMAGES))
    assert [len(step.heatmaps) for step in out.steps] == [1, 0, 1] * 2
    for number, step in enumerate(out.steps):
        seen = out.after(number).on(step.layer.grid)
        torch.testing.assert_close(step.layer.predictor(seen).pose, step.pose)


@pytest.mark.parametrize("kind", [et.EquivariantTransformer, et.SpatialTransformer])
def test_one_layer_is_one_step(kind):
    layer = kind("dilation")
    out = layer(IMAGES)
    (step,) = out.steps
    assert step.layer is layer
    assert torch.equal(step.pose, out.pose)


def test_an_empty_stack_is_the_identity():
    out = et.Canonicalizer([], in_channels=1)(IMAGES)
    assert out.image is IMAGES
    assert (out.names, out.heatmaps, out.steps) == ((), (), ())
    assert out.pose.shape == out.confidence.shape == (len(IMAGES), 0)
    assert out.valid.all()
    points = torch.rand(len(IMAGES), 5, 2)
    torch.testing.assert_close(out.warp.points(points), points)


def test_a_network_behind_an_empty_stack_is_the_network():
    backbone = torch.nn.Conv2d(1, 3, 3)
    model = et.Canonicalized(backbone, et.Canonicalizer([]))
    assert torch.equal(model(IMAGES), backbone(IMAGES))


def test_a_bare_layer_is_wrapped():
    layer = et.EquivariantTransformer("rotation")
    bare, stack = (
        et.Canonicalized(torch.nn.Identity(), entry)
        for entry in (layer, et.Canonicalizer([layer], predictor="consistent"))
    )
    assert bare.state_dict().keys() == stack.state_dict().keys()
    assert torch.equal(bare(IMAGES), stack(IMAGES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 8, 20])
def test_printing_shows_names_poses_and_confidence(count, dtype):
    images = torch.rand(count, 1, 32, 48, dtype=dtype)
    out = et.Canonicalizer(["x_shear", "log_polar"]).to(dtype)(images)
    first, head, *rows = str(out).splitlines()
    assert first == f"Canonicalization of {count} images, 1 x 32 x 48"
    assert head.split() == ["image", "x_shear", "rotation", "dilation"]
    shown = min(count, 8)
    for number, row in enumerate(rows[:shown]):
        values = row.replace("(", "").replace(")", "").split()
        assert values[0] == str(number)
        torch.testing.assert_close(
            torch.tensor(list(map(float, values[1::2])), dtype=dtype), out.pose[number].detach(), atol=6e-4, rtol=0
        )
        torch.testing.assert_close(
            torch.tensor(list(map(float, values[2::2])), dtype=dtype),
            out.confidence[number].detach(),
            atol=6e-3,
            rtol=0,
        )
    assert rows[shown:] == ([f"and {count - 8} more images"] if count > 8 else []) + ["pose (confidence)"]


def test_printing_without_layers_is_one_line():
    assert str(et.Canonicalizer([])(IMAGES)) == "Canonicalization of 2 images, 1 x 48 x 48"
