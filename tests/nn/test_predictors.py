import pytest
import torch
from glyphs import glyphs
from pairs import every_pair
from torch.utils._python_dispatch import TorchDispatchMode

import equivariant_transformers as et
from equivariant_transformers.nn.conv import CentredActivation, ScaleNorm, pad
from equivariant_transformers.nn.prediction import PoseReader
from equivariant_transformers.nn.predictors import ConsistentPredictor, DirectPredictor, SoftmaxPredictor

EVERY_CHART = pytest.mark.parametrize("chart", et.CHARTS.values(), ids=et.CHARTS)


def sampled(chart, images):
    return et.Warp.identity().sample(images, chart.grid())


@EVERY_CHART
@pytest.mark.parametrize("kind", [ConsistentPredictor, SoftmaxPredictor])
def test_predictions_have_the_promised_shapes(chart, kind):
    k = len(chart.groups)
    prediction = kind(chart, 2, channels=4)(sampled(chart, torch.rand(3, 2, 20, 20)))
    assert prediction.pose.shape == prediction.confidence.shape == (3, k)
    assert len(prediction.heatmaps) == k
    for heatmap in prediction.heatmaps:
        torch.testing.assert_close(heatmap.sum(-1), torch.ones(3))
        assert (heatmap >= 0).all()
    assert ((prediction.confidence >= 0) & (prediction.confidence <= 1)).all()


@EVERY_CHART
@pytest.mark.parametrize("value", [0.0, 0.7])
def test_an_empty_image_has_pose_zero_and_no_confidence(chart, value):
    predictor = ConsistentPredictor(chart, 1, channels=4)
    with torch.no_grad():
        predictor.bias.fill_(0.7)
    images = torch.full((2, 1, 24, 24), value, requires_grad=True)
    prediction = predictor(et.Warp.identity().sample(images, chart.grid(), fill=value))
    torch.testing.assert_close(prediction.pose, torch.zeros_like(prediction.pose))
    torch.testing.assert_close(prediction.confidence, torch.zeros_like(prediction.confidence))
    (prediction.pose.sum() + prediction.confidence.sum()).backward()
    assert images.grad.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in predictor.parameters())


def test_contrast_does_not_matter():
    layer = et.EquivariantTransformer("x_shear").eval()
    images = glyphs(64)
    for factor in (0.1, 10.0):
        torch.testing.assert_close(layer(factor * images).pose, layer(images).pose, rtol=1e-3, atol=1e-3)


def test_the_circular_centre_does_not_see_the_seam():
    torch.manual_seed(0)
    chart = et.chart("rotation")
    layer = et.EquivariantTransformer(chart).eval()
    images = et.Warp.projective(et.group("x_translation").matrix(0.3)).image(glyphs(64))
    angles = torch.linspace(-3.2, 3.2, 33)
    poses = torch.stack(
        [layer(et.Warp.projective(et.group("rotation").matrix(a)).image(images)).pose[:, 0] for a in angles]
    )
    steps = (poses.diff(dim=0) + torch.pi) % (2 * torch.pi) - torch.pi
    torch.testing.assert_close(steps, torch.full_like(steps, 0.2), rtol=0, atol=0.05)


def test_the_softmax_predictor_wraps_periodic_axes():
    """A picture turned by two samples, the predictor's stride, gives the same features turned by one."""
    torch.manual_seed(0)
    predictor = SoftmaxPredictor(et.chart("rotation"), 1, channels=4).eval()
    images = torch.rand(2, 1, 1, 64, 64)
    turned = predictor(images.roll(2, -1)).heatmaps[0]
    torch.testing.assert_close(turned, predictor(images).heatmaps[0].roll(1, -1))


def test_the_direct_predictor_begins_at_zero():
    chart = et.chart("x_shear")
    prediction = DirectPredictor(chart, 1)(torch.rand(3, 1, 1, 32, 32))
    assert (prediction.pose == 0).all()


@every_pair(["x_shear"], ["cartesian"])
def test_predictors_learn(predictor, layers):
    """A few steps towards given poses lower the error: gradients reach every parameter."""
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(layers, predictor=predictor, channels=8)
    (layer,) = canonicalizer.layers
    images = glyphs(32)
    target = torch.tensor([[0.3], [-0.2], [0.1], [0.4]]).repeat(1, len(layer.chart.groups))
    start = et.Warp.identity()
    for group, theta in zip(layer.chart.groups, target.unbind(-1), strict=True):
        start = start.compose(et.Warp.projective(group.matrix(theta)))
    optimiser = torch.optim.Adam(layer.parameters(), lr=3e-3)
    losses = []
    for _ in range(80):
        if predictor == "posterior":  # learns from the alignment loss alone
            loss = et.alignment_loss(canonicalizer(images, start))
        else:
            loss = (layer(images).pose - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert min(losses[-10:]) < 0.5 * losses[0]
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_padding_wraps_periodic_axes_and_repeats_the_others():
    row = torch.arange(4.0).reshape(1, 1, 1, 4)
    assert pad(row, (1, 0), (True, False)).flatten().tolist() == [3, 0, 1, 2, 3, 0]
    assert pad(row, (1, 0), (False, False)).flatten().tolist() == [0, 0, 1, 2, 3, 3]
    assert pad(row + 1, (1, 0), (False, False), "constant").flatten().tolist() == [0, 1, 2, 3, 4, 0]
    assert pad(row.mT, (0, 2), (False, True)).flatten().tolist() == [2, 3, 0, 1, 2, 3, 0, 1]


def test_nothing_stays_nothing():
    for module in (ScaleNorm(3), CentredActivation(3)):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_()
        assert (module(torch.zeros(2, 3, 4, 4)) == 0).all()


def test_scale_norm_follows_the_batch_and_remembers_it():
    norm = ScaleNorm(2, momentum=1.0)
    x = torch.randn(64, 2, 8, 8) * torch.tensor([3.0, 0.1]).reshape(2, 1, 1)
    y = norm(x)
    torch.testing.assert_close(y.square().mean((0, 2, 3)), torch.ones(2), rtol=0, atol=1e-2)
    torch.testing.assert_close(norm.eval()(x), y)


@pytest.mark.parametrize("name", ["rotation", "log_polar"])
def test_the_softmax_predictor_does_not_turn_an_image_that_tells_it_nothing(name):
    torch.manual_seed(0)
    chart = et.chart(name)
    predictor = SoftmaxPredictor(chart, 1, channels=4).eval()
    images = torch.rand(8, 1, 1, *chart.size)
    with torch.no_grad():
        for weight in predictor.maps.parameters():
            weight.mul_(1e-3)
        assert predictor(images).pose[:, 0].abs().max() < 0.01
        for weight in predictor.maps.parameters():
            weight.mul_(1e6)  # sure of itself, it goes anywhere
        assert predictor(images).pose[:, 0].abs().max() > 1


class Operations(TorchDispatchMode):
    """Names of the operations that are run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("predictor", ["posterior", "consistent", "softmax"])
@pytest.mark.parametrize("name", ["rotation", "x_shear", "log_polar"])
def test_positions_along_the_pose_axes_are_computed_once(name, predictor):
    layer = et.EquivariantTransformer(name, predictor=predictor, channels=2).eval()
    images = torch.rand(2, 1, 1, *layer.chart.size)
    with Operations() as run:
        layer.predictor(
            images, **({"valid": torch.ones(1, 1, *layer.chart.size) > 0} if predictor == "posterior" else {})
        )
    assert not run.names & {"linspace", "arange", "cos", "sin", "zeros", "lift_fresh"}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", ["rotation", "x_shear", "log_polar"])
def test_the_centre_of_a_peak_is_minus_its_position(name, stride):
    chart = et.chart(name)
    reader = PoseReader(chart, stride).half().double()
    axes = [axis[::stride] for axis in chart.axes(dtype=torch.float64)[: len(chart.groups)]]
    maps = [torch.eye(len(axis), dtype=torch.float64)[3:8].expand(2, 5, -1) for axis in axes]
    found = reader(maps)
    expected = torch.stack([middle - axis[3:8] for middle, axis in zip(chart.centre, axes, strict=False)], -1)
    torch.testing.assert_close(found.pose, expected.expand(2, 5, -1), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.confidence, torch.ones_like(found.pose), rtol=0, atol=1e-5)
