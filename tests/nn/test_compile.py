"""Compiled networks take any batch size with at most two compilations: one image, and many.

On a CPU, torch's own convolution adds a guard on the amount of work (for these networks, at 16 images), so only smaller
batches are tested.
"""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import equivariant_transformers as et


@pytest.mark.parametrize(
    ("predictor", "sizes"), [("posterior", (1, 2, 3, 7)), ("consistent", (7, 1, 3, 2)), ("softmax", (2, 1, 3))]
)
def test_two_compilations_are_enough_for_any_batch_size(predictor, sizes):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stack = et.Canonicalizer(["rotation"], in_channels=3, predictor=predictor, channels=4)
    model = et.Canonicalized(backbone, stack).eval()
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
    with torch.no_grad():
        for size in sizes:
            images = torch.rand(size, 3, 24, 32)
            torch.testing.assert_close(compiled(images), model(images))
    assert counter.frame_count <= 2
