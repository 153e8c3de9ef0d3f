"""The alignment loss is lowest for the poses that bring an upright image back."""

import dataclasses
import math

import pytest
import torch
from textures import textures
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.geometry.motion import group_warp
from equivariant_transformers.nn import Augmentation

CHARTS = pytest.mark.parametrize("name", list(et.CHARTS))


def with_evidence(out, evidence):
    first = dataclasses.replace(out.steps[0], evidence=evidence)
    return dataclasses.replace(out, steps=(first, *out.steps[1:]))


@CHARTS
def test_the_best_position_is_the_one_that_undoes_the_warp(name):
    canonicalizer = et.Canonicalizer([name], in_channels=1, channels=4).eval()
    chart = canonicalizer.layers[0].chart
    axes = chart.axes()[: len(chart.groups)]
    # A shift of a few samples along each pose axis, as a warp.
    start, expected = et.Warp.identity(), []
    for axis, (acting, positions) in enumerate(zip(chart.groups, axes, strict=True)):
        spacing = (positions[1] - positions[0]).item()
        middle = (positions - chart.centre[axis]).abs().argmin().item()
        theta = chart.centre[axis] - positions[middle].item() + 2 * spacing
        start = start @ group_warp(acting, torch.tensor([theta]))
        expected.append(middle - 2)
    out = canonicalizer(torch.rand(1, 1, 32, 32), start)
    shape = out.steps[0].evidence.shape
    losses = torch.stack(
        [et.alignment_loss(with_evidence(out, 20 * one.reshape(shape))) for one in torch.eye(shape[1:].numel())]
    )
    best = torch.unravel_index(losses.argmin(), shape[1:])
    assert tuple(int(index) for index in reversed(best)) == tuple(expected)


@pytest.mark.parametrize("shear", [-0.6, 0.0, 0.6])
@pytest.mark.parametrize("later", [["x_shear"], ["x_shear", "x_perspective"], ["x_shear", "x_shear", "dilation"]])
def test_the_first_layer_leaves_to_later_layers_what_they_undo(shear, later):
    """The rotation nearest to a rotation and this shear would be 17 degrees off, and no shear undoes the rest."""
    canonicalizer = et.Canonicalizer(["rotation", *later], in_channels=1, channels=4).eval()
    angles = -canonicalizer.layers[0].chart.axes()[0]
    turn = angles[20]
    start = group_warp(et.group("x_shear"), torch.tensor([shear])) @ group_warp(et.group("rotation"), turn[None])
    out = canonicalizer(torch.rand(1, 1, 32, 32), start)
    first = dataclasses.replace(out, steps=out.steps[:1])
    alone, stacked = (
        torch.stack([et.alignment_loss(with_evidence(whole, 20 * one[None])) for one in torch.eye(len(angles))])
        for whole in (first, out)
    )
    spacing = 2 * math.pi / len(angles)
    assert (angles[stacked.argmin()] - turn).abs() < 0.1 * spacing
    assert (angles[alone.argmin()] - turn).abs() == pytest.approx(math.atan(abs(shear) / 2), abs=0.6 * spacing)


@pytest.mark.parametrize("predictor", ["consistent", "softmax", "direct"])
def test_layers_without_evidence_are_compared_by_points(predictor):
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3, predictor=predictor)
    images = textures(size=(32, 32))
    out = canonicalizer(images, Augmentation({"rotation": 0.5}).random(images))
    loss = et.alignment_loss(out)
    loss.backward()
    gradients = [parameter.grad for parameter in canonicalizer.parameters() if parameter.grad is not None]
    assert any(gradient.abs().sum() > 0 for gradient in gradients)


def test_the_loss_of_the_identity_is_zero():
    identity = et.Canonicalizer(["rotation"], in_channels=3, predictor="direct")  # pose 0 at the start
    images = textures(size=(32, 32))
    assert et.alignment_loss(identity(images)) == 0
    quarter = et.Warp.projective(et.group("rotation").matrix(torch.full((4,), math.pi / 2)))
    half = et.Warp.projective(et.group("rotation").matrix(torch.full((4,), math.pi)))
    assert 0 < et.alignment_loss(identity(images, quarter)) < et.alignment_loss(identity(images, half))
    assert et.alignment_loss(et.Canonicalizer([], in_channels=3)(images)) == 0


def test_a_stack_is_trained_layer_by_layer():
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(["rotation", "x_shear", "x_perspective"], in_channels=3, channels=4)
    images = textures(size=(32, 32))
    start = Augmentation({"rotation": 0.3, "x_shear": 0.3, "x_perspective": 0.2}).random(images)
    et.alignment_loss(canonicalizer(images, start)).backward()
    for layer in canonicalizer.layers:
        assert layer.predictor.head.weight.grad.abs().sum() > 0


def test_a_few_steps_turn_pictures_upright():
    """Pictures with a bright top, seen within 15 degrees of upright, are turned back from any angle."""
    torch.manual_seed(0)
    shade = torch.linspace(1, -1, 32)[:, None].expand(32, 32)
    upright = shade + 0.3 * textures(64, (32, 32))
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3, channels=8)
    augmentation = Augmentation({"rotation": math.radians(15)})
    optimizer = torch.optim.Adam(canonicalizer.parameters(), 5e-3)
    for _ in range(40):
        loss = et.alignment_loss(canonicalizer(upright, augmentation.random(upright)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    theta = torch.linspace(-3, 3, 64)
    new = torch.linspace(1, -1, 32)[:, None].expand(32, 32) + 0.3 * textures(64, (32, 32), seed=1)
    turned = et.Warp.projective(et.group("rotation").matrix(theta)).image(new)
    error = (canonicalizer.eval()(turned).pose[:, 0] - theta + math.pi) % (2 * math.pi) - math.pi
    assert error.abs().median() < math.radians(10)


def test_other_outputs_are_refused():
    with pytest.raises(TypeError, match="takes the output of a canonicalizer, got a Tensor"):
        et.alignment_loss(torch.rand(2, 3))


def test_a_loss_that_cannot_train_the_layers_is_warned_of():
    images = torch.rand(2, 3, 32, 32)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    model = et.Canonicalized(backbone, et.Canonicalizer(["rotation"], in_channels=3, channels=4))
    with pytest.warns(UserWarning, match=r"does not train the layers.*et\.alignment_loss"):
        model(images).sum().backward()
    layers = [*model.canonicalizer.parameters()]
    assert all(weight.grad is None for weight in layers)  # it is true
    out = model.canonicalizer(images)
    (model.read(out).sum() + et.alignment_loss(out)).backward()  # this trains them, without a warning
    assert any(weight.grad.any() for weight in layers)
    with torch.no_grad():
        model(images)
    model.canonicalizer.requires_grad_(False)
    model(images)
    model.canonicalizer.requires_grad_(True)
    model.eval()(images)
    et.Canonicalized(backbone, et.Canonicalizer(["rotation"], in_channels=3, predictor="consistent"))(images)
