import copy
import math
import pickle

import pytest
import sympy
import torch
from glyphs import glyphs
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.geometry import resampling
from equivariant_transformers.geometry.reduction import Pyramid
from equivariant_transformers.nn import TTA, Augmentation, Augmented, ChartSampler

CUDA = pytest.mark.cuda
STACK = ["x_shear", "hyperbolic_rotation"]


def small_model(predictor="consistent"):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    canonicalizer = et.Canonicalizer(STACK, in_channels=1, predictor=predictor, channels=8)
    if predictor == "posterior":
        for layer in canonicalizer.layers:
            nn.init.normal_(layer.predictor.head.weight, std=30.0)
    return et.Canonicalized(backbone, canonicalizer, chart="log_polar").eval()


@pytest.fixture
def images():
    return glyphs(48)


# What a layer does


def test_the_layer_removes_its_pose(images):
    layer = et.EquivariantTransformer("x_shear").eval()
    out = layer(images)
    inverse = et.Warp.projective(et.group("x_shear").matrix(-out.pose[:, 0]))
    torch.testing.assert_close(out.image, inverse.image(images))
    assert out.names == ("x_shear",)
    assert out.valid.shape == (4, 1, 48, 48)
    assert torch.equal(out.warp.restore(out.image), out.warp.inverse().image(out.image))


def test_a_stack_composes_to_the_right(images):
    canonicalizer = et.Canonicalizer(["x_shear", "rotation", "log_log"], channels=8, predictor="consistent").eval()
    out = canonicalizer(images)
    assert out.names == ("x_shear", "rotation", "x_scale", "y_scale")
    assert out.pose.shape == out.confidence.shape == (4, 4)
    assert len(out.heatmaps) == 4
    matrix = torch.eye(3)
    for name, theta in zip(out.names, out.pose.T, strict=True):
        matrix = matrix @ et.group(name).matrix(-theta)
    torch.testing.assert_close(out.warp.matrix, matrix)


def test_each_layer_samples_once_and_the_result_is_sampled_once(images, monkeypatch):
    calls = []
    original = resampling.F.grid_sample
    monkeypatch.setattr(resampling.F, "grid_sample", lambda *a, **k: calls.append(1) or original(*a, **k))
    out = et.Canonicalizer(["x_shear", "rotation", "x_scale"], channels=4, predictor="consistent")(images)
    assert len(calls) == 3
    _ = out.image
    assert len(calls) == 4
    small_model()(images)
    assert len(calls) == 4 + len(STACK) + 1


def test_later_layers_see_what_earlier_ones_did(images):
    canonicalizer = et.Canonicalizer(["x_shear", "rotation"], channels=8, predictor="consistent").eval()
    first, second = canonicalizer.layers
    canonicalizer.fill = 0.0
    out = canonicalizer(images)
    after_first = first(images).warp
    torch.testing.assert_close(second.predict(Pyramid(images), after_first, 0.0).pose, out.pose[:, 1:])


def test_iterations_run_the_stack_on_its_own_result(images):
    torch.manual_seed(0)
    once = et.Canonicalizer(["x_shear"], channels=8, predictor="consistent").eval()
    twice = et.Canonicalizer(list(once.layers), iterations=2, predictor="consistent").eval()
    out = twice(images)
    assert out.pose.shape == (4, 2)
    torch.testing.assert_close(out.pose[:, :1], once(images).pose)
    # The first pass leaves little for the second to do.
    assert out.pose[:, 1].abs().max() < 0.2 * out.pose[:, 0].abs().max()


def test_a_stack_has_the_fill_value_of_its_layers(images):
    layer = et.EquivariantTransformer("x_shear", fill=0.5)
    assert et.Canonicalizer([layer, "rotation"], predictor="consistent")(images).fill == layer(images).fill == 0.5


def test_the_geometry_is_float32_whatever_the_default():
    torch.set_default_dtype(torch.bfloat16)
    try:
        grid = et.EquivariantTransformer("x_shear").grid
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(grid, et.chart("x_shear").grid())


def test_pose_noise_has_the_given_size_in_training_alone(images):
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(["x_shear"], channels=4, pose_noise=0.01, predictor="consistent")
    still = copy.deepcopy(canonicalizer)
    still.pose_noise = 0.0
    many = images[:1].expand(500, -1, -1, -1)
    noise = canonicalizer(many).pose - still(many).pose
    assert noise.std().item() == pytest.approx(0.01 * 10, rel=0.15)  # the chart's range is 10 wide
    torch.testing.assert_close(canonicalizer.eval()(many).pose, still.eval()(many).pose)


def test_min_confidence_holds_back_uncertain_poses(images):
    torch.manual_seed(0)
    layer = et.EquivariantTransformer("x_shear", channels=8).eval()
    free, scaled = (
        et.Canonicalizer([layer], min_confidence=min_confidence, predictor="consistent")(images)
        for min_confidence in (None, 0.9)
    )
    certain = (free.confidence / 0.9).clamp(max=1)
    assert (certain < 1).any()
    torch.testing.assert_close(scaled.pose, free.pose * certain)


def test_a_pose_range_limits_the_pose(images):
    torch.manual_seed(0)
    layer = et.EquivariantTransformer("x_translation", pose_range=(-0.01, 0.01)).eval()
    moved = et.Warp.projective(et.group("x_translation").matrix(0.4)).image(images)
    torch.testing.assert_close(layer(moved).pose, torch.full((4, 1), 0.01))


def test_each_parameter_has_its_own_pose_range(images):
    torch.manual_seed(0)
    layer = et.EquivariantTransformer("log_polar", pose_range=((-0.02, 0.02), (-0.01, 0.01)), channels=4).eval()
    pose = layer(images).pose
    assert (pose.abs() <= torch.tensor([0.02, 0.01])).all()


def test_the_fill_value_is_the_mean_of_the_border(images):
    torch.manual_seed(0)
    layer = et.EquivariantTransformer("x_shear", channels=8).eval()
    torch.testing.assert_close(layer(0.4 + 0.6 * images).pose, layer(images).pose, rtol=0, atol=1e-3)
    out = layer(0.4 + 0.6 * images)
    torch.testing.assert_close(out.fill, torch.full((4, 1, 1, 1), 0.4), rtol=0, atol=1e-4)


def test_mixed_stacks_and_flows(images):
    lens = et.derive(et.RADIAL_LENS, name="lens")
    layers = [et.SpatialTransformer("rotation"), et.EquivariantTransformer(lens, channels=4), "x_shear"]
    out = et.Canonicalizer(layers, predictor="consistent")(images)
    assert out.names == ("rotation", "radial_lens", "x_shear")
    assert (out.pose[:, 0] == 0).all()
    assert out.image.isfinite().all()


def test_a_spatial_transformer_begins_as_the_identity(images):
    out = et.SpatialTransformer("dilation")(images)
    assert torch.equal(out.image, images)


def test_dense_predictions_boxes_and_points_go_back(images):
    out = et.EquivariantTransformer("rotation").eval()(images)
    corner = torch.tensor([[[0.1, 0.2]]]).expand(4, 1, 2)
    there = out.warp.points(corner)
    torch.testing.assert_close(out.warp.inverse().points(there), corner)
    labels = (images > 0.5).long()
    assert out.warp.restore(labels).dtype == torch.long


# What can be done with it


@pytest.mark.parametrize("predictor", ["consistent", "softmax", "posterior"])
def test_compile_export_vmap_and_functional_call(images, predictor):
    model = small_model(predictor)
    expected = model(images)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), expected)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    torch.testing.assert_close(program.module()(images[:3]), expected[:3])
    torch.testing.assert_close(torch.func.functional_call(model, dict(model.named_parameters()), (images,)), expected)
    one_by_one = torch.func.vmap(lambda image: model(image[None])[0])(images)
    torch.testing.assert_close(one_by_one, expected, rtol=1e-4, atol=1e-4)


def test_the_whole_result_can_be_compiled_and_exported(images):
    canonicalizer = small_model().canonicalizer
    expected = canonicalizer(images)
    for run in (
        torch.compile(canonicalizer, fullgraph=True, backend="aot_eager"),
        torch.export.export(canonicalizer, (images,)).module(),
    ):
        out = run(images)
        torch.testing.assert_close(out.pose, expected.pose)
        torch.testing.assert_close(out.image, expected.image)


def test_flow_layers_export_too(images):
    layer = et.EquivariantTransformer(et.derive(radial_lens_formula(), name="lens"), channels=4).eval()
    program = torch.export.export(layer, (images,))
    torch.testing.assert_close(program.module()(images).pose, layer(images).pose)


def radial_lens_formula():
    x, y, theta = sympy.symbols("x y theta")
    shrink = sympy.sqrt(1 - 2 * theta * (x**2 + y**2))
    return x / shrink, y / shrink


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_geometry_keeps_its_precision_when_the_weights_change_theirs(images, dtype):
    torch.manual_seed(0)
    layer = et.EquivariantTransformer("rotation", channels=8).eval()
    expected, confidence, *_ = layer.predict(Pyramid(images), et.Warp.identity(), 0.0)
    clear = confidence > 0.05  # one of the glyphs looks nearly the same from every side
    layer = layer.to(dtype)
    assert layer.grid.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(layer.grid.float(), layer.chart.grid())
    for given in (images, images.to(dtype)):
        error = (layer(given).pose.float() - expected + torch.pi) % (2 * torch.pi) - torch.pi
        assert error[clear].abs().max() < {torch.bfloat16: 0.1, torch.float16: 0.02, torch.float64: 1e-4}[dtype]


def restless(layer):
    """A stack that uses all that a layer has, with weights that are not those of the start."""
    stack = et.Canonicalizer([layer], pose_noise=0.1, predictor="consistent")
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stack


@pytest.mark.parametrize("name", ["rotation", "x_shear", "log_polar"])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: et.EquivariantTransformer(name, channels=4),
        lambda name: et.EquivariantTransformer(name, predictor="softmax", channels=4),
        lambda name: et.SpatialTransformer(name, channels=4),
    ],
)
def test_only_the_weights_depend_on_where_a_layer_has_been(images, name, make):
    stack = restless(make(name))
    state = copy.deepcopy(stack.state_dict())
    with torch.device("meta"):
        empty = restless(make(name))
    torch.manual_seed(0)
    expected = stack(images).pose
    for other in (copy.deepcopy(stack).half().float(), empty.to_empty(device="cpu")):
        other.load_state_dict(state)
        torch.manual_seed(0)
        assert torch.equal(other(images).pose, expected)


def test_copies_pickles_and_state_dicts(images):
    model = small_model()
    expected = model(images)
    torch.testing.assert_close(copy.deepcopy(model)(images), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(images), expected)
    torch.manual_seed(1)
    other = small_model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(images), expected)


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("training", [False, True])
def test_any_batch_in_either_mode(images, batch, training):
    canonicalizer = et.Canonicalizer(["x_shear", "log_polar"], channels=4, predictor="consistent").train(training)
    out = canonicalizer(images[:batch])
    assert out.pose.shape == (batch, 3)
    assert out.image.shape == (batch, 1, 48, 48)
    assert out.valid.shape == (batch, 1, 48, 48)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_geometry_in_float32(images, dtype):
    model = small_model()
    expected = model.canonicalizer(images)
    with torch.autocast("cpu", dtype=dtype):
        out = model.canonicalizer(images)
        logits = model(images)
    assert out.warp.matrix.dtype == out.pose.dtype == torch.float32
    torch.testing.assert_close(out.pose, expected.pose, rtol=0, atol=0.03)
    torch.testing.assert_close(logits.float(), model(images), rtol=0.1, atol=0.05)


def test_gradients_reach_input_and_parameters():
    torch.manual_seed(0)
    layer = et.EquivariantTransformer(et.chart("rotation").replace(size=(6, 8)), channels=2).double().eval()
    with torch.no_grad():  # thresholds off zero, where the activations have a kink
        layer.predictor.activation1.bias.normal_()
        layer.predictor.activation2.bias.normal_()
    images = torch.rand(2, 1, 7, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda i: layer(i).pose, (images,))
    layer(images).image.square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@CUDA
@pytest.mark.parametrize("predictor", ["consistent", "softmax"])
def test_the_same_on_cuda(images, predictor):
    model = small_model(predictor)
    expected = model(images)
    model = model.cuda()
    torch.testing.assert_close(model(images.cuda()).cpu(), expected, rtol=1e-2, atol=1e-2)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(images.cuda()).cpu(), expected, rtol=1e-2, atol=1e-2)


@CUDA
def test_a_training_step_can_be_captured_in_a_cuda_graph(images):
    model = small_model().cuda().train()
    batch = images.cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(batch).sum().backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = model(batch).sum()
        loss.backward()
    graph.replay()
    torch.cuda.synchronize()
    assert loss.isfinite()


@CUDA
@pytest.mark.parametrize("pixels", [48, 224])
def test_inference_can_be_captured_in_a_cuda_graph(pixels):
    model = small_model().cuda()
    batch = glyphs(pixels).cuda()
    with torch.no_grad():
        expected = model(batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = model(batch)
        graph.replay()
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


# What is refused


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda _: et.EquivariantTransformer("x_shaer"), ValueError, "Did you mean 'x_shear'"),
        (lambda _: et.EquivariantTransformer("x_shear", predictor="soft"), ValueError, "The predictors are"),
        (lambda x: et.EquivariantTransformer("x_shear", in_channels=3)(x), ValueError, "images with 3 channels"),
        (lambda x: et.EquivariantTransformer("x_shear")(x.to(torch.uint8)), TypeError, "floating point"),
        (lambda x: et.EquivariantTransformer("x_shear")(x[0]), ValueError, r"shape \(B, C, H, W\)"),
        (
            lambda x: et.EquivariantTransformer("x_shear")(x / 0),
            ValueError,
            r"\[0, 1, 2, 3\] contain NaN or inf",
        ),
        (lambda _: et.EquivariantTransformer("x_shear", pose_range=(1, 0)), ValueError, "low < high"),
        (lambda _: et.EquivariantTransformer("log_polar", pose_range=(0, 1)), ValueError, "each of 2 parameters"),
        (lambda _: et.EquivariantTransformer("x_shear", pose_range=0.5), ValueError, "low, high"),
        (lambda _: et.EquivariantTransformer("x_shear", predictor="direct"), ValueError, "use SpatialTransformer"),
        (lambda _: et.EquivariantTransformer(et.chart("x_shear").replace(size=(2, 64))), ValueError, "at least 4 x 4"),
        (
            lambda _: et.EquivariantTransformer(et.chart("x_shear").replace(ranges=((100, 101), (-1, 1)))),
            ValueError,
            "must overlap the image",
        ),
        (lambda _: et.Canonicalizer("x_shear", predictor="consistent"), ValueError, "must be a list"),
        (
            lambda _: et.Canonicalizer(["x_shear", et.SpatialTransformer("rotation", 3)], predictor="consistent"),
            ValueError,
            "must agree",
        ),
        (lambda x: et.EquivariantTransformer("x_shear")(x.tolist()), TypeError, "must be a torch.Tensor"),
        (
            lambda _: et.Canonicalizer(
                [et.EquivariantTransformer("x_shear", fill=0.0)], fill=1.0, predictor="consistent"
            ),
            ValueError,
            "must agree",
        ),
        (
            lambda _: et.Canonicalizer("x_shear", predictor="consistent"),
            ValueError,
            r"layers must be a list, got 'x_shear'; write \['x_shear'\]",
        ),
        (lambda _: et.Canonicalizer(["x_shear"], iterations=0, predictor="consistent"), ValueError, "at least 1"),
        (lambda _: et.Canonicalizer(["x_shear"], min_confidence=2.0, predictor="consistent"), ValueError, r"\(0, 1\]"),
        (lambda _: et.Canonicalizer(["x_shear"], pose_noise=-0.1, predictor="consistent"), ValueError, r"\[0, 1\)"),
        (lambda _: et.Canonicalizer(5, predictor="consistent"), ValueError, "layers must be a list, got 5"),
        (
            lambda _: et.Canonicalizer(["x_shear"], iterations=1.5, predictor="consistent"),
            TypeError,
            "iterations must be a whole number, got 1.5",
        ),
        (
            lambda _: et.Canonicalizer(["x_shear"], iterations=10**30, predictor="consistent"),
            ValueError,
            "iterations must be at most 32",
        ),
        (
            lambda _: et.Canonicalizer(["x_shear"], min_confidence="high", predictor="consistent"),
            TypeError,
            "min_confidence must be a number, got 'high'",
        ),
        (
            lambda _: et.Canonicalizer(["x_shear"], pose_noise=[], predictor="consistent"),
            TypeError,
            r"pose_noise must be a number, got \[\]",
        ),
        (
            lambda _: et.Canonicalized(nn.Conv2d(3, 8, 3), "x_shear", chart="x_perspective"),  # two sheets
            TypeError,
            "the backbone does not start with a convolution",
        ),
        (lambda _: et.Canonicalized(nn.Conv2d(3, 8, 3), 3), TypeError, "or names such as .'rotation'., got 3"),
        (lambda _: Augmentation("rotation"), TypeError, "max_theta must map groups to numbers"),
        (lambda _: Augmentation({"rotation": "far"}), TypeError, "max_theta of 'rotation' must be a number"),
        (lambda _: et.SpatialTransformer("x_shear", predictor="softmax"), TypeError, "predictor must be a module"),
        (
            lambda x: et.EquivariantTransformer("x_shear", predictor=nn.Identity())(x),
            TypeError,
            "must return a Prediction",
        ),
        (
            lambda _: et.Canonicalized("z2cnn", et.Canonicalizer(["x_shear"], predictor="consistent")),
            TypeError,
            "backbone must be a module",
        ),
        (
            lambda _: et.Canonicalized(et.Canonicalizer(["rotation"]), nn.Flatten()),
            TypeError,
            r"got a Canonicalizer; write Canonicalized\(backbone, canonicalizer\)",
        ),
        (
            lambda _: et.EquivariantTransformer(et.group("rotation")),
            TypeError,
            r"got the group 'rotation'; et.chart\('rotation'\) returns its chart",
        ),
        (
            lambda _: et.Canonicalizer([et.Group.from_generator([[1, 0, 0], [0, 2, 0], [0, 0, 0]], name="own")]),
            TypeError,
            r"got the group 'own'; et.derive\(group\) returns its chart",
        ),
        (
            lambda _: et.Canonicalizer(["rotation"], in_channels=3)(torch.rand(2, 16, 24, 3)),
            ValueError,
            r"images.permute\(0, 3, 1, 2\)",
        ),
        (
            lambda _: et.Canonicalized(nn.Flatten(), "x_shear"),
            TypeError,
            r"channels of the images are unknown.*; write Canonicalizer\(\['x_shear'\], in_channels=3\)",
        ),
        (
            lambda _: et.Canonicalized(nn.Flatten(), ["rotation", "x_shear"]),
            TypeError,
            r"; write Canonicalizer\(\['rotation', 'x_shear'\], in_channels=3\)",
        ),
        (
            lambda x: et.Canonicalized(nn.Flatten(), et.Canonicalizer([])).read(x),
            TypeError,
            "must return a Canonicalization, got a Ten",
        ),
        (lambda _: Augmentation(torch.ones(2)), TypeError, "max_theta must map groups to numbers"),
        (lambda x: ChartSampler("x_shear")(x > 0), TypeError, "floating point"),
        (lambda x: ChartSampler("x_shear")(x[:, :, :0]), ValueError, "at least one pixel"),
        (lambda x: et.EquivariantTransformer("x_shear").to("meta")(x), ValueError, "on cpu and the layer is on meta"),
        (lambda x: ChartSampler("x_shear")(x.to("meta")), ValueError, "on meta and the layer is on cpu"),
    ],
)
def test_bad_input_is_explained(images, call, error, message):
    with pytest.raises(error, match=message):
        call(images)


@pytest.mark.parametrize("chart", ["x_shear", "log_polar"])
@pytest.mark.parametrize(
    "pose_range",
    [(), {}, {"low": 1}, "ab", ("0", "1"), (math.nan, 1), (0, 1, 2), (0, 10**400), (None, 1), [(1, 0)] * 2, True],
    ids=str,
)
def test_junk_is_not_a_pose_range(chart, pose_range):
    with pytest.raises(ValueError, match=r"pose_range must be \(low, high\)"):
        et.EquivariantTransformer(chart, pose_range=pose_range)


@pytest.mark.parametrize(
    "make",
    [
        lambda count: et.EquivariantTransformer("x_shear", count),
        lambda count: et.EquivariantTransformer("x_shear", channels=count),
        lambda count: et.EquivariantTransformer("x_shear", predictor="softmax", channels=count),
        lambda count: et.EquivariantTransformer("x_shear", count, predictor=nn.Identity()),
        lambda count: et.SpatialTransformer("x_shear", count),
        lambda count: et.SpatialTransformer("x_shear", channels=count),
        lambda count: et.Canonicalizer(["x_shear"], count, predictor="consistent"),
    ],
)
def test_channels_are_counted(make):
    for count, error in ((0, "at least 1"), (-1, "at least 1"), (10**9, "at most 4096"), (10**5000, "at most 4096")):
        with pytest.raises(ValueError, match=f"channels must be {error}, got"):
            make(count)
    for count in (1.5, "3", None, True, [], torch.ones(2)):
        with pytest.raises(TypeError, match="channels must be a whole number, got"):
            make(count)


@pytest.mark.parametrize(
    "make",
    [
        lambda fill: et.EquivariantTransformer("x_shear", fill=fill),
        lambda fill: et.SpatialTransformer("x_shear", fill=fill),
        lambda fill: et.Canonicalizer(["x_shear"], fill=fill, predictor="consistent"),
        lambda fill: ChartSampler("x_shear", fill=fill),
    ],
)
def test_a_fill_value_is_a_finite_number(make):
    for fill in (math.nan, math.inf, 1e39, 10**400, "black", [], 1j, torch.ones(2)):
        with pytest.raises((TypeError, ValueError), match="fill must be"):
            make(fill)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["layer", "baseline", "stack", "model", "augmented", "tta"])
def test_images_of_other_kinds_are_refused(images, kind, training):
    layer = et.EquivariantTransformer("x_shear", channels=4)
    stack = et.Canonicalizer([layer], predictor="consistent")
    module = {
        "layer": layer,
        "baseline": et.SpatialTransformer("x_shear", channels=4),
        "stack": stack,
        "model": et.Canonicalized(nn.Flatten(), stack),
        "augmented": Augmented(et.Canonicalized(nn.Flatten(), layer), {"rotation": 1.0}),
        "tta": TTA(et.Canonicalized(nn.Flatten(), layer), {"rotation": 1.0}, 2),
    }[kind].train(training)
    for given, message in {
        "a list": (images.tolist(), "must be a torch.Tensor, got list"),
        "an array": (images.numpy(), "must be a torch.Tensor, got ndarray"),
        "nothing": (None, "must be a torch.Tensor, got NoneType"),
        "sparse": (images.to_sparse(), "must be dense, got the layout torch.sparse_coo"),
        "nested": (torch.nested.as_nested_tensor(list(images), layout=torch.jagged), "got a nested tensor"),
        "complex": (images + 0j, "got torch.complex64"),
        "bool": (images > 0, "got torch.bool"),
        "float8": (images.to(torch.float8_e4m3fn), "got torch.float8_e4m3fn"),
        "a number": (images.sum(), r"shape \(B, C, H, W\), got \(\)"),
        "no rows": (images[:, :, :0], "at least one pixel"),
        "no columns": (images[..., :0], "at least one pixel"),
        "meta": (images.to("meta"), "on the meta device have no pixels"),
    }.values():
        with pytest.raises((TypeError, ValueError), match=message):
            module(given)


@pytest.mark.parametrize(
    "given", ["rotation", et.chart("rotation"), ["rotation", "x_shear"], ("rotation", et.chart("dilation"))]
)
def test_names_are_canonicalizers_with_the_channels_of_the_backbone(given):
    backbone = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), nn.AvgPool2d(4))
    torch.manual_seed(0)
    model = et.Canonicalized(backbone, given)
    torch.manual_seed(0)
    same = et.Canonicalizer([given] if isinstance(given, (str, et.Chart)) else given, in_channels=2)
    weights = same.state_dict()
    assert weights.keys() == model.canonicalizer.state_dict().keys()
    assert all(torch.equal(value, weights[name]) for name, value in model.canonicalizer.state_dict().items())
    assert model.eval()(torch.rand(2, 2, 16, 16)).shape == (2, 4, 3, 3)
    on_two_sheets = et.Canonicalized(nn.Conv2d(6, 4, 3), "rotation", chart="x_perspective")
    assert on_two_sheets.canonicalizer.in_channels == 3


def test_a_list_of_layers_keeps_their_channels():
    layer = et.EquivariantTransformer("rotation", in_channels=5)
    assert et.Canonicalized(nn.Flatten(), [layer, "x_shear"]).canonicalizer.in_channels == 5
    with pytest.raises(ValueError, match="the layers take"):
        et.Canonicalized(nn.Flatten(), [layer, et.EquivariantTransformer("x_shear", in_channels=1)])


def test_what_is_printed_names_the_charts():
    layer = et.EquivariantTransformer("x_shear", in_channels=3, pose_range=(-0.5, 0.5))
    stack = et.Canonicalizer([layer, "rotation"], in_channels=3, min_confidence=0.3)
    printed = repr(et.Canonicalized(nn.Flatten(), stack, chart="log_polar"))
    assert "x_shear, in_channels=3, pose_range=((-0.5, 0.5),)" in printed
    assert "EquivariantTransformer(\n        rotation, in_channels=3\n" in printed
    assert "in_channels=3, min_confidence=0.3" in printed
    assert "ChartGrid(log_polar)" in printed
    assert repr(Augmentation({"rotation": 0.3})) == "Augmentation({'rotation': 0.3})"
