"""Layers in every floating dtype: outputs, gradients and running statistics are finite on images of any content."""

import contextlib
import copy
import functools

import pytest
import torch
from pairs import takes
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.nn import Augmented
from equivariant_transformers.nn.conv import ScaleNorm

SPIRAL = et.Group.from_generator([[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]], name="spiral")
HALVES = [torch.float16, torch.bfloat16]
PRECISIONS = [*HALVES, torch.float32, torch.float64, "autocast"]


@functools.cache
def charts():
    """Every chart of the table and two derived ones, with few samples for speed."""
    found = (*et.CHARTS.values(), et.derive(SPIRAL), et.derive(et.RADIAL_LENS))
    return {chart.name: chart.replace(size=(12, 16)) for chart in found}


def layers_of(predictor):
    if predictor == "direct":
        return [et.SpatialTransformer(chart, channels=4) for chart in charts().values()]
    return [
        et.EquivariantTransformer(chart, predictor=predictor, channels=4)
        for name, chart in charts().items()
        if takes(predictor, name)
    ]


def stacks():
    shear, rotation, lens = (charts()[name] for name in ("x_shear", "rotation", "radial_lens"))
    layers = [shear, et.SpatialTransformer("x_scale", channels=4), lens, rotation]
    stack = et.Canonicalizer(
        layers, channels=4, iterations=2, min_confidence=0.5, pose_noise=0.1, predictor="consistent"
    )
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    model = et.Canonicalized(
        backbone, et.Canonicalizer([rotation, shear], channels=4, predictor="consistent"), chart="log_polar"
    )
    return [Augmented(stack, {"rotation": 1.0}), model]


@functools.cache
def modules(kind):
    torch.manual_seed(0)
    return stacks() if kind == "stacks" else layers_of(kind)


def pictures(size):
    """Images that hold nothing, little and much, two of each: `(7, 2, 1, *size)`."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(2, 1, *size, generator=generator)
    pixel = torch.zeros(2, 1, *size)
    pixel[:, :, size[0] // 2, size[1] // 3] = 1
    constants = [torch.full_like(noise, value) for value in (0.0, 1 / 3, 1.0, 255.0)]
    return torch.stack((*constants, pixel, noise, 255 * noise))


def every_number(module, images, loss_scale):
    """Yield the name and the values of each output, gradient and running statistic of a step on `images`."""
    images = images.clone().requires_grad_()
    out = module(images)
    if isinstance(out, torch.Tensor):
        outputs = {"output": out}
    else:
        heatmaps = {f"heat map {place}": heatmap for place, heatmap in enumerate(out.heatmaps)}
        outputs = {"image": out.image, "pose": out.pose, "confidence": out.confidence, **heatmaps}
    (loss_scale * sum(values.double().mean() for values in outputs.values())).backward()
    yield from outputs.items()
    yield "gradient of the images", images.grad
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            yield f"gradient of {name}", parameter.grad
    for name, statistic in module.named_buffers():
        if statistic.is_floating_point() and "grid" not in name:
            yield name, statistic


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("kind", [*et.PREDICTORS, "stacks"])
def test_everything_is_finite(kind, precision):
    dtype, context = precision, contextlib.nullcontext()
    if precision == "autocast":
        dtype, context = torch.float32, torch.autocast("cpu", torch.bfloat16)
    # The gradients of eight layers multiply beyond the range of float16: a GradScaler would choose such a scale.
    scale = 2**-10 if kind == "stacks" and precision == torch.float16 else 1
    sizes = [(16, 16), (1, 1), (2, 3), (5, 64)]
    for number, original in enumerate(modules(kind)):
        module = copy.deepcopy(original).to(dtype)
        for size in sizes if kind == "stacks" else [sizes[number % 4]]:
            images = pictures(size).to(dtype)
            for batch in (images.flatten(0, 1), *images):
                module.train(len(batch) == 2).zero_grad()
                with context:
                    numbers = list(every_number(module, batch, scale))
                for name, values in numbers:
                    assert values.isfinite().all(), (module, size, name, batch)


@pytest.mark.parametrize("dtype", HALVES)
def test_running_statistics_hold_squares_that_float16_cannot(dtype):
    norm = ScaleNorm(2, momentum=0.5).to(dtype)
    images = torch.full((1, 2, 3, 3), 1000.0, dtype=dtype)
    norm(images)
    torch.testing.assert_close(norm.mean_square, torch.full((2,), 0.5 * (1 + 1e6)), rtol=1e-2, atol=0)
    norm.eval()
    torch.testing.assert_close(norm(images), torch.full_like(images, 2**0.5), rtol=1e-2, atol=0)


def test_running_statistics_survive_a_change_of_dtype():
    norm = ScaleNorm(1)
    norm.mean_square.fill_(1e6 + 1)
    assert norm.half().float().mean_square == 1e6 + 1
    assert norm.bfloat16().double().mean_square.dtype == torch.float64
    assert norm.to("meta").half().mean_square.is_meta


@pytest.mark.parametrize("dtype", HALVES)
def test_layers_learn_in_half_precision(dtype):
    torch.manual_seed(0)
    layer = et.EquivariantTransformer("x_translation", channels=8).to(dtype)
    x = torch.linspace(-1, 1, 32)
    places = torch.linspace(-0.5, 0.5, 8)
    blobs = torch.exp(-20 * ((x - places[:, None, None]) ** 2 + x[:, None] ** 2))[:, None].to(dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = (layer(blobs).pose[:, 0] + places - 0.3).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
