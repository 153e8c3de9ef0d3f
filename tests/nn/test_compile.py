"""Compiled networks take any batch size with at most two compilations.

Torch compiles separately for one image, and, unless `dynamic=True` is given, for the first batch size. On a CPU, the
convolution of torch adds a guard on the amount of work (for these networks, at 16 images), so only smaller batches are
tested.
"""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch._dynamo.testing import CompileCounter

import equivariant_transformers as et
from equivariant_transformers.models import build


def canonicalized(predictor):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stack = et.Canonicalizer(["rotation"], in_channels=3, predictor=predictor, channels=4, pose_noise=0.01)
    return et.Canonicalized(backbone, stack)


def classifier(predictor):
    torch.manual_seed(0)
    return build("resnet10", layers=["x_shear"], chart="log_polar", predictor=predictor, in_channels=3, size=(24, 32))


def compilations(model, sizes, **options):
    """Return the number of graphs after each batch, whose outputs are compared in evaluation mode."""
    torch._dynamo.reset()
    counter, counts = CompileCounter(), []
    compiled = torch.compile(model, backend=counter, **options)
    for size in sizes:
        images = torch.rand(size, 3, 24, 32)
        if model.training:
            F.cross_entropy(compiled(images), torch.zeros(size).long()).backward()
        else:
            with torch.no_grad():
                torch.testing.assert_close(compiled(images), model(images))
        counts.append(counter.frame_count)
    torch._dynamo.reset()
    return counts


@pytest.mark.parametrize(
    ("predictor", "sizes"), [("posterior", (1, 2, 3, 7)), ("consistent", (7, 1, 3, 2)), ("softmax", (2, 1, 3))]
)
def test_two_compilations_are_enough_for_any_batch_size(predictor, sizes):
    assert compilations(canonicalized(predictor).eval(), sizes, fullgraph=True, dynamic=True)[-1] <= 2


@pytest.mark.parametrize(
    ("make", "predictor", "training"),
    [(canonicalized, "posterior", False), (canonicalized, "posterior", True), (classifier, "consistent", True)],
)
def test_a_second_batch_size_is_the_last_that_compiles(make, predictor, training):
    """As a user calls it: `torch.compile(model)`. There is one graph per compilation, so nothing breaks it."""
    assert compilations(make(predictor).train(training), (4, 7, 3)) == [1, 2, 2]


def test_no_second_compilation_with_a_dynamic_batch():
    assert compilations(canonicalized("posterior").train(), (4, 7, 3), dynamic=True) == [1, 1, 1]
