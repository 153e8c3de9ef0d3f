"""Layers of random shape are the same in kernels as in torch; on a GPU, or interpreted (`test_interpreter.py`)."""

import copy

import torch
from interpreted import DEVICE, NEEDS_KERNELS
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.geometry import kernels
from equivariant_transformers.nn.conv import CentredActivation, ScaleNorm
from equivariant_transformers.nn.kernels import plain

pytestmark = NEEDS_KERNELS
BFLOAT16 = 0.03  # how far results may be off, relative to their size, where operands are rounded to bfloat16


def close(ours, theirs, tolerance):
    assert ours.shape == theirs.shape
    assert ours.isfinite().all()
    assert (ours.float() - theirs).norm() <= tolerance * theirs.norm() + 1e-6


def rounded(*shape):
    """Random numbers that bfloat16 can represent."""
    return torch.randn(*shape, device=DEVICE).bfloat16().float()


def as_kernels_round(_, arguments):
    """Round what a convolution left, so that maxima and kinks are found at the same places; gradients pass."""
    (found,) = arguments
    return found + (found.bfloat16().float() - found).detach()


def layers(random, channels, width, stride):
    """A layer of random kind: a function of operations and their input, with its parameters and buffers."""
    wraps = (random.random() < 0.4, random.random() < 0.4)
    padding = tuple(0 if wrapped else random.randint(0, 1) for wrapped in wraps[::-1])
    conv = nn.Conv2d(channels, width, 3, stride=stride, padding=padding, bias=False).to(DEVICE)
    conv.weight.data = (rounded(width, channels, 3, 3) / (3 * channels**0.5)).bfloat16().float()
    if random.random() < 0.5:
        parts = nn.ModuleList([conv, nn.BatchNorm2d(width)]).to(DEVICE)
        slope = random.choice([0.0, 0.1])
        return wraps, parts, lambda o, x, p: o.batch_normalised(x, p[0], p[1], slope=slope, wraps=wraps)
    parts = nn.ModuleList([conv, ScaleNorm(width), CentredActivation(width)]).to(DEVICE)
    parts[2].bias.data = 0.3 * torch.randn(width, device=DEVICE)
    return wraps, parts, lambda o, x, p: o.scale_normalised(x, p[0], p[0].weight, p[1], p[2], wraps=wraps)


def read(features, how, sheets):
    """Features as something reads them, with channels first."""
    if how == "average":
        height = features.images().shape[2]
        return features.average(torch.linspace(0.5, 1.5, height, device=DEVICE) / height)
    return features.strongest(1, sheets)[0] if how == "strongest" else features.images()


def clear(features, sheets):
    """Which maxima over sheets and rows are at one place alone, beyond rounding: their gradients are defined."""
    rows = features.images().unflatten(0, (-1, sheets)).transpose(1, 2).flatten(2, 3)  # (B, C, sheets * H, W)
    if rows.shape[2] == 1:
        return torch.ones_like(rows[:, :, 0])
    top, second = rows.topk(2, 2).values.unbind(2)
    return (top - second > 0.02 * top.abs() + 1e-3).float()


def test_layers_in_kernels_are_those_of_torch(fuzz):
    from equivariant_transformers.nn.kernels import fused

    def check(random):
        torch.manual_seed(random.randrange(2**31))
        sheets, width = random.choice([1, 2, 3]), random.choice([16, 32])
        images, channels = sheets * random.randint(1, 3), random.choice([1, 2, 3, width])
        stride = 1 if channels == width else (random.randint(1, 3), random.randint(1, 3))
        wraps, parts, layer = layers(random, channels, width, stride)
        x = rounded(images, channels, *(random.randint(1 if wrapped else 3, 14) for wrapped in wraps[::-1]))
        x.requires_grad_()
        how, training = random.choice(["strongest", "average", "images"]), random.random() < 0.7
        found, weights = [], None
        for operations in (plain, fused):
            own = copy.deepcopy(parts).train(training)
            own[1].register_forward_pre_hook(as_kernels_round)  # called in torch alone
            as_features = operations is fused and channels == width
            features = layer(operations, x.permute(0, 2, 3, 1).bfloat16() if as_features else x, own)
            result = read(features, how, sheets).float()
            if operations is plain:
                weights = torch.linspace(-1, 1, result.numel(), device=DEVICE).reshape(result.shape)
                weights = weights * clear(features, sheets) if how == "strongest" else weights
            gradients = torch.autograd.grad((result * weights).sum(), [x, *own.parameters()])
            buffers = [buffer for buffer in own.buffers() if buffer.is_floating_point()]
            found.append(([result, *buffers], gradients))
        (theirs, their_gradients), (ours, our_gradients) = found
        for pair in zip(ours, theirs, strict=True):
            close(*pair, BFLOAT16)
        for pair in zip(our_gradients, their_gradients, strict=True):
            close(*pair, 5 * BFLOAT16)  # an activation may fall on the other side of its kink

    fuzz(check, cases=12)


def test_a_kernel_samples_as_a_grid_does(fuzz, monkeypatch):
    names = [name for name in et.CHARTS if et.CHARTS[name].sheets == 1]

    def check(random):
        torch.manual_seed(random.randrange(2**31))
        batch, channels = random.randint(1, 3), random.randint(1, 3)
        images = torch.rand(batch, channels, random.randint(2, 19), random.randint(2, 19), device=DEVICE)
        size = (random.randint(2, 40), random.randint(2, 40))
        grid = et.chart(random.choice(names)).replace(size=size).grid().to(DEVICE)
        start = torch.eye(3) + random.choice([0.0, 0.1, 0.5, 3.0]) * torch.randn(batch, 3, 3)
        fill = random.choice([0.0, 0.7])
        results = []
        for with_kernel in (True, False):
            monkeypatch.setattr(kernels, "HAS_TRITON", with_kernel)
            results.append(et.Warp((start.to(DEVICE),)).sample(images, grid, fill=fill))
        close(*results, 1e-4)

    fuzz(check, cases=12)
