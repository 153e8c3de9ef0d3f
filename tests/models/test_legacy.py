"""`load_2019` against a literal reference: loops over grid points, one 3x3 matrix a transformation, plain functions."""

import contextlib
import copy
import math
import os
import pickle

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from equivariant_transformers.geometry import resampling
from equivariant_transformers.models.legacy import load_2019

PI, LOG, ROOT = math.pi, math.log, math.sqrt
FOUR = ["ShearX", "HyperbolicRotation", "PerspectiveX", "PerspectiveY"]
RANGES = {  # u, v
    "Translation": ((-1, 1), (-1, 1)),
    "Rotation": ((0, ROOT(2)), (-PI, PI)),
    "Scale": ((-LOG(10), LOG(2) / 2), (-PI, PI)),
    "RotationScale": ((-LOG(10), LOG(2) / 2), (-PI, PI)),
    "ShearX": ((-1, 1), (-5, 5)),
    "ShearY": ((-1, 1), (-5, 5)),
    "ScaleX": ((-LOG(10), 0), (-1, 1)),
    "ScaleY": ((-LOG(10), 0), (-1, 1)),
    "HyperbolicRotation": ((-ROOT(0.5), ROOT(0.5)), (-LOG(6), LOG(6))),
    "PerspectiveX": ((1, 7), (-0.99 * PI / 2, 0.99 * PI / 2)),
    "PerspectiveY": ((1, 7), (-0.99 * PI / 2, 0.99 * PI / 2)),
}
PREDICTED = dict.fromkeys(("Rotation", "ShearX", "ShearY", "HyperbolicRotation"), "v")
PREDICTED |= dict.fromkeys(("Scale", "ScaleX", "ScaleY", "PerspectiveX", "PerspectiveY"), "u")
PREDICTED |= dict.fromkeys(("Translation", "RotationScale"), "uv")
PERIODIC = ("Rotation", "Scale", "RotationScale")
COORDS = {  # the chart and ranges before the classifier, for 64 samples
    "identity_grid": ("Translation", (-1, 1), (-1, 1)),
    "polar_grid": ("Rotation", (0, ROOT(2)), (-PI, PI)),
    "logpolar_grid": ("Scale", (-LOG(64), LOG(2) / 2), (-PI, PI)),
    "shearx_grid": ("ShearX", (-1, 1), (-5, 5)),
    "sheary_grid": ("ShearY", (-1, 1), (-5, 5)),
    "scalex_grid": ("ScaleX", (-LOG(32), 0), (-1, 1)),
    "scaley_grid": ("a true y-scale chart", (-LOG(32), 0), (-1, 1)),
    "hyperbolic_grid": ("HyperbolicRotation", (-ROOT(0.5), ROOT(0.5)), (-LOG(6), LOG(6))),
    "perspectivex_grid": ("PerspectiveX", (1, 8), (-0.99 * PI / 2, 0.99 * PI / 2)),
    "perspectivey_grid": ("PerspectiveY", (1, 8), (-0.99 * PI / 2, 0.99 * PI / 2)),
}

BLOCKS = {"resnet10": (1, 1, 1, 1), "resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}


# The reference


def steps(limits, count):
    return [limits[0] + (limits[1] - limits[0]) * i / (count - 1) for i in range(count)]


def reference_grid(name, u_limits, v_limits, height, width):
    us = steps(u_limits, width)
    whole, half = steps(v_limits, height), steps(v_limits, height // 2)
    if name == "Translation":
        rows = [[(u, v) for u in us] for v in whole]
    elif name == "Rotation":
        rows = [[(u * math.cos(v), u * math.sin(v)) for u in us] for v in whole]
    elif name in ("Scale", "RotationScale"):
        rows = [[(math.exp(u) * math.cos(v), math.exp(u) * math.sin(v)) for u in us] for v in whole]
    elif name == "ShearX":
        rows = [[(u * v, u) for u in us] for v in whole]
    elif name == "ShearY":
        rows = [[(u, u * v) for u in us] for v in whole]
    else:
        if name in ("ScaleX", "ScaleY"):
            first = [[(math.exp(u), v) for u in us] for v in half]
            second = [[(-math.exp(u), v) for u in us] for v in half]
        elif name == "a true y-scale chart":
            first = [[(v, math.exp(u)) for u in us] for v in half]
            second = [[(v, -math.exp(u)) for u in us] for v in half]
        elif name == "HyperbolicRotation":
            first = [[(u * math.exp(v), u * math.exp(-v)) for u in us] for v in half]
            second = [[(u * math.exp(v), -u * math.exp(-v)) for u in us] for v in half]
        elif name == "PerspectiveX":
            first = [[(-1 / u, math.tan(v) / u) for u in reversed(us)] for v in half]
            second = [[(1 / u, math.tan(v) / u) for u in us] for v in half]
        elif name == "PerspectiveY":
            first = [[(math.tan(v) / u, -1 / u) for u in reversed(us)] for v in half]
            second = [[(math.tan(v) / u, 1 / u) for u in us] for v in half]
        rows = first + (first[-1:] if height % 2 else []) + second
    return torch.tensor(rows)


def reference_matrix(name, values):
    t = values[0]
    if name == "Translation":
        return torch.tensor([[1, 0, t], [0, 1, values[1]], [0, 0, 1]])
    if name in ("Rotation", "RotationScale"):
        scale, angle = (1, t) if name == "Rotation" else (math.exp(t), values[1])
        c, s = scale * math.cos(angle), scale * math.sin(angle)
        return torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    matrix = torch.eye(3)
    if name in ("Scale", "ScaleX", "HyperbolicRotation"):
        matrix[0, 0] = math.exp(t)
    if name in ("Scale", "ScaleY"):
        matrix[1, 1] = math.exp(t)
    if name == "HyperbolicRotation":
        matrix[1, 1] = math.exp(-t)
    place = {"ShearX": (0, 1), "ShearY": (1, 0), "PerspectiveX": (2, 0), "PerspectiveY": (2, 1)}
    if name in place:
        matrix[place[name]] = t
    return matrix


def reference_sample(images, matrices, grid):
    points = torch.cat((grid, torch.ones(*grid.shape[:2], 1)), -1).reshape(1, -1, 3).expand(len(images), -1, -1)
    moved = torch.bmm(points, matrices.transpose(1, 2))
    moved = (moved[..., :2] / moved[..., 2:]).reshape(len(images), *grid.shape)  # whatever the sign of w
    return F.grid_sample(images, moved, mode="bilinear", padding_mode="zeros", align_corners=True)


def reference_pad(x, amount, axis, mode):
    if mode is None:
        return x
    first, last = x.narrow(axis, 0, amount), x.narrow(axis, x.shape[axis] - amount, amount)
    if mode == "constant":
        first, last = torch.zeros_like(first), torch.zeros_like(last)
    return torch.cat((last, x, first), axis)


def reference_norm(weights, name, x):
    mean, variance, scale, shift = (
        weights[f"{name}.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / torch.sqrt(variance + 1e-5) * scale + shift


def reference_values(weights, name, options, equivariant, seen):
    """A value `(B,)` for each predicted axis, in units of half its range."""
    reach = options["kernel_size"] // 2
    v_mode = "cyclic" if name in PERIODIC else "constant"
    x, step_u, step_v = seen, 2 / (seen.shape[3] - 1), 2 / (seen.shape[2] - 1)
    for layer, stride in enumerate(options["strides"], 1):
        x = reference_pad(reference_pad(x, reach, 3, "constant"), reach, 2, v_mode)
        x = raw = F.conv2d(x, weights[f"conv{layer}.weight"], stride=stride)
        x = F.leaky_relu(reference_norm(weights, f"bn{layer}", x), 0.1)
        step_u, step_v = step_u * stride, step_v * stride
    if not equivariant:
        pooled = F.adaptive_max_pool2d(raw, options["kernel_size"]).flatten(1)
        return list(torch.tanh(pooled @ weights["fc.weight"].T + weights["fc.bias"]).unbind(1))
    values = []
    for axis in PREDICTED[name]:
        profile, step, mode = (x.amax(2), step_u, "constant") if axis == "u" else (x.amax(3), step_v, v_mode)
        evidence = F.conv1d(reference_pad(profile, reach, 2, mode), weights[f"conv_{axis}.weight"])[:, 0]
        heatmap = torch.exp(evidence) / torch.exp(evidence).sum(1, keepdim=True)
        places = torch.tensor([step * (i - (heatmap.shape[1] - 1) / 2) for i in range(heatmap.shape[1])])
        if mode == "cyclic":
            sine, cosine = (heatmap * torch.sin(PI * places)).sum(1), (heatmap * torch.cos(PI * places)).sum(1)
            centroid = torch.atan2(sine, cosine) / PI
        else:
            centroid = (heatmap * places).sum(1)
        values.append(centroid + torch.tanh(weights[f"bias_{axis}"]))
    return values


def reference_classifier(weights, options, x):
    w_mode, h_mode = options["pad_mode"]
    for layer in range(1, 8):
        x = F.conv2d(reference_pad(reference_pad(x, 1, 3, w_mode), 1, 2, h_mode), weights[f"conv{layer}.weight"])
        if layer < 7:
            x = F.relu(reference_norm(weights, f"bn{layer}", x))
        if layer < 4 and options["pool"][layer - 1]:
            x = F.avg_pool2d(x, 2)
    return (x + weights["conv7.bias"][:, None, None]).flatten(2).amax(2)


def reference_resnet(weights, options, x):
    w_mode, h_mode = options["pad_mode"]

    def padded(x, reach):
        return reference_pad(reference_pad(x, reach, 3, w_mode), reach, 2, h_mode)

    def layer(x, at, number, stride=1, reach=1):
        x = F.conv2d(padded(x, reach), weights[f"{at}conv{number}.weight"], stride=stride)
        return reference_norm(weights, f"{at}bn{number}", x)

    x = F.max_pool2d(padded(F.relu(layer(x, "", 1, reach=2)), 1), 3, 2)
    for stage in range(1, 5):
        for block in range(20):
            at, stride = f"layer{stage}.{block}.", 2 if stage > 1 and block == 0 else 1
            if f"{at}conv1.weight" not in weights:
                break
            shortcut = x
            if stride == 2:
                shortcut = F.conv2d(x, weights[f"{at}downsample.0.weight"], stride=2)
                shortcut = reference_norm(weights, f"{at}downsample.1", shortcut)
            x = F.relu(layer(F.relu(layer(x, at, 1, stride)), at, 2) + shortcut)
    return x.mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]


def below(weights, prefix):
    return {key[len(prefix) :]: value for key, value in weights.items() if key.startswith(prefix)}


def reference(checkpoint, images):
    """The logits, and the parameters of each transformation."""
    height, width = (length // checkpoint["downsample"] for length in images.shape[2:])
    weights = checkpoint["state_dict"]
    matrices = torch.eye(3).expand(len(images), 3, 3)
    found = []
    for i, name in enumerate(checkpoint["tfs"]):
        seen = reference_sample(images, matrices, reference_grid(name, *RANGES[name], height, width))
        predictor = below(weights, f"transformer.transformers.{i}.predictor.")
        values = reference_values(predictor, name, checkpoint["tf_opts"], checkpoint["equivariant"], seen)
        for k, axis in enumerate(PREDICTED[name]):
            low, high = RANGES[name]["uv".index(axis)]
            values[k] = values[k] * (high - low) / 2
        found.append(torch.stack(values, 1))
        own = torch.stack([reference_matrix(name, row) for row in found[-1].tolist()])
        matrices = torch.bmm(matrices, own)
    chart, u_limits, v_limits = COORDS[checkpoint["coords"]]
    seen = reference_sample(images, matrices, reference_grid(chart, u_limits, v_limits, height, width))
    classifier = reference_classifier if checkpoint["net"] == "BasicCNN" else reference_resnet
    return classifier(below(weights, "net."), checkpoint["net_opts"], seen), found


# Checkpoints in the format of 2019


def random_norm(prefix, channels):
    return {
        f"{prefix}.weight": 0.5 + torch.rand(channels),
        f"{prefix}.bias": 0.3 * torch.randn(channels),
        f"{prefix}.running_mean": 0.3 * torch.randn(channels),
        f"{prefix}.running_var": 0.5 + torch.rand(channels),
        f"{prefix}.num_batches_tracked": torch.tensor(1000),
    }


def random_conv(*shape, gain=1.4):
    return gain * torch.randn(shape) / math.sqrt(math.prod(shape[1:]))


def random_checkpoint(
    tfs, *, equivariant=True, coords="logpolar_grid", nf=8, kernel=3, channels=1, head=3.0, **changes
):
    torch.manual_seed(0)
    weights = {}
    for i, name in enumerate(tfs):
        at = f"transformer.transformers.{i}.predictor"
        weights[f"{at}.conv1.weight"] = random_conv(nf, channels, kernel, kernel)
        weights |= random_norm(f"{at}.bn1", nf)
        weights[f"{at}.conv2.weight"] = random_conv(nf, nf, kernel, kernel)
        weights |= random_norm(f"{at}.bn2", nf)
        if equivariant:
            weights |= {f"{at}.conv_{axis}.weight": random_conv(1, nf, kernel, gain=head) for axis in "uv"}
            weights |= {f"{at}.bias_{axis}": 0.2 * torch.randn(()) for axis in "uv"}
        else:
            outputs = len(PREDICTED[name])
            weights[f"{at}.fc.weight"] = random_conv(outputs, nf * kernel**2, gain=0.5)
            weights[f"{at}.fc.bias"] = 0.2 * torch.randn(outputs)
    for layer in range(1, 8):
        outputs = 10 if layer == 7 else nf
        weights[f"net.conv{layer}.weight"] = random_conv(outputs, channels if layer == 1 else nf, 3, 3)
        weights |= {"net.conv7.bias": torch.randn(10)} if layer == 7 else random_norm(f"net.bn{layer}", nf)
    return {
        "tfs": list(tfs),
        "coords": coords,
        "net": "BasicCNN",
        "equivariant": equivariant,
        "downsample": 1,
        "tf_opts": {"in_channels": channels, "kernel_size": kernel, "nf": nf, "strides": (2, 1)},
        "net_opts": {"nf": nf, "p_dropout": 0.3, "pad_mode": (None, "cyclic"), "pool": (True, True, False)}
        | ({"input_channels": channels} if channels != 1 else {}),
        "seed": 7,
        "epoch": 291,
        "valid_err": 0.0288,
        "state_dict": weights,
    } | changes


def random_resnet_checkpoint(tfs, net, *, nf=4, pad_mode=("constant", "constant")):
    """As the SVHN experiments wrote it: three channels, strides of 1, the image's own coordinates."""
    checkpoint = random_checkpoint(tfs, channels=3, coords="identity_grid")
    checkpoint["tf_opts"] |= {"strides": (1, 1)}
    kept = {key: value for key, value in checkpoint["state_dict"].items() if key.startswith("transformer.")}
    weights = {"conv1.weight": random_conv(nf, 3, 5, 5)} | random_norm("bn1", nf)
    for stage, blocks in enumerate(BLOCKS[net]):
        outputs = nf * 2**stage
        for block in range(blocks):
            at, widens = f"layer{stage + 1}.{block}", stage > 0 and block == 0
            inputs = outputs // 2 if widens else outputs
            weights[f"{at}.conv1.weight"] = random_conv(outputs, inputs, 3, 3)
            weights |= random_norm(f"{at}.bn1", outputs)
            weights[f"{at}.conv2.weight"] = random_conv(outputs, outputs, 3, 3)
            weights |= random_norm(f"{at}.bn2", outputs)
            if widens:
                weights[f"{at}.downsample.0.weight"] = random_conv(outputs, inputs, 1, 1)
                weights |= random_norm(f"{at}.downsample.1", outputs)
    weights |= {"fc.weight": random_conv(10, 8 * nf), "fc.bias": torch.randn(10)}
    return checkpoint | {
        "net": net,
        "net_opts": {"nf": nf, "p_dropout": 0.3, "pad_mode": pad_mode},
        "state_dict": kept | {f"net.{key}": value for key, value in weights.items()},
    }


def random_images(batch=3, channels=1, height=64, width=64):
    coarse = torch.randn(batch, channels, 9, 9, generator=torch.Generator().manual_seed(5))
    return F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=True)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads only get in each other's way on networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def load(tmp_path):
    def save_and_load(content, *, zipped=False):
        torch.save(content, tmp_path / "checkpoint.pt", _use_new_zipfile_serialization=zipped)
        return load_2019(tmp_path / "checkpoint.pt")

    return save_and_load


@contextlib.contextmanager
def double_precision():
    """Random weights amplify rounding from layer to layer; in float64 nothing but a difference is left."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def double_reference(checkpoint, images):
    weights = {key: value.double() for key, value in checkpoint["state_dict"].items()}
    with double_precision():
        return reference(checkpoint | {"state_dict": weights}, images.double())


def assert_agrees(load, checkpoint, images):
    network = load(checkpoint).double()
    with double_precision(), torch.no_grad():
        logits = network(images.double())
    expected, found = double_reference(checkpoint, images)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-7)
    assert expected.std(0).max() > 0.01, "the logits should depend on the image"
    for name, values in zip(checkpoint["tfs"], found, strict=True):
        assert values.std(0).min() > 1e-3, f"the parameters of {name} should depend on the image"
    return found


@pytest.mark.parametrize("equivariant", [True, False])
@pytest.mark.parametrize("name", RANGES)
def test_each_transformation_agrees_with_the_reference(load, name, equivariant):
    assert_agrees(load, random_checkpoint([name], equivariant=equivariant), random_images())


@pytest.mark.parametrize("equivariant", [True, False])
def test_four_layers_agree_with_the_reference(load, equivariant):
    assert_agrees(load, random_checkpoint(FOUR, equivariant=equivariant, nf=32), random_images())


def test_all_transformations_at_once_agree_with_the_reference(load):
    checkpoint = random_checkpoint(RANGES, tf_opts={"in_channels": 1, "kernel_size": 3, "nf": 8, "strides": (2, 2)})
    assert_agrees(load, checkpoint, random_images())


@pytest.mark.parametrize("tfs", [*([name] for name in RANGES), FOUR], ids="-".join)
def test_single_precision_agrees_with_the_reference(load, tfs):
    checkpoint = random_checkpoint(tfs, head=1.0)
    expected, _ = double_reference(checkpoint, random_images())
    torch.testing.assert_close(load(checkpoint)(random_images()), expected.float(), rtol=0, atol=1e-4)


def test_what_lies_behind_the_horizon_is_sampled_as_in_2019(load):
    checkpoint = random_checkpoint(["PerspectiveX", "PerspectiveY"])
    checkpoint["state_dict"]["transformer.transformers.0.predictor.bias_u"] = torch.tensor(1.0)
    found = assert_agrees(load, checkpoint, random_images())
    assert found[0].min() > 1.1  # so that w = 1 + theta x is negative at the left border


@pytest.mark.parametrize("coords", COORDS)
def test_each_coordinate_system_agrees_with_the_reference(load, coords):
    assert_agrees(load, random_checkpoint([], coords=coords), random_images())


@pytest.mark.parametrize("mode", [("constant", "constant"), ("cyclic", None), ("constant", "cyclic")])
def test_each_padding_agrees_with_the_reference(load, mode):
    options = {"nf": 8, "p_dropout": 0.0, "pad_mode": mode, "pool": (True, False, True)}
    assert_agrees(load, random_checkpoint(["Rotation"], net_opts=options), random_images())


def test_odd_sizes_channels_kernels_and_downsampling_agree_with_the_reference(load):
    checkpoint = random_checkpoint(["HyperbolicRotation", "ScaleX"], kernel=5, channels=3, coords="polar_grid")
    assert_agrees(load, checkpoint, random_images(2, 3, 65, 68))
    assert_agrees(load, checkpoint | {"downsample": 2}, random_images(2, 3, 131, 128))


@pytest.mark.parametrize("net", BLOCKS)
def test_each_resnet_agrees_with_the_reference(load, net):
    checkpoint = random_resnet_checkpoint(["Translation", "RotationScale", "ScaleX"], net)
    assert_agrees(load, checkpoint, random_images(2, 3, 32, 32))


@pytest.mark.parametrize("mode", [("cyclic", "constant"), ("constant", "cyclic"), ("cyclic", "cyclic")])
def test_each_padding_of_a_resnet_agrees_with_the_reference(load, mode):
    checkpoint = random_resnet_checkpoint([], "resnet10", pad_mode=mode)
    assert_agrees(load, checkpoint, random_images(2, 3, 32, 36))


def test_the_published_network_has_its_number_of_parameters(load):
    network = load(random_checkpoint(FOUR, nf=32))
    assert sum(parameter.numel() for parameter in network.parameters()) == 88_946


def test_the_network_is_ready_and_says_what_it_is(load):
    network = load(random_checkpoint(FOUR), zipped=True)
    assert not network.training
    assert network.tfs == tuple(FOUR)
    assert (network.coords, network.equivariant, network.downsample) == ("logpolar_grid", True, 1)
    assert (network.seed, network.epoch, network.valid_err) == (7, 291, 0.0288)
    images = random_images()
    logits = network(images)
    assert network.net(images).shape == logits.shape == (3, 10)
    assert network.transformer(images).image(images).shape == images.shape
    for same in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        torch.testing.assert_close(same(images), logits, rtol=0, atol=0)


def test_weights_that_a_module_saved_on_a_gpu_load_anywhere(load, monkeypatch):
    checkpoint = random_checkpoint(FOUR)
    network = load(checkpoint)
    monkeypatch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
    again = load(checkpoint | {"state_dict": network.state_dict()})
    assert torch.equal(again(random_images()), network(random_images()))


def test_images_are_sampled_once_for_each_layer_and_once_for_the_classifier(load, monkeypatch):
    calls = []
    original = resampling.F.grid_sample
    monkeypatch.setattr(resampling.F, "grid_sample", lambda *a, **k: calls.append(1) or original(*a, **k))
    load(random_checkpoint(FOUR))(random_images())
    assert len(calls) == len(FOUR) + 1


# Errors


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*missing\.pt"):
        load_2019(tmp_path / "missing.pt")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x02", b"PK\x03\x04 cut short", bytes(range(256))])
def test_a_file_of_another_kind(tmp_path, content):
    path = tmp_path / "other.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.pt is not a checkpoint of 2019"):
        load_2019(path)


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_does_not_run(load, tmp_path, zipped):
    trap = tmp_path / "the code ran"
    with pytest.raises(ValueError, match="is not a checkpoint of 2019"):
        load(random_checkpoint(FOUR) | {"seed": RunsCode(trap)}, zipped=zipped)
    assert not trap.exists()


def without(dictionary, key):
    return {other: value for other, value in dictionary.items() if other != key}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list"),
        (
            without(random_checkpoint(["ShearX"]), "tf_opts"),
            "missing entries are tf_opts, and unknown entries are none",
        ),
        (
            random_checkpoint(["ShearX"]) | {"optimizer": 1},
            "missing entries are none, and unknown entries are optimizer",
        ),
        (random_checkpoint(["ShearX"]) | {"tfs": "ShearX"}, "tfs must be list or tuple, got 'ShearX'"),
        (random_checkpoint(["ShearX"]) | {"tfs": ["shear_x"]}, "unknown transformation 'shear_x'.*ShearX"),
        (random_checkpoint(["ShearX"]) | {"coords": "logpolar"}, "Did you mean 'logpolar_grid'"),
        (random_checkpoint(["ShearX"]) | {"net": "resnet50"}, "unknown net 'resnet50'. Did you mean 'resnet"),
        (random_resnet_checkpoint([], "resnet10", pad_mode=(None, "cyclic")), "unknown padding None"),
        (random_checkpoint(["ShearX"]) | {"net": "CNN"}, "unknown net 'CNN'.*BasicCNN"),
        (random_checkpoint(["ShearX"], net_opts={"nf": 8, "pad_mode": "cyclical"}), "Did you mean 'cyclic'"),
        (random_checkpoint(["ShearX"], net_opts={"width": 8}), "cannot be used.*'width'"),
        (random_checkpoint(["ShearX"], tf_opts={"in_channels": 1}), "cannot be used.*'nf'"),
    ],
)
def test_a_checkpoint_that_cannot_be_used(load, content, message):
    with pytest.raises(ValueError, match=message):
        load(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: without(weights, "net.bn3.running_var"), "Missing key.*net.bn3.running_var"),
        (lambda weights: weights | {"net.bn7.weight": torch.ones(8)}, "Unexpected key.*net.bn7.weight"),
        (lambda weights: weights | {"net.conv7.bias": torch.ones(11)}, "size mismatch for net.conv7.bias"),
    ],
)
def test_weights_that_do_not_fit(load, change, message):
    checkpoint = random_checkpoint(["ShearX"])
    checkpoint["state_dict"] = change(checkpoint["state_dict"])
    with pytest.raises(ValueError, match=f"(?s)do not fit the network that it describes.*{message}"):
        load(checkpoint)
