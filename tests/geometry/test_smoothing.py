"""Kernels smooth images and average blocks of pixels as torch operations do; see `test_kernels.py`."""

import pytest
import torch
from interpreted import DEVICE, NEEDS_KERNELS

from equivariant_transformers.geometry import kernels
from equivariant_transformers.geometry.reduction import reduce
from equivariant_transformers.geometry.resampling import smooth

pytestmark = NEEDS_KERNELS
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
CASES = [("planes", dtype) for dtype in TOLERANCE] + [("channels last", torch.float32), ("slice", torch.float32)]


def pictures(*shape, dtype=torch.float32, layout="planes"):
    """Random images, in one of three layouts."""
    made = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    if layout == "channels last":
        made = made.to(memory_format=torch.channels_last)
    if layout == "slice":  # no stride is that of a contiguous tensor
        made = made.repeat_interleave(2, -1).repeat_interleave(2, -2)[..., ::2, ::2]
    return made.to(DEVICE)


def values_agree(function, images):
    """Assert that a kernel is launched, and that its values are those of torch operations."""
    from equivariant_transformers.geometry.kernels import smoothing

    launched = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("smooth", "average"):
            original = getattr(smoothing, name)
            patch.setattr(smoothing, name, lambda *a, original=original: launched.append(1) or original(*a))
        found = function(images)
    assert len(launched) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "DEVICES", ())
        expected = function(images)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert (found.double() - expected.double()).abs().max().item() <= TOLERANCE[images.dtype]


@pytest.mark.parametrize(("layout", "dtype"), CASES)
@pytest.mark.parametrize("size", [(19, 33), (3, 70)])
def test_images_are_smoothed(size, layout, dtype):
    for level in (1, 2, 3):
        values_agree(lambda x, level=level: smooth(x, level), pictures(1, 2, *size, dtype=dtype, layout=layout))


@pytest.mark.parametrize(("layout", "dtype"), CASES)
@pytest.mark.parametrize("size", [(128, 130), (129, 160), (300, 258)])
def test_blocks_are_averaged(size, layout, dtype):
    values_agree(lambda x: reduce(x, None)[0], pictures(1, 2, *size, dtype=dtype, layout=layout))


def test_gradients_are_those_of_torch():
    images = pictures(1, 2, 128, 130).requires_grad_()
    (smooth(images, 1).sum() + reduce(images, None)[0].sum()).backward()
    assert images.grad.isfinite().all()


def test_empty_batches():
    assert smooth(pictures(0, 3, 8, 8), 1).shape == (0, 3, 8, 8)
    assert reduce(pictures(0, 3, 130, 130), None)[0].shape == (0, 3, 65, 65)
