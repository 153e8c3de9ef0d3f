"""The predictor for photographs: identity at the start, equivariant where there is evidence, blind to the frame."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from textures import textures
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.nn.layers import make_layer
from equivariant_transformers.nn.posterior import PosteriorPredictor

CHARTS = pytest.mark.parametrize("name", list(et.CHARTS))


def frame(pictures, theta=0.0, size=(48, 48)):
    """Content turned by theta inside a fixed frame in the middle of larger pictures."""
    side = max(size) / max(pictures.shape[-2:])
    warp = et.Warp.projective(et.group("dilation").matrix(torch.tensor(math.log(side))))
    return (warp @ et.Warp.projective(et.group("rotation").matrix(torch.tensor(theta)))).image(pictures, size=size)


def random_layer(name="rotation", strength=60.0):
    """A layer with random weights whose evidence varies by about `strength` along the pose axis."""
    torch.manual_seed(0)
    layer = make_layer(name, 3, predictor="posterior", channels=8).eval()
    nn.init.normal_(layer.predictor.head.weight)
    with torch.no_grad():
        evidence = layer(textures(8, (48, 48))).steps[0].evidence
        layer.predictor.head.weight *= strength / evidence.flatten(1).std(1).mean()
    return layer


def consistent_layer(name):
    torch.manual_seed(0)
    return make_layer(name, 3, predictor="consistent", channels=8).eval()


def turned_apart(first, second):
    return (second - first + math.pi) % (2 * math.pi) - math.pi


@CHARTS
def test_a_new_layer_is_the_identity(name):
    images = textures(size=(32, 32))
    out = et.Canonicalizer([name], in_channels=3).eval()(images)
    assert out.pose.abs().max() < 1e-4
    torch.testing.assert_close(out.image, images, rtol=0, atol=2e-3)


@CHARTS
def test_a_new_layer_stays_close_to_the_identity_in_training(name):
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer([name], in_channels=1, channels=4)
    pose = canonicalizer(torch.rand(1000, 1, 8, 8)).pose / canonicalizer.layers[0].widths
    assert pose.std(0).max() < 0.12
    assert pose.mean(0).abs().max() < 0.01


def test_poses_of_training_are_drawn_from_the_square_of_the_posterior():
    torch.manual_seed(0)
    layer = random_layer(strength=2.0)
    image = frame(textures(1, (150, 150)))
    posterior = layer(image).heatmaps[0][0] ** 2
    layer.predictor.training = True  # the layer itself does not turn the image
    for module in layer.predictor.trunk.modules():
        module.training = False
    with torch.no_grad():
        poses = torch.cat([layer(image.expand(200, -1, -1, -1)).pose[:, 0] for _ in range(50)])
    samples = layer.chart.size[1]
    counts = torch.bincount(
        (-poses / (2 * math.pi) * samples + samples / 2).round().long() % samples, minlength=samples
    )
    torch.testing.assert_close(counts / len(poses), posterior / posterior.sum(), rtol=0, atol=0.02)


@pytest.mark.parametrize("size", [(48, 48), (36, 60), (60, 36)])
@pytest.mark.parametrize("theta", [0.4, 1.3, 2.9, -2.2])
def test_strong_evidence_is_followed_whatever_the_weights(size, theta):
    pictures = textures(8, (150, 150))
    layer = random_layer()
    errors = turned_apart(layer(frame(pictures, size=size)).pose, layer(frame(pictures, theta, size)).pose) - theta
    errors = (errors + math.pi) % (2 * math.pi) - math.pi
    assert errors.abs().median() < 0.05


def test_weak_evidence_leaves_images_where_they_are():
    pictures = textures(8, (150, 150))
    poses = {
        strength: random_layer(strength=strength)(frame(pictures, 1.3)).pose.abs() for strength in (0.01, 0.1, 60.0)
    }
    assert poses[0.01].max() < 1e-2
    assert poses[0.1].max() < 0.1
    assert poses[60.0].median() > 0.2


def test_the_frame_of_a_circular_chart_is_not_evidence():
    images = textures(size=(48, 48))
    line = torch.linspace(-1, 1, 48)
    corners = line[:, None] ** 2 + line**2 > 1.02**2
    other = torch.where(corners, torch.randn(images.shape), images)
    layer = random_layer()
    torch.testing.assert_close(layer(other).pose, layer(images).pose, rtol=0, atol=1e-3)


@pytest.mark.parametrize("layers", [["rotation"], ["log_polar"], ["x_shear"], ["rotation", "x_shear"]])
@pytest.mark.parametrize("predictor", ["posterior", "consistent"])
def test_padding_has_no_effect_on_the_pose(layers, predictor):
    made = [random_layer(name) if predictor == "posterior" else consistent_layer(name) for name in layers]
    canonicalizer = et.Canonicalizer(made, in_channels=3)
    mask = torch.zeros(4, 1, 64, 64, dtype=torch.bool)
    mask[:, :, 12:52] = True
    images = textures(size=(64, 64))
    black, noise = torch.where(mask, images, 0.0), torch.where(mask, images, 5 * torch.randn(images.shape))
    first, second = canonicalizer(black, mask=mask), canonicalizer(noise, mask=mask)
    torch.testing.assert_close(first.pose, second.pose, rtol=0, atol=1e-3)
    assert torch.equal(first.image, second.image)
    assert not (first.valid & ~first.warp.mask(mask)).any()
    different = canonicalizer(black).pose - canonicalizer(noise).pose
    assert different.abs().max() > 1e-2  # without the mask, the bars decide


@pytest.mark.parametrize("predictor", ["posterior", "consistent"])
def test_the_pose_of_a_letterboxed_picture_is_that_of_the_picture(predictor):
    pictures = textures(size=(40, 64))
    layer = random_layer() if predictor == "posterior" else consistent_layer("rotation")
    canonicalizer = et.Canonicalizer([layer], in_channels=3)
    boxed = F.pad(pictures, (0, 0, 12, 12), value=-3.0)
    mask = F.pad(torch.ones(4, 1, 40, 64, dtype=torch.bool), (0, 0, 12, 12))
    difference = turned_apart(canonicalizer(pictures).pose, canonicalizer(boxed, mask=mask).pose)
    assert difference.abs().max() < 1e-3


def test_brightness_and_contrast_do_not_matter():
    images = textures(size=(48, 48))
    layer = random_layer(strength=10.0)
    torch.testing.assert_close(layer(0.3 * images + 2).pose, layer(images).pose, rtol=0, atol=5e-3)


def test_random_turns_of_training_are_subtracted():
    images = textures(16, (48, 48))
    layer = random_layer()
    still = layer(images).steps[0].evidence
    layer.training = True  # the predictor inside keeps its running statistics
    layer.predictor.nuisance.generators.zero_()
    turned = layer(images).steps[0].evidence
    assert not torch.equal(still, turned)
    alike = F.cosine_similarity(still - still.mean(1, keepdim=True), turned - turned.mean(1, keepdim=True))
    assert alike.median() > 0.95


def test_the_pixel_grid_is_not_evidence():
    """White noise has no orientation, but a chart sampled from its pixels shows the axes of the pixel grid."""
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=1, channels=8)
    optimizer = torch.optim.Adam(canonicalizer.parameters(), 5e-3)
    losses = []
    for _ in range(60):
        loss = et.alignment_loss(canonicalizer(torch.randn(48, 1, 24, 24)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 > losses[0] - 0.3  # 1.2 below, if the chart is sampled from the noise itself


def test_the_loss_behind_a_layer_does_not_reach_its_evidence():
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3, channels=4)
    images = textures(size=(32, 32)).requires_grad_()
    out = canonicalizer(images)
    out.image.square().sum().backward()
    assert images.grad is not None
    assert all(parameter.grad is None for parameter in canonicalizer.parameters())
    et.alignment_loss(out).backward()
    assert canonicalizer.layers[0].predictor.head.weight.grad.abs().sum() > 0


def test_evidence_is_differentiable():
    torch.manual_seed(0)
    chart = et.chart("rotation").replace(size=(6, 8), ranges=((-math.pi, math.pi), (0.1, 0.9)))
    predictor = PosteriorPredictor(chart, 1, channels=2).double().eval()
    nn.init.normal_(predictor.head.weight)
    valid = torch.ones(1, 1, 6, 8, dtype=torch.bool)
    images = torch.rand(2, 1, 1, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: predictor(x, valid).evidence, (images,))


@pytest.mark.parametrize(
    "mask",
    [torch.ones(4, 1, 32, 32), torch.ones(4, 3, 32, 32, dtype=torch.bool), torch.ones(32, 32, dtype=torch.bool), 1],
)
def test_a_bad_mask_is_explained(mask):
    with pytest.raises(ValueError, match=r"a mask is a boolean tensor \(B, 1, H, W\) for images \(4, 3, 32, 32\), got"):
        et.Canonicalizer(["rotation"], in_channels=3)(textures(size=(32, 32)), mask=mask)


def test_an_image_without_any_valid_circle_stays():
    images = textures(size=(32, 32))
    mask = torch.zeros(4, 1, 32, 32, dtype=torch.bool)
    out = random_layer()
    out = et.Canonicalizer([out], in_channels=3)(images, mask=mask)
    assert out.pose.abs().max() < 1e-4
    assert out.image.isfinite().all()


@pytest.mark.parametrize("training", [False, True])
def test_a_stack_compiles_in_one_graph(training):
    canonicalizer = et.Canonicalizer([random_layer(), random_layer("x_shear")], in_channels=3).train(training)
    images = textures(size=(32, 32))
    compiled = torch.compile(canonicalizer, fullgraph=True, backend="aot_eager")
    compiled(textures(size=(40, 48)))  # from the second size on, sizes are symbols
    out = compiled(images)
    assert out.image.isfinite().all()
    if not training:  # poses of training are drawn
        torch.testing.assert_close(out.pose, canonicalizer(images).pose, rtol=0, atol=1e-4)
    et.alignment_loss(out).backward()
    assert all(layer.predictor.head.weight.grad is not None for layer in canonicalizer.layers)
