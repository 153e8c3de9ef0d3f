"""The kernels for features on a GPU against the same computed by torch in float32."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from equivariant_transformers.geometry.atlas import CHARTS
from equivariant_transformers.models import z2cnn
from equivariant_transformers.nn import features
from equivariant_transformers.nn import predictors as pose

BFLOAT16 = 0.02  # how far results may be off, relative to their size, where operands are rounded to bfloat16

cuda = pytest.mark.cuda


def difference(ours, theirs):
    assert ours.shape == theirs.shape
    assert ours.isfinite().all()
    return ((ours.float() - theirs).norm() / theirs.norm()).item()


def rounded(*shape):
    """Random numbers that bfloat16 can represent."""
    return torch.randn(*shape, device="cuda").bfloat16().float()


def padded(images, padding, wraps):
    for axis, amount, wrapped in zip((2, 3), padding, wraps, strict=True):
        if wrapped:
            length = images.shape[axis]
            images = torch.cat((images.narrow(axis, length - 1, 1), images, images.narrow(axis, 0, 1)), axis)
        elif amount:
            images = F.pad(images, (amount, amount) if axis == 3 else (0, 0, amount, amount))
    return images


def check_gradients(ours, theirs, inputs, *, tolerance=BFLOAT16):
    """The gradients of two lists of results agree, for the same random weights of them."""
    weights = [torch.randn_like(result) for result in theirs]
    losses = [sum((r.float() * w).sum() for r, w in zip(results, weights, strict=True)) for results in (ours, theirs)]
    gradients = [torch.autograd.grad(loss, inputs) for loss in losses]
    for found, expected in zip(*gradients, strict=True):
        assert difference(found, expected) < tolerance


def with_sums(result):
    return [result, torch.stack([result.sum((0, 1, 2)), result.square().sum((0, 1, 2))]) / 100]


@cuda
@pytest.mark.parametrize(
    ("channels", "stride", "padding", "wraps"),
    [
        (1, (2, 2), (1, 1), (False, False)),
        (2, (2, 1), (0, 0), (False, False)),
        (1, (1, 1), (0, 0), (False, True)),
        (3, (1, 1), (0, 0), (True, True)),
    ],
)
def test_images_are_convolved(channels, stride, padding, wraps):
    torch.manual_seed(0)
    images = rounded(5, channels, 21, 34).requires_grad_()
    weight = rounded(32, channels, 3, 3).requires_grad_()
    result, *sums = features.convolve(images, weight, stride=stride, padding=padding, wraps=wraps[::-1])
    expected = F.conv2d(padded(images, padding, wraps), weight, stride=stride).permute(0, 2, 3, 1)
    theirs = with_sums(expected)
    assert difference(result, expected) < BFLOAT16
    sums = torch.stack(sums) / 100
    assert difference(sums, theirs[1]) < BFLOAT16
    check_gradients([result, sums], theirs, [images, weight])


@cuda
@pytest.mark.parametrize(
    ("padding", "wraps"), [((1, 1), (False, False)), ((0, 1), (True, False)), ((0, 0), (False,) * 2)]
)
def test_features_are_convolved(padding, wraps):
    torch.manual_seed(0)
    x = torch.randn(5, 18, 23, 32, device="cuda").bfloat16().requires_grad_()
    weight = (rounded(32, 32, 3, 3) / 16).requires_grad_()
    result, *sums = features.convolve(x, weight, padding=padding, wraps=wraps[::-1])
    images = padded(x.float().permute(0, 3, 1, 2), padding, wraps)
    expected = F.conv2d(images, weight).permute(0, 2, 3, 1)
    theirs = with_sums(expected)
    assert difference(result, expected) < BFLOAT16
    sums = torch.stack(sums) / 100
    assert difference(sums, theirs[1]) < BFLOAT16
    check_gradients([result, sums], theirs, [x, weight])


def some_features(*shape, centred):
    torch.manual_seed(0)
    raw = torch.randn(*shape, 32, device="cuda").bfloat16().requires_grad_()
    scale, shift = (torch.randn(32, device="cuda").requires_grad_() for _ in range(2))
    expected = F.leaky_relu(raw.float() * scale + shift, 0.1)
    if centred:
        expected = expected - F.leaky_relu(shift, 0.1)
    return features.Features(raw, scale, shift, 0.1, centred), expected


@cuda
@pytest.mark.parametrize(("window", "centred"), [(1, False), (1, True), (2, False)])
def test_features_are_normalised_and_activated(window, centred):
    some, activated = some_features(4, 9, 13, centred=centred)
    value = some.value(window)
    expected = F.avg_pool2d(activated.permute(0, 3, 1, 2), window).permute(0, 2, 3, 1)
    assert difference(value, expected) < BFLOAT16
    check_gradients([value], [expected], [some.raw, some.scale, some.shift])


@cuda
@pytest.mark.parametrize("rows", [9, 32, 75])
@pytest.mark.parametrize("sheets", [1, 2])
def test_the_strongest_of_rows_and_sheets_is_found(rows, sheets):
    some, activated = some_features(3 * sheets, rows, 13, centred=False)
    expected = activated.reshape(3, sheets * rows, 13, 32).max(1).values.transpose(1, 2)
    found = some.strongest(sheets)
    torch.testing.assert_close(found, expected)
    check_gradients([found], [expected], [some.raw, some.scale, some.shift])


@cuda
@pytest.mark.parametrize("rows", [9, 32, 75])
@pytest.mark.parametrize("centred", [False, True])
def test_rows_are_averaged(rows, centred):
    some, activated = some_features(3, rows, 13, centred=centred)
    weights = torch.rand(rows, device="cuda") / rows
    expected = (activated * weights[:, None, None]).sum(1).transpose(1, 2)
    found = some.average(weights)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    check_gradients([found], [expected], [some.raw, some.scale, some.shift])


def networks():
    for name in ("x_shear", "hyperbolic_rotation", "rotation"):
        chart = CHARTS[name]
        images = torch.rand(8, 1, chart.sheets, *chart.size)
        yield pytest.param(pose.SoftmaxPredictor(chart, 1), images, lambda out: out.heatmaps[0], id=f"softmax {name}")
        yield pytest.param(
            pose.ConsistentPredictor(chart, 1), images, lambda out: out.heatmaps[0], id=f"consistent {name}"
        )
    direct = pose.DirectPredictor(CHARTS["x_shear"], 1)
    torch.nn.init.normal_(direct.head.weight, std=0.05)
    yield pytest.param(direct, torch.rand(8, 1, 1, 64, 64), lambda out: out.pose, id="direct")
    classifier = z2cnn.Z2CNN(dropout=0.0, wraps=(False, True))
    yield pytest.param(classifier, torch.rand(8, 1, 64, 64), lambda out: out, id="Z2CNN")
    more = z2cnn.Z2CNN(classes=20, dropout=0.0)
    yield pytest.param(more, torch.rand(8, 1, 64, 64), lambda out: out, id="Z2CNN, 20 classes")


@cuda
@pytest.mark.parametrize(("network", "images", "read"), [*networks()])
def test_networks_compute_the_same(network, images, read):
    plain, lazy = (copy.deepcopy(network).cuda() for _ in range(2))
    images = images.cuda()
    for training in (True, False):
        plain.train(training)
        lazy.train(training)
        expected = read(plain(images))
        with torch.autocast("cuda", torch.bfloat16):
            found = read(lazy(images))
        assert difference(found, expected.detach()) < 0.05
    for ours, theirs in zip(lazy.buffers(), plain.buffers(), strict=True):
        if ours.is_floating_point():
            torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.002)


@cuda
def test_only_what_the_kernels_can_do_is_given_to_them():
    images = torch.rand(2, 1, 8, 8, device="cuda")
    assert not features.fits(images, 32)
    with torch.autocast("cuda", torch.bfloat16):
        assert features.fits(images, 32)
        assert not features.fits(images, 24)
        assert not features.fits(images.double(), 32)
        assert not features.fits(images.expand(-1, 4, -1, -1), 32)
        assert not features.fits(images[:0], 32)
    with torch.autocast("cuda", torch.float16):
        assert not features.fits(images, 32)
    assert not features.fits(images.cpu(), 32)
