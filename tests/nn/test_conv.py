"""Padding of charts."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from equivariant_transformers.nn.conv import pad

MODES = {True: "circular", False: "replicate"}


@pytest.mark.parametrize("amount", [1, 3, 4, 7])  # of 7 samples: the ends that wrap around may overlap
@pytest.mark.parametrize("periodic", [(True, False), (False, True), (True, True), (False, False)])
def test_an_axis_is_extended_as_by_pytorch(amount, periodic):
    images = torch.rand(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)
    expected = F.pad(images, (amount, amount, 0, 0), MODES[periodic[0]])
    expected = F.pad(expected, (0, 0, amount, amount), MODES[periodic[1]])
    seen = pad(images, (amount, amount), periodic)
    assert torch.equal(seen, expected)
    weights = torch.rand_like(seen)
    seen, expected = (torch.autograd.grad(result, images, weights)[0] for result in (seen, expected))
    torch.testing.assert_close(seen, expected)
