"""The kernels for features against the same computed by torch in float32; on a GPU, or by `test_interpreter.py`."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from interpreted import DEVICE, NEEDS_KERNELS

from equivariant_transformers.geometry.atlas import CHARTS
from equivariant_transformers.models import z2cnn
from equivariant_transformers.nn import kernels, posterior
from equivariant_transformers.nn import predictors as pose
from equivariant_transformers.nn.kernels import plain
from equivariant_transformers.nn.visibility import Window

BFLOAT16 = 0.02  # how far results may be off, relative to their size, where operands are rounded to bfloat16

pytestmark = NEEDS_KERNELS


@pytest.fixture(scope="module")
def fused():
    """The operations in kernels; their module needs Triton."""
    from equivariant_transformers.nn.kernels import fused

    return fused


@pytest.fixture(autouse=True)
def few_programs(fused, monkeypatch):
    """Let each program work on several blocks, as on large batches."""
    from equivariant_transformers.nn.kernels import launch

    monkeypatch.setattr(launch, "_MOST", 3)


def autocast(dtype=torch.bfloat16):
    return torch.autocast(DEVICE, dtype)


def difference(ours, theirs):
    assert ours.shape == theirs.shape
    assert ours.isfinite().all()
    return ((ours.to(theirs.dtype) - theirs).norm() / theirs.norm()).item()


def rounded(*shape):
    """Random numbers that bfloat16 can represent."""
    return torch.randn(*shape, device=DEVICE).bfloat16().float()


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


@pytest.mark.parametrize(
    ("channels", "stride", "padding", "wraps"),
    [
        (1, (2, 2), (1, 1), (False, False)),
        (2, (2, 1), (0, 0), (False, False)),
        (1, (1, 1), (0, 0), (False, True)),
        (3, (1, 1), (0, 0), (True, True)),
    ],
)
def test_images_are_convolved(fused, channels, stride, padding, wraps):
    torch.manual_seed(0)
    images = rounded(3, channels, 11, 18).requires_grad_()
    weight = rounded(32, channels, 3, 3).requires_grad_()
    result, *sums = fused.convolve(images, weight, stride=stride, padding=padding, wraps=wraps[::-1])
    expected = F.conv2d(padded(images, padding, wraps), weight, stride=stride).permute(0, 2, 3, 1)
    theirs = with_sums(expected)
    assert difference(result, expected) < BFLOAT16
    sums = torch.stack(sums) / 100
    assert difference(sums, theirs[1]) < BFLOAT16
    check_gradients([result, sums], theirs, [images, weight])


@pytest.mark.parametrize(
    ("padding", "wraps"), [((1, 1), (False, False)), ((0, 1), (True, False)), ((0, 0), (False,) * 2)]
)
def test_features_are_convolved(fused, padding, wraps):
    torch.manual_seed(0)
    x = torch.randn(3, 10, 13, 32, device=DEVICE).bfloat16().requires_grad_()
    weight = (rounded(32, 32, 3, 3) / 16).requires_grad_()
    result, *sums = fused.convolve(x, weight, padding=padding, wraps=wraps[::-1])
    images = padded(x.float().permute(0, 3, 1, 2), padding, wraps)
    expected = F.conv2d(images, weight).permute(0, 2, 3, 1)
    theirs = with_sums(expected)
    assert difference(result, expected) < BFLOAT16
    sums = torch.stack(sums) / 100
    assert difference(sums, theirs[1]) < BFLOAT16
    check_gradients([result, sums], theirs, [x, weight])


def some_features(fused, *shape, centred):
    torch.manual_seed(0)
    raw = torch.randn(*shape, 32, device=DEVICE).bfloat16().requires_grad_()
    scale, shift = (torch.randn(32, device=DEVICE).requires_grad_() for _ in range(2))
    expected = F.leaky_relu(raw.float() * scale + shift, 0.1)
    if centred:
        expected = expected - F.leaky_relu(shift, 0.1)
    return fused.Features(raw, scale, shift, 0.1, centred), expected


@pytest.mark.parametrize(("window", "centred"), [(1, False), (1, True), (2, False), (3, True)])
def test_features_are_normalised_and_activated(fused, window, centred):
    some, activated = some_features(fused, 4, 9, 13, centred=centred)
    value = some.value(window)
    expected = F.avg_pool2d(activated.permute(0, 3, 1, 2), window).permute(0, 2, 3, 1)
    assert difference(value, expected) < BFLOAT16
    check_gradients([value], [expected], [some.raw, some.scale, some.shift])


@pytest.mark.parametrize("rows", [9, 32, 75])
@pytest.mark.parametrize(("sheets", "centred"), [(1, False), (2, False), (1, True)])
def test_the_strongest_of_rows_and_sheets_is_found(fused, rows, sheets, centred):
    some, activated = some_features(fused, 2 * sheets, rows, 7, centred=centred)
    expected = activated.reshape(2, sheets * rows, 7, 32).max(1).values.transpose(1, 2)
    (found,) = some.strongest(1, sheets)
    torch.testing.assert_close(found, expected)
    check_gradients([found], [expected], [some.raw, some.scale, some.shift])


@pytest.mark.parametrize("rows", [9, 32, 75])
@pytest.mark.parametrize("centred", [False, True])
def test_rows_are_averaged(fused, rows, centred):
    some, activated = some_features(fused, 2, rows, 7, centred=centred)
    weights = torch.rand(rows, device=DEVICE) / rows
    expected = (activated * weights[:, None, None]).sum(1).transpose(1, 2)
    found = some.average(weights)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    check_gradients([found], [expected], [some.raw, some.scale, some.shift])


def test_two_poses_take_the_strongest_of_rows_and_of_columns(fused):
    some, activated = some_features(fused, 6, 9, 13, centred=False)
    by_sheet = activated.reshape(3, 2, 9, 13, 32)
    expected = [by_sheet.amax((1, 2)).transpose(1, 2), by_sheet.amax((1, 3)).transpose(1, 2)]
    for found, theirs in zip(some.strongest(2, 2), expected, strict=True):
        assert difference(found, theirs) < BFLOAT16


def networks():
    """Networks, images, and the kernels that a training step launches, forwards and backwards."""
    with torch.random.fork_rng(devices=[]):  # the same networks in each run
        torch.manual_seed(0)
        read = ["_convolve", "_activate", "_moments"], ["_total_gradient", "_activate_backward", "_convolve_backward"]
        pooled = [*read[0], "_pool"], ["_pool_backward", *read[1]]
        finished = [*read[0], "_activate"], ["_activate_backward", *read[1]]
        for name in ("x_shear", "hyperbolic_rotation", "rotation", "log_polar"):
            chart = CHARTS[name] if DEVICE == "cuda" else CHARTS[name].replace(size=(14, 11))
            images, one = torch.rand(4, 1, chart.sheets, *chart.size), len(chart.groups) == 1
            kinds = {"softmax": pooled if one else finished, "consistent": pooled if one else ([], [])}
            for kind, launches in kinds.items():
                yield pytest.param(pose.PREDICTORS[kind](chart, 1), images, launches, id=f"{kind} {name}")
        direct = pose.DirectPredictor(CHARTS["x_shear"], 1)
        torch.nn.init.uniform_(direct.head.weight, 0.0, 0.002)  # of one sign, lest rounding be large beside the sum
        yield pytest.param(direct, torch.rand(4, 1, 1, 21, 19), finished, id="direct")
        forwards = ["_convolve", "_activate", *["_moments", "_activate"] * 5, "_moments"]
        launches = forwards, [*["_total_gradient", "_activate_backward"] * 6, "_convolve_backward"]
        for classes, wraps, size in ((10, (False, True), (12, 50)), (20, (True, True), (13, 14))):
            network = z2cnn.Z2CNN(classes=classes, dropout=0.0, wraps=wraps)
            size = (64, 64) if DEVICE == "cuda" else size
            yield pytest.param(network, torch.rand(3, 1, *size), launches, id=f"Z2CNN, {classes} classes")


@pytest.fixture
def launched(fused, monkeypatch):
    """The names of the kernels that are launched during a test."""
    names = []
    for module in (fused.activations, fused.convolution):
        for name, kernel in vars(module).items():
            if hasattr(kernel, "pre_run_hooks"):
                monkeypatch.setattr(kernel, "pre_run_hooks", [lambda *_, name=name, **__: names.append(name)])
    return names


def outcome(result):
    """What is compared of the result of a network: logits, heat maps, or the pose where there are none."""
    return result if isinstance(result, torch.Tensor) else torch.cat(result.heatmaps or [result.pose], -1)


@pytest.mark.parametrize(("network", "images", "launches"), [*networks()])
def test_networks_compute_the_same_by_these_kernels(network, images, launches, launched):
    plain, lazy = (copy.deepcopy(network).to(DEVICE) for _ in range(2))
    images = images.to(DEVICE)
    for training in (True, False):
        plain.train(training)
        lazy.train(training)
        expected = outcome(plain(images))
        with autocast():
            found = outcome(lazy(images.requires_grad_(training)))
        assert difference(found, expected.detach()) < 0.05
        assert launched == launches[0]
        launched.clear()
        if training:
            found.float().square().sum().backward()
            assert launched == launches[1] + ["_gather"] * bool(launches[1])
            assert all(p.grad.isfinite().all() for p in lazy.parameters() if p.grad is not None)
            launched.clear()
    for ours, theirs in zip(lazy.buffers(), plain.buffers(), strict=True):
        if ours.is_floating_point():
            torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.002)


def test_images_that_need_no_gradient_get_none(launched):
    network = z2cnn.Z2CNN(channels=16, wraps=(True, True)).to(DEVICE)
    with autocast():
        network(torch.rand(2, 1, 8, 8, device=DEVICE)).sum().backward()
    assert "_convolve_backward" in launched
    assert "_gather" not in launched


def test_each_kernel_is_launched_by_some_network(fused):
    """With the tests above: no kernel is left out of them."""
    known = {name for network in networks() for part in network.values[2] for name in part} | {"_gather"}
    called_by_kernels = {"_source", "_target", "_patches", "keep"}
    written = {
        name
        for module in (fused.activations, fused.convolution)
        for name, value in vars(module).items()
        if hasattr(value, "pre_run_hooks")
    }
    assert known == written - called_by_kernels


def test_only_what_the_kernels_can_do_is_given_to_them(fused):
    def conv(channels=32, stride=1):
        return torch.nn.Conv2d(1, channels, 3, stride=stride)

    images = torch.rand(2, 1, 8, 8, device=DEVICE)
    assert kernels.operations(images, conv()) is plain
    with autocast():
        assert kernels.operations(images, conv()) is fused
        assert kernels.operations(images, conv(stride=2), conv()) is fused
        assert kernels.operations(images, conv(), conv(stride=2)) is plain
        assert kernels.operations(images, conv(24)) is plain
        assert kernels.operations(images.double(), conv()) is plain
        assert kernels.operations(images.expand(-1, 4, -1, -1), conv()) is plain
        assert kernels.operations(images[:0], conv()) is plain
    with autocast(torch.float16):
        assert kernels.operations(images, conv()) is plain
    assert kernels.operations(torch.empty(2, 1, 8, 8, device="meta"), conv()) is plain


# Blocks of the predictor for photographs


def blocks(chart, dtype=torch.float32, channels=5, batch=3):
    """Blocks with random weights and statistics in both implementations, and their input."""
    torch.manual_seed(0)
    part = posterior.PosteriorPredictor(chart, 2, channels=channels).trunk.to(DEVICE, dtype)
    for weight in part.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    for block in part:
        block.norm.running_mean.normal_()
        block.norm.running_var.uniform_(0.5, 2)
    x = torch.randn(batch, 2 * chart.sheets, *chart.size, device=DEVICE, dtype=dtype, requires_grad=True)
    return part, copy.deepcopy(part), x


BLOCKS = {
    "rotation": CHARTS["rotation"].replace(size=(10, 16)),
    "one row wraps": CHARTS["dilation"].replace(size=(9, 12)),
    "nothing wraps": CHARTS["x_shear"].replace(size=(7, 16)),
    "sheets": CHARTS["x_perspective"].replace(size=(6, 16)),
    "two poses": CHARTS["log_polar"].replace(size=(8, 10)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chart", BLOCKS.values(), ids=BLOCKS)
def test_blocks_compute_the_same_by_kernels(chart, dtype, training, monkeypatch):
    fused, plain_blocks, x = blocks(chart, dtype)
    fused.train(training), plain_blocks.train(training)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    found = fused(x)
    with monkeypatch.context() as patch:
        patch.setattr(posterior, "block_operations", lambda *_: plain)
        expected = plain_blocks(x)
    assert difference(found, expected) < tolerance
    for (name, one), other in zip(fused.named_buffers(), plain_blocks.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, msg=name)
    weights = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad((result * weights).sum(), (x, *part.parameters()))
        for result, part in ((found, fused), (expected, plain_blocks))
    ]
    for one, other in zip(*gradients, strict=True):
        assert difference(one, other) < 20 * tolerance
    with torch.no_grad():
        assert difference(fused.eval()(x), plain_blocks.eval()(x)) < tolerance


def test_blocks_are_normalised_in_bfloat16_under_autocast():
    fused, plain_blocks, x = blocks(BLOCKS["rotation"], channels=16)
    fused.train(), plain_blocks.train()
    with autocast():
        found = fused(x)
    assert found.dtype == torch.bfloat16
    assert difference(found, plain_blocks(x)) < 5 * BFLOAT16


def test_means_far_from_zero_are_exact(monkeypatch):
    """The variance is not the difference of two large numbers once the running mean is near the mean."""
    fused, plain_blocks, x = blocks(BLOCKS["rotation"])
    for part in (fused, plain_blocks):
        part.train()
        part[0].norm.running_mean.fill_(1000)
        part[0].conv.bias = torch.nn.Parameter(torch.full((5,), 1000.0, device=DEVICE))
    found = fused(x)
    monkeypatch.setattr(posterior, "block_operations", lambda *_: plain)
    assert difference(found, plain_blocks(x)) < 2e-3


def test_only_ordinary_normalisation_is_given_to_the_kernels():
    x = torch.randn(2, 3, 8, 8, device=DEVICE)
    norm = torch.nn.BatchNorm2d
    assert kernels.block_operations(x, [norm(4)]) is not plain
    for other in (norm(4, affine=False), norm(4, track_running_stats=False), norm(4, momentum=None)):
        assert kernels.block_operations(x, [norm(4), other]) is plain
    assert kernels.block_operations(x[:0], [norm(4)]) is plain
    assert kernels.block_operations(x.to("meta"), [norm(4)]) is plain


WINDOWS = {
    "circles": CHARTS["rotation"].replace(size=(8, 16)),
    "rays": CHARTS["dilation"].replace(size=(16, 8)),
    "rows": CHARTS["x_shear"].replace(size=(8, 8)),
    "sheets": CHARTS["x_perspective"].replace(size=(4, 16)),
    "two poses": CHARTS["log_polar"].replace(size=(8, 16)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("chart", WINDOWS.values(), ids=WINDOWS)
def test_samples_are_standardised_by_a_kernel(chart, shared, dtype):
    torch.manual_seed(0)
    shape = (chart.sheets, *chart.size)
    images = (3 + torch.randn(4, 3, *shape, device=DEVICE)).to(dtype)
    valid = torch.ones(1 if shared else 4, *shape, dtype=torch.bool, device=DEVICE)
    valid[-1, :, 3:, 2:] = torch.rand(chart.sheets, chart.size[0] - 3, chart.size[1] - 2, device=DEVICE) > 0.1
    window = Window(chart).to(DEVICE, torch.promote_types(dtype, torch.float32))
    from equivariant_transformers.nn.kernels import standardisation

    assert standardisation.fits(images, window)
    found = kernels.standardised(images, valid, window)
    assert found.dtype == dtype
    tolerance = BFLOAT16 if dtype == torch.bfloat16 else 1e-5
    expected = plain.standardised(images, valid, window)
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    hidden = kernels.standardised(images, torch.zeros_like(valid), window)
    torch.testing.assert_close(hidden, plain.standardised(images, torch.zeros_like(valid), window))


def test_samples_that_need_a_gradient_or_have_odd_sizes_are_standardised_in_torch(monkeypatch):
    from equivariant_transformers.nn.kernels import standardisation

    monkeypatch.setattr(standardisation, "standardised", None)
    for size, needed in (((8, 16), True), ((9, 16), False), ((8, 12), False)):
        chart = CHARTS["x_shear"].replace(size=size)
        images = torch.randn(2, 3, 1, *size, device=DEVICE, requires_grad=needed)
        valid = torch.ones(1, 1, *size, dtype=torch.bool, device=DEVICE)
        assert kernels.standardised(images, valid, Window(chart).to(DEVICE)).requires_grad == needed
