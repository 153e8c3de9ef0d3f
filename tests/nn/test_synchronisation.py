"""No forward or backward pass on a GPU waits for the GPU: no value is read, and no Python number is copied to it.

On a GPU, torch raises an error at each synchronisation. Without a GPU, the passes run on the CPU as they do on a GPU,
without the checks of values, and operations that would wait for a GPU raise an error.
"""

import pytest
import torch
from pairs import takes
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import equivariant_transformers as et
from equivariant_transformers import models
from equivariant_transformers.geometry import projective
from equivariant_transformers.models.legacy import Network2019
from equivariant_transformers.nn import PREDICTORS, TTA, Augmented, ChartSampler

aten = torch.ops.aten
SIZE = (52, 72)  # not square, and finer than the charts for photographs
MATRIX = et.group("rotation").matrix
UNTRAINED = pytest.mark.filterwarnings("ignore:model.images. in training does not train:UserWarning")


def backbone():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def stack(predictor="posterior", **options):
    return et.Canonicalizer(["rotation", "x_shear"], in_channels=3, predictor=predictor, channels=4, **options)


MODULES = {
    **{f"stack, {kind}": lambda kind=kind: stack(kind) for kind in PREDICTORS if takes(kind, "rotation", "x_shear")},
    "stack, centre": lambda: et.Canonicalizer(
        [et.EquivariantTransformer("cartesian", 3, predictor="centre", channels=4), "rotation"], in_channels=3
    ),
    **{
        f"layer, {chart}, {kind}": lambda chart=chart, kind=kind: et.EquivariantTransformer(
            chart, 3, predictor=kind, channels=4, pose_range=[(-0.5, 0.5)] * len(et.chart(chart).groups)
        )
        for chart in ("log_polar", "y_perspective")
        for kind in ("posterior", "consistent", "softmax")
    },
    "stack, all options": lambda: stack(iterations=2, min_confidence=0.5, pose_noise=0.1, fill=0.5),
    "canonicalized": lambda: et.Canonicalized(backbone(), stack()),
    "canonicalized, chart": lambda: et.Canonicalized(backbone(), stack("consistent"), chart="log_polar"),
    "augmented": lambda: Augmented(et.Canonicalized(backbone(), stack()), {"rotation": 0.3, "dilation": 0.1}),
    "tta": lambda: TTA(et.Canonicalized(backbone(), stack()), {"rotation": 0.3}, count=2),
    **{
        name: lambda name=name: models.build(name, layers=["x_shear"], in_channels=3, size=SIZE)
        for name in ("z2cnn", "resnet10", "capsule")
    },
    "2019": lambda: Network2019(
        tfs=["ShearX", "Rotation"],
        coords="logpolar_grid",
        net="BasicCNN",
        equivariant=True,
        downsample=1,
        tf_opts={"in_channels": 3, "nf": 4},
        net_opts={"input_channels": 3, "pad_mode": "constant"},
        seed=0,
        epoch=0,
        valid_err=0.0,
    ),
    "chart sampler": lambda: ChartSampler("log_polar"),
}


class Warped(nn.Module):
    """Everything a warp of a user's matrices and of a flow does to pixels and points."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.1, 0.2]))

    def forward(self, images):
        warp = et.Warp.projective(MATRIX(self.theta)) @ et.Warp.flow(et.RADIAL_LENS.flow, self.theta)
        label = images[:, :1] > 0.5
        pictures = [warp.image(images, mode=mode) for mode in ("bilinear", "bicubic", "sharp_bicubic")]
        pictures += [warp.image(images, antialias=True), warp.image(images, size=(20, 20)), warp.restore(images)]
        others = [warp.mask(label), warp.restore(label), warp.valid(SIZE), warp.visible(images[:, 0, :, :2])]
        return pictures, others, warp.boxes(images[:, 0, :, :4]), warp.inverse().points(images[:, 0, :, :2])


MODULES["warp"] = Warped


def forward(module, images):
    """Return the sum of all results of a forward pass of `module`."""
    out = module(images)
    if isinstance(out, et.Canonicalization):
        results = [out.image, out.pose, out.valid, et.alignment_loss(out)]
        if isinstance(module, et.Canonicalizer):
            masked = module(images, mask=images[:, :1] > 0.1)
            results += [masked.image, masked.valid, et.alignment_loss(masked)]
    else:
        results = tree_leaves(out)
    return sum(part.sum() for part in results if part.is_floating_point())


class NoSynchronisation(TorchDispatchMode):
    """Raise an error for an operation that waits for a GPU: it reads values, or copies Python numbers to a tensor."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        packet = function.overloadpacket
        masks = packet in (aten.index, aten.index_put, aten.index_put_) and any(
            part.dtype == torch.bool for part in tree_leaves(args[1]) if isinstance(part, torch.Tensor)
        )
        if masks or packet in (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.lift_fresh):
            raise AssertionError(f"{function} waits for a GPU")
        return function(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Skip the checks that need the values of a tensor."""
    monkeypatch.setattr(projective, "can_inspect", lambda tensor: False)  # noqa: ARG005


@UNTRAINED
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_no_pass_waits_for_a_gpu(name, training):
    module = MODULES[name]().train(training)
    images = torch.rand(2, 3, *SIZE, requires_grad=True)
    with NoSynchronisation():
        forward(module, images).backward()


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_values_are_inspected_on_the_cpu_only(device):
    assert projective.can_inspect(torch.ones(2))
    assert not projective.can_inspect(torch.ones(2, device=device))


def test_waiting_is_detected():
    images = torch.rand(2, 3, *SIZE)
    waits = (
        lambda: stack()(images),
        lambda: et.Warp.projective(torch.eye(3)),
        lambda: bool(images.isfinite().all()),
        lambda: images.sum().item(),
        lambda: images[images > 0.5],
        lambda: torch.tensor([1.0, 2.0]),
        lambda: torch.as_tensor(0.5),
    )
    for wait in waits:
        with pytest.raises(AssertionError, match="waits for a GPU"), NoSynchronisation():
            wait()


@pytest.mark.cuda
@UNTRAINED
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_no_pass_waits_for_the_gpu(name, training):
    module = MODULES[name]().train(training).cuda()
    images = torch.rand(2, 3, *SIZE, device="cuda", requires_grad=True)
    forward(module, images).backward()  # compiles kernels and chooses algorithms, which may wait
    try:
        torch.cuda.set_sync_debug_mode("error")
        forward(module, images).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
