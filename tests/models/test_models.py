import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from glyphs import glyphs
from hypothesis import given
from hypothesis import strategies as st
from pairs import every_pair
from torch import nn

import equivariant_transformers as et
from equivariant_transformers import models
from equivariant_transformers.geometry.atlas import paper_chart
from equivariant_transformers.models.capsule import route, squash
from equivariant_transformers.models.legacy_networks import BasicCNN
from equivariant_transformers.nn import Prediction
from equivariant_transformers.nn.layers import ChartSampler, make_layer

FOUR = ["x_shear", "hyperbolic_rotation", "x_perspective", "y_perspective"]
SVHN = ["cartesian", "log_polar", "x_scale"]
CLASSIFIERS = {  # each with a small input
    "z2cnn": (models.Z2CNN, (1, 50, 53)),
    "affnist": (models.AffNISTCNN, (1, 16, 14)),
    "resnet10": (models.resnet10, (3, 32, 32)),
    "resnet18": (models.resnet18, (3, 17, 20)),
    "resnet34": (models.resnet34, (3, 20, 17)),
    "capsule": (lambda *ends: models.CapsuleNetwork(*ends, size=(20, 22)), (1, 20, 22)),
}
EVERY_CLASSIFIER = pytest.mark.parametrize(("make", "shape"), CLASSIFIERS.values(), ids=CLASSIFIERS)


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def settled(model, images):
    """In evaluation mode, with the statistics of `images`, so that the signal does not fade from layer to layer."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model(images)
    return model.eval()


def shapes(model, images):
    """The shapes, without the batch, that go into and come out of every layer with a kernel, and the output's."""
    rows = []

    def record(module, inputs, output):
        rows.extend((tuple(inputs[0].shape[1:]), tuple(output.shape[1:])))

    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv1d, nn.Linear)):
            module.register_forward_hook(record)
    output = model(images)
    return [*rows, tuple(output.pose.shape[1:] if isinstance(output, et.Canonicalization) else output.shape[1:])]


# The paper's tables


def test_the_classifier_has_the_shapes_of_the_paper():
    assert shapes(models.build("z2cnn"), torch.rand(2, 1, 64, 64)) == [
        (1, 64, 64),  # input
        (32, 62, 62),  # conv1
        (32, 31, 31),  # avgpool
        (32, 29, 29),  # conv2
        (32, 14, 14),  # avgpool
        (32, 12, 12),  # conv3
        (32, 12, 12),  # dropout
        (32, 10, 10),  # conv4
        (32, 10, 10),
        (32, 8, 8),  # conv5
        (32, 8, 8),
        (32, 6, 6),  # conv6
        (32, 6, 6),  # dropout
        (10, 4, 4),  # conv7
        (10,),  # maxpool
    ]


@pytest.mark.parametrize("name", ["x_shear", "rotation", "y_translation"])
def test_the_equivariant_predictor_has_the_shapes_of_the_paper(name):
    (layer,) = models.build(layers=[name], predictor="softmax").canonicalizer.layers
    images = torch.rand(1, 1, 64, 64)
    wrap = 2 if et.chart(name).periodic[0] else 0  # what is repeated at the ends of an axis that wraps
    assert shapes(layer, images) == [
        (1, 64, 64 + wrap),  # canonical coordinates
        (32, 32, 32),  # conv1
        (32, 32, 32 + wrap),
        (32, 32, 32),  # conv2
        (32, 32 + 2),  # maxpool, padded
        (1, 32),  # conv3
        (1,),  # centroid
    ]
    assert layer.grid.shape == (1, 64, 64, 2)
    assert layer(images).heatmaps[0].shape == (1, 32)  # softmax


def test_the_direct_predictor_has_the_shapes_of_the_paper():
    (layer,) = models.build(layers=["x_shear"], predictor="direct").canonicalizer.layers
    assert shapes(layer, torch.rand(1, 1, 64, 64)) == [
        (1, 64, 64),  # input
        (32, 32, 32),  # conv1
        (32, 32, 32),
        (32, 32, 32),  # conv2
        (32 * 3 * 3,),  # maxpool
        (1,),  # fc
        (1,),
    ]


@pytest.mark.parametrize("predictor", ["softmax", "direct"])
def test_strides_of_one_keep_the_resolution(predictor):
    model = models.build(
        "resnet10", layers=["x_scale"], predictor=predictor, in_channels=3, size=(32, 32), strides=(1, 1)
    )
    rows = shapes(model.canonicalizer.layers[0], torch.rand(1, 3, 32, 32))
    height = 16 if predictor == "softmax" else 32  # each of two sheets goes through the convolutions by itself
    assert rows[1] == rows[3] == (32, height, 32)


def test_the_affnist_network_ends_in_128_features():
    assert shapes(models.build("affnist"), torch.rand(1, 1, 40, 40)) == [
        (1, 40, 40),
        (256, 36, 36),
        (256, 36, 36),
        (256, 32, 32),
        (256, 32, 32),
        (128, 28, 28),
        (128,),
        (10,),
        (10,),
    ]


def test_parameters_are_as_many_as_in_the_paper():
    assert round(parameters(models.resnet10()) / 1e6, 1) == 1.2
    assert round(parameters(models.resnet34()) / 1e6, 1) == 5.3
    with_layers = models.build("resnet10", layers=SVHN, predictor="softmax", in_channels=3, size=(32, 32))
    assert round((parameters(with_layers) - parameters(models.resnet10())) / 1e3) == 31


def test_the_published_network_has_nearly_its_number_of_parameters():
    """In 2019 each predictor had a second head of 96 + 1 parameters, which no one-parameter layer used."""
    model = models.build(layers=FOUR, chart="log_polar", predictor="softmax")
    assert parameters(model) == 88_946 - 4 * (96 + 1)


def test_the_capsule_network_has_the_parameters_of_its_paper():
    network, decoder = models.CapsuleNetwork(), models.CapsuleDecoder()
    assert round(parameters(network) / 1e6, 1) == 6.8
    assert round((parameters(network) + parameters(decoder)) / 1e6, 1) == 8.2


# Every classifier


@EVERY_CLASSIFIER
def test_classifiers_take_any_batch_dtype_and_number_of_classes(make, shape):
    model = make(shape[0], 7)
    for training in (True, False):
        model.train(training)
        for batch in (1, 3):
            assert model(torch.rand(batch, *shape)).shape == (batch, 7)
    logits = model.double()(torch.rand(2, *shape, dtype=torch.float64))
    assert logits.dtype == torch.float64
    assert logits.isfinite().all()


@EVERY_CLASSIFIER
@pytest.mark.parametrize("value", [None, 0.0])
def test_gradients_reach_every_parameter_and_are_finite(make, shape, value):
    torch.manual_seed(0)
    model = make(shape[0], 10)
    images = torch.rand(3, *shape) if value is None else torch.full((3, *shape), value)
    F.cross_entropy(model(images.requires_grad_()), torch.tensor([0, 1, 2])).backward()
    assert images.grad.isfinite().all()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert value is not None or parameter.grad.any(), name


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("z2cnn", {"convs.3", "head"}),  # after the third and the sixth layer
        ("affnist", {"head"}),
        ("resnet10", {*(f"layer{stage}.0.conv2" for stage in range(1, 5)), "fc"}),
    ],
)
def test_dropout_acts_where_the_paper_says(name, places):
    """The input of the next layer has more zeros than a ReLU alone produces."""
    torch.manual_seed(0)
    model = models.NETWORKS[name](1, 10, dropout=0.9)
    found = set()
    for at, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_pre_hook(
                lambda _, inputs, at=at: found.add(at) if (inputs[0] == 0).float().mean() > 0.8 else None
            )
    model(torch.rand(8, 1, 50, 50) if name == "z2cnn" else torch.rand(8, 1, 20, 20))
    assert found == places


@pytest.mark.parametrize("name", sorted(set(models.NETWORKS) - {"capsule"}))
def test_dropout_acts_in_training_only(name):
    torch.manual_seed(0)
    images = torch.rand(2, 1, 50, 50) if name == "z2cnn" else torch.rand(2, 1, 20, 20)
    model = models.NETWORKS[name](1, 10, dropout=0.5)
    assert not torch.equal(model(images), model(images))
    certain = models.NETWORKS[name](1, 10, dropout=0.0)
    torch.testing.assert_close(certain(images), certain(images))
    model.eval()
    torch.testing.assert_close(model(images), model(images))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("name", "period"), [("z2cnn", 4), ("affnist", 1), ("resnet10", 16)])
def test_a_shift_along_an_axis_that_wraps_changes_nothing(name, period, axis):
    """Up to the classifier's strides: along the width for `wraps[0]`, along the height for `wraps[1]`."""
    torch.manual_seed(0)
    images = torch.rand(2, 1, 14, 14) if name == "affnist" else torch.rand(2, 1, 64, 64)
    model = settled(models.NETWORKS[name](1, 10, wraps=(axis == 0, axis == 1)), images)
    along, across = images.roll(period, -1 - axis), images.roll(period, -2 + axis)
    torch.testing.assert_close(model(along), model(images), rtol=1e-4, atol=1e-4)
    assert (model(across) - model(images)).abs().max() > 1e-2


def test_the_classifier_is_that_of_2019_with_height_and_width_exchanged():
    torch.manual_seed(0)
    images = torch.rand(2, 1, 64, 64)
    old = settled(BasicCNN(nf=8, pad_mode=(None, "cyclic")), images)
    new = models.Z2CNN(channels=8, wraps=(True, False)).eval()
    layers = [*(old[f"conv{layer}"] for layer in range(1, 8)), *(old[f"bn{layer}"] for layer in range(1, 7))]
    for ours, theirs in zip((*new.convs, new.head, *new.norms), layers, strict=True):
        weights = theirs.state_dict()
        ours.load_state_dict(
            weights | {"weight": weights["weight"].mT if theirs.weight.ndim == 4 else weights["weight"]}
        )
    torch.testing.assert_close(new(images.mT), old(images), rtol=1e-4, atol=1e-4)


def test_axes_that_do_not_wrap_need_50_samples():
    assert models.Z2CNN(wraps=(True, False))(torch.rand(1, 1, 50, 4)).shape == (1, 10)
    with pytest.raises(ValueError, match="needs at least 50 samples along axes that do not wrap, got 49 x 4 pixels"):
        models.Z2CNN(wraps=(True, False))(torch.rand(1, 1, 49, 4))


@pytest.mark.parametrize("name", ["z2cnn", "resnet10", "capsule"])
def test_classifiers_compile_in_one_piece(name):
    make, shape = CLASSIFIERS[name]
    model = make(shape[0], 10).eval()
    images = torch.rand(2, *shape)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))


# Complete networks


def test_capsules_are_built_for_the_size_of_the_images():
    model = models.build("capsule", size=(20, 22), in_channels=3, classes=4)
    lengths = model(torch.rand(2, 3, 20, 22))
    assert lengths.shape == (2, 4)
    assert (lengths < 1).all()


def test_every_network_has_one_shape():
    plain = models.build("z2cnn")
    assert isinstance(plain, et.Canonicalized)
    assert isinstance(plain.backbone, models.Z2CNN)
    assert (len(plain.canonicalizer.layers), plain.chart) == (0, None)
    seen = models.build("affnist", chart="log_polar", size=(40, 40))
    assert seen.chart.sampled.size == (40, 40)
    assert seen.backbone.wraps == (True, False)
    layered = models.build("affnist", layers=["cartesian"], size=(40, 40))
    assert layered.chart is None
    assert layered.backbone.wraps == (False, False)


@pytest.mark.parametrize("name", models.NETWORKS)
def test_a_classifier_alone_is_the_backbone_behind_an_empty_stack(name):
    model = models.build(name, in_channels=3)
    assert isinstance(model, et.Canonicalized)
    assert len(model.canonicalizer.layers) == 0
    assert all(key.startswith("backbone.") for key in model.state_dict())


@pytest.mark.parametrize("predictor", ["consistent", "softmax", "direct"])
def test_the_name_of_a_predictor_means_the_same_layer_everywhere(predictor):
    layers = {
        "models.build": lambda: models.build("resnet10", layers=["rotation"], predictor=predictor).canonicalizer.layers[
            0
        ],
        "Canonicalizer": lambda: et.Canonicalizer(["rotation"], predictor=predictor).layers[0],
        "make_layer": lambda: make_layer("rotation", predictor=predictor),  # et audit --group
        "layer": lambda: (
            et.SpatialTransformer("rotation")
            if predictor == "direct"
            else et.EquivariantTransformer("rotation", predictor=predictor)
        ),
    }
    images, found = glyphs(64)[:2], {}
    for door, make in layers.items():
        torch.manual_seed(0)
        layer = make().eval()
        torch.manual_seed(1)
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=0.1)
        found[door] = (type(layer), layer.chart, layer.sampled, layer(images).pose)
    (kind, chart, sampled, pose), *others = found.values()
    for other in others:
        assert other[:3] == (kind, chart, sampled)
        torch.testing.assert_close(other[3], pose, rtol=0, atol=0)


@every_pair(et.CHARTS, ["cartesian"])
def test_every_chart_can_be_a_layer(predictor, layers):
    model = models.build(layers=layers, chart="log_polar", predictor=predictor).eval()
    assert model(glyphs(64)[:2]).shape == (2, 10)
    kinds = {type(layer) for layer in model.canonicalizer.layers}
    assert kinds == {et.SpatialTransformer if predictor == "direct" else et.EquivariantTransformer}


@every_pair(["x_shear"], ["cartesian"])
def test_two_iterations_run_the_layers_on_their_own_result(predictor, layers):
    torch.manual_seed(0)
    once, twice = (models.build(layers=layers, predictor=predictor, iterations=n).eval() for n in (1, 2))
    twice.load_state_dict(once.state_dict())
    found = twice.canonicalizer(glyphs(64))
    first = once.canonicalizer(glyphs(64))
    assert found.names == 2 * first.names
    torch.testing.assert_close(found.pose[:, : len(first.names)], first.pose)


@every_pair(["x_shear", "log_polar"], ["cartesian"])
def test_complete_networks_learn(predictor, layers):
    torch.manual_seed(0)
    model = models.build(layers=layers, chart="log_polar", predictor=predictor, dropout=0.0)
    images, labels = glyphs(64), torch.arange(4)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(8):
        out = model.canonicalizer(images)
        loss = F.cross_entropy(model.read(out), labels)
        losses.append(loss.item())
        if predictor == "posterior":  # its poses carry no gradient
            loss = loss + et.alignment_loss(out)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < 0.7 * losses[0]
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_charts_with_sheets_become_channels():
    assert models.build(chart="log_log", in_channels=3)(torch.rand(2, 3, 64, 64)).shape == (2, 10)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_log_polar_networks_do_not_see_quarter_turns(turns):
    """A quarter turn is a shift by 16 of 64 angles."""
    torch.manual_seed(0)
    images = glyphs(64)
    turned = images.rot90(turns, (2, 3))
    model = settled(models.build(chart="log_polar"), images)
    torch.testing.assert_close(model(turned), model(images), rtol=1e-4, atol=1e-4)
    plain = settled(models.build(), images)
    assert (plain(turned) - plain(images)).abs().max() > 1e-2


def test_log_polar_radii_begin_at_one_over_the_width():
    model = models.build("affnist", chart="log_polar", size=(40, 40))
    radii = model.chart.grid.norm(dim=-1)
    torch.testing.assert_close(radii.min(), torch.tensor(1 / 40))
    torch.testing.assert_close(radii.max(), torch.tensor(math.sqrt(2)))


def test_a_chart_shows_the_fill_value_outside_the_image():
    images = torch.zeros(1, 1, 32, 32)
    for fill, expected in ((-0.4, -0.4), (None, 0.0)):
        seen = ChartSampler("log_polar", fill=fill)(images)
        assert seen[0, 0, -1, 0] == pytest.approx(expected)  # a distance of sqrt 2 to the left
        assert seen[0, 0, 0, 0] == pytest.approx(0.0)  # next to the centre


def test_a_chart_in_front_is_a_stack_that_finds_no_pose():
    """The direct predictor begins with poses of zero."""
    torch.manual_seed(0)
    images = glyphs(64)
    model = models.build(layers=["x_shear"], chart="log_polar", predictor="direct").eval()
    alone = nn.Sequential(ChartSampler(model.chart.sampled), model.backbone).eval()
    torch.testing.assert_close(model(images), alone(images))


@pytest.mark.parametrize(
    ("name", "reach"),
    [
        ("cartesian", (1, 1)),
        ("rotation", (math.pi,)),
        ("log_polar", (math.pi, math.log(10 * math.sqrt(2)) / 2)),
        ("x_scale", (math.log(10) / 2,)),
        ("hyperbolic_rotation", (math.log(6),)),
        ("y_shear", (5,)),
        ("y_perspective", (3,)),
    ],
)
def test_direct_poses_reach_half_of_the_range_in_the_paper(name, reach):
    (layer,) = models.build(layers=[name], predictor="direct").canonicalizer.layers
    nn.init.constant_(layer.predictor.head.bias, 100.0)
    torch.testing.assert_close(layer(torch.rand(1, 1, 64, 64)).pose, torch.tensor([reach], dtype=torch.float32))


@pytest.mark.parametrize("name", et.CHARTS)
def test_every_chart_has_its_ranges_in_the_paper(name):
    chart = paper_chart(name, (48, 40))
    assert chart.size == (48 // chart.sheets, 40)
    assert chart.periodic == et.chart(name).periodic
    assert chart.centre == tuple((low + high) / 2 for low, high in chart.ranges)
    assert chart.coverage(64) > 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": "z2cn"}, "unknown network 'z2cn'. Did you mean 'z2cnn'"),
        ({"layers": ["shear_x"]}, "unknown chart 'shear_x'"),
        ({"layers": ["x_sheer"], "predictor": "softmax"}, "Did you mean 'x_shear'"),
        ({"layers": "x_shear"}, r"a list of names, got 'x_shear'; did you mean \['x_shear'\]"),
        ({"chart": "logpolar"}, "Did you mean 'log_polar'"),
        ({"predictor": "soft_max"}, "Did you mean 'softmax'"),
    ],
)
def test_unknown_names(options, message):
    with pytest.raises(ValueError, match=message):
        models.build(**options)


def test_layers_take_a_predictor_that_was_made_for_them():
    class Middle(nn.Module):
        def forward(self, seen):
            pose = torch.full((seen.shape[0], 1), 0.25)
            return Prediction(pose, torch.ones_like(pose), ())

    images = torch.rand(2, 1, 16, 16)
    for kind in (et.EquivariantTransformer, et.SpatialTransformer):
        assert kind("x_shear", predictor=Middle())(images).pose.tolist() == [[0.25], [0.25]]


# Capsules


def reference_route(votes, iterations):
    """The procedure of the capsule paper, one capsule at a time."""
    inputs, outputs, _ = votes.shape
    agreement = [[0.0] * outputs for _ in range(inputs)]
    for _ in range(iterations):
        coupling = [torch.tensor(row).softmax(0) for row in agreement]
        sums = [sum(coupling[i][j] * votes[i, j] for i in range(inputs)) for j in range(outputs)]
        capsules = [s.norm() ** 2 / (1 + s.norm() ** 2) * s / s.norm() for s in sums]
        for i in range(inputs):
            for j in range(outputs):
                agreement[i][j] += float(votes[i, j] @ capsules[j])
    return torch.stack(capsules), torch.stack(coupling)


@given(st.integers(0, 1000), st.integers(1, 4), st.floats(0.01, 3))
def test_routing_follows_the_procedure(seed, iterations, scale):
    generator = torch.Generator().manual_seed(seed)
    votes = scale * torch.randn(2, 5, 3, 4, generator=generator)
    capsules, coupling = route(votes, iterations)
    for i in range(2):
        expected = reference_route(votes[i], iterations)
        torch.testing.assert_close((capsules[i], coupling[i]), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(coupling.sum(-1), torch.ones(2, 5))
    assert (coupling >= 0).all()
    assert (capsules.norm(dim=-1) < 1).all()


def test_agreement_draws_votes_together():
    """Capsules that agree on the first class and scatter on the second give more and more to the first."""
    torch.manual_seed(0)
    scattered = F.normalize(torch.randn(10, 4), dim=-1)
    scattered = scattered - scattered.mean(0)
    votes = torch.stack((torch.tensor([1.0, 0, 0, 0]).expand(10, 4), scattered), 1)[None]
    shares = [route(votes, iterations)[1][0, :, 0].mean() for iterations in (1, 2, 3)]
    assert 0.5 == shares[0] < shares[1] < shares[2]


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3))
def test_squashing_keeps_the_direction_and_bounds_the_length(entries):
    vector = torch.tensor(entries, dtype=torch.float64, requires_grad=True)
    squashed = squash(vector)
    length = vector.detach().norm()
    torch.testing.assert_close(squashed.norm(), length**2 / (1 + length**2))
    assert squashed.norm() < 1
    torch.testing.assert_close(squashed * length, vector * squashed.norm())
    squashed.sum().backward()
    assert vector.grad.isfinite().all()


def test_the_margin_loss_is_zero_beyond_both_margins():
    lengths = torch.tensor([[0.95, 0.05], [0.1, 0.9]])
    assert models.margin_loss(lengths, torch.tensor([0, 1])) == 0
    swapped = models.margin_loss(lengths, torch.tensor([1, 0]))
    expected = ((0.9 - 0.05) ** 2 + 0.5 * (0.95 - 0.1) ** 2 + (0.9 - 0.1) ** 2 + 0.5 * (0.9 - 0.1) ** 2) / 2
    torch.testing.assert_close(swapped, torch.tensor(expected))


def test_the_decoder_sees_the_capsule_of_the_class_alone():
    decoder = models.CapsuleDecoder(2, 5, size=(6, 7))
    labels = torch.tensor([4, 0])
    capsules = torch.rand(2, 5, 16)
    pixels = decoder(capsules, labels)
    assert pixels.shape == (2, 2, 6, 7)
    assert ((pixels > 0) & (pixels < 1)).all()
    others = F.one_hot(labels, 5)[..., None] == 0
    torch.testing.assert_close(decoder(torch.where(others, 9.0, capsules), labels), pixels)
    assert not torch.equal(decoder(capsules.flip(-1), labels), pixels)


def test_a_capsule_network_and_its_decoder_learn():
    torch.manual_seed(0)
    images, labels = F.avg_pool2d(glyphs(40), 2), torch.arange(4)
    network, decoder = models.CapsuleNetwork(1, 4, size=(20, 20)), models.CapsuleDecoder(1, 4, size=(20, 20))
    optimiser = torch.optim.Adam([*network.parameters(), *decoder.parameters()], lr=1e-3)
    losses = []
    for _ in range(15):
        capsules = network.capsules(images)
        margin = models.margin_loss(capsules.norm(dim=-1), labels)
        drawn = models.reconstruction_loss(decoder(capsules, labels), images)
        optimiser.zero_grad()
        (margin + drawn).backward()
        optimiser.step()
        losses.append((margin.item(), drawn.item()))
    assert losses[-1][0] < 0.5 * losses[0][0]
    assert losses[-1][1] < 0.7 * losses[0][1]


@pytest.mark.parametrize("size", [20, 28, 40])
def test_class_capsules_begin_short_whatever_the_size_of_the_images(size):
    torch.manual_seed(0)
    images = 4 * (torch.rand(2, 1, size, size) > 0.8).float() - 0.3  # like normalised digits
    lengths = models.CapsuleNetwork(size=(size, size))(images)
    assert lengths.shape == (2, 10)
    assert lengths.max() < 0.3  # near 1 the gradient vanishes


@pytest.mark.parametrize(
    ("options", "message"),
    [({"size": (16, 28)}, r"at least 17 x 17 pixels, got \(16, 28\)"), ({"iterations": 0}, "at least one iteration")],
)
def test_capsule_networks_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        models.CapsuleNetwork(**options)
