"""Random layers on random images of odd dtype, shape and content: finite numbers, or an error that says why not."""

import functools

import pytest
import torch
from pairs import takes
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.nn import TTA, Augmented, ChartSampler

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OTHERS = [torch.uint8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
SIZES = [(1, 1), (1, 7), (2, 3), (5, 64), (16, 16), (33, 20), (70, 9)]


@functools.cache
def charts():
    spiral = et.derive(et.Group.from_generator([[0.2, -1, 0], [1, 0.2, 0], [0, 0, 0]], name="spiral"))
    return [chart.replace(size=size) for chart in (*et.CHARTS.values(), spiral) for size in ((8, 12), (16, 5))]


def layer(random, channels):
    options = {
        "channels": random.choice([1, 2, 5]),
        "pose_range": random.choice([None, None, (-0.1, 0.2)]),
        "fill": random.choice([None, 0.0, 0.7]),
    }
    chart = random.choice(charts())
    if options["pose_range"] and len(chart.groups) == 2:
        options["pose_range"] = [options["pose_range"]] * 2
    if random.random() < 0.3:
        return et.SpatialTransformer(chart, channels, **options)
    kinds = [kind for kind in ("consistent", "softmax", "centre") if takes(kind, chart.name)]
    return et.EquivariantTransformer(chart, channels, predictor=random.choice(kinds), **options)


def module(random, channels):
    kind = random.choice(["layer", "layer", "stack", "model", "in chart", "augmented", "tta"])
    if kind == "layer":
        return layer(random, channels)
    if kind == "in chart":
        return ChartSampler(random.choice(charts()), fill=random.choice([None, 0.5]))
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    augment = random.choice([{"rotation": 1.0}, {"x_perspective": 0.3, et.RADIAL_LENS: 0.1}])
    chart = random.choice([None, *charts()])
    stack = et.Canonicalizer(
        [random.choice(charts()) for _ in range(random.choice([1, 2]))],
        channels,
        channels=2,
        predictor=random.choice(["consistent", "softmax"]),
        iterations=random.choice([1, 1, 2]),
        min_confidence=random.choice([None, 0.3]),
        pose_noise=random.choice([0.0, 0.1]),
    )
    if kind == "stack":
        return stack
    network = et.Canonicalized(backbone, random.choice([stack, et.Canonicalizer([], channels)]), chart=chart)
    if kind == "tta":
        return TTA(network, augment, random.choice([1, 3]))
    return Augmented(network, augment) if kind == "augmented" else network


def content(random, shape):
    value = random.choice([0.0, 1.0, 0.25, -3.0, 255.0])
    kind = random.choice(["constant", "pixel", "noise", "stripes"])
    images = torch.full(shape, value)
    if kind == "pixel" and images.numel():
        images[..., random.randrange(shape[2]), random.randrange(shape[3])] += 1
    if kind == "noise":
        images = random.choice([1.0, 255.0]) * torch.rand(shape)
    if kind == "stripes":
        images = images + torch.arange(shape[3]) % 2
    return images


def numbers(network, images):
    out = network(images)
    if isinstance(out, torch.Tensor):
        outputs = [out]
    else:
        assert out.pose.shape == out.confidence.shape == (len(images), len(out.names))
        assert out.image.shape == images.shape
        outputs = [out.image, out.pose, out.confidence, *out.heatmaps]
    if any(output.requires_grad for output in outputs):
        scale = 2**-10  # as a GradScaler would choose for stacks in float16
        (scale * sum(output.double().mean() for output in outputs if output.numel())).backward()
    gradients = [tensor.grad for tensor in (images, *network.parameters()) if tensor.grad is not None]
    return [*outputs, *gradients]


def test_floating_point_images_give_finite_numbers(fuzz):
    def check(random):
        torch.manual_seed(random.randrange(2**31))
        channels, dtype = random.choice([1, 3]), random.choice(DTYPES)
        network = module(random, channels).train(random.random() < 0.5)
        images = content(random, (random.choice([1, 2]), channels, *random.choice(SIZES))).to(dtype)
        mixed = random.random() < 0.3  # weights of float32, under autocast
        network = network if mixed else network.to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            found = numbers(network, images.requires_grad_())
        for values in found:
            assert values.isfinite().all(), (network, dtype, mixed, images)

    fuzz(check, cases=40)


def test_no_images_are_no_results(fuzz):
    def check(random):
        network = module(random, 1).train(random.random() < 0.5)
        out = network(torch.rand(0, 1, *random.choice(SIZES)))
        assert len(out if isinstance(out, torch.Tensor) else out.pose) == 0

    fuzz(check, cases=15)


def damaged(random, images):
    """Images that no network takes."""
    return random.choice(
        [
            lambda: images.tolist(),
            lambda: images.numpy(),
            lambda: None,
            lambda: "images",
            lambda: images[0],
            lambda: images[None],
            lambda: images.sum(),
            lambda: images[:, :, :0],
            lambda: images[..., :0],
            lambda: images.to(random.choice(OTHERS)),
            lambda: images.to_sparse(),
            lambda: images.to_mkldnn(),
            lambda: torch.nested.as_nested_tensor(list(images), layout=torch.jagged),
        ]
    )()


def test_other_images_are_refused(fuzz):
    def check(random):
        network = module(random, 2).train(random.random() < 0.5)
        images = damaged(random, torch.rand(2, 2, *random.choice(SIZES)))
        with pytest.raises((TypeError, ValueError), match="images"):
            network(images)
        acting = random.choice(list(et.GROUPS))
        with pytest.raises((TypeError, ValueError), match="images"):
            et.invariance(network, images, (-0.1, 0.1), group=acting)

    fuzz(check, cases=40)


def test_images_without_a_pose_are_refused(fuzz):
    def check(random):
        network = (
            layer(random, 2)
            if random.random() < 0.5
            else et.Canonicalizer([layer(random, 2)], 2, predictor="consistent")
        )
        images = torch.rand(2, 2, *random.choice(SIZES))
        spoilt = images.clone()
        spoilt[random.randrange(2), 0, 0, 0] = random.choice([torch.nan, torch.inf, -torch.inf])
        for given in (spoilt, images[:, :1], images.to("meta")):
            with pytest.raises(ValueError, match="images"):
                network.train(random.random() < 0.5)(given)

    fuzz(check, cases=20)
