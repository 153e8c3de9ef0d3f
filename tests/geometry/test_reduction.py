"""Reduced copies of large images show the same picture in the same coordinates."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

import equivariant_transformers as et
from equivariant_transformers.geometry.frame import pixel_centres
from equivariant_transformers.geometry.reduction import SIDE, reduce

SIDES = st.integers(min_value=1, max_value=700)


@given(SIDES, SIDES, st.integers(min_value=0, max_value=99))
def test_a_linear_image_has_the_same_values_at_the_same_points(height, width, seed):
    x, y = pixel_centres((height, width), torch.float64, None)
    image = (2 * x - 3 * y + 1).expand(1, height, width)[None]
    reduced, _, to_reduced = reduce(image, None)
    assert min(reduced.shape[-2:]) < 2 * SIDE
    if min(height, width) < 2 * SIDE:
        assert reduced is image
        return
    points = 0.9 * (2 * torch.rand(1, 20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1)
    points = points * torch.tensor([x[0, 0, -1], y[0, -1, 0]])
    values = to_reduced.sample(reduced, points)[0, 0, 0]
    expected = 2 * points[0, :, 0] - 3 * points[0, :, 1] + 1
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(128, 130), (160, 129), (256, 512), (258, 300)])
def test_the_pixels_are_means_of_blocks(size, dtype):
    images = torch.rand(2, 3, *size, dtype=torch.float64).to(dtype).requires_grad_()
    reduced = reduce(images, None)[0]
    block = 2 if min(size) < 256 else 4
    expected = F.avg_pool2d(images.double(), block, ceil_mode=True, count_include_pad=False)
    torch.testing.assert_close(reduced, expected.to(dtype))
    weights = torch.rand(reduced.shape, dtype=torch.float64)
    pairs = [(reduced, weights.to(dtype)), (expected, weights)]
    seen, gradient = (torch.autograd.grad(result, images, weight)[0] for result, weight in pairs)
    torch.testing.assert_close(seen, gradient)


def test_blocks_with_padding_are_no_part_of_the_picture():
    mask = torch.ones(1, 1, 131, 300, dtype=torch.bool)
    mask[..., 100:] = False
    mask[:, :, :3] = False
    reduced = reduce(torch.rand(1, 3, 131, 300), mask)[1]
    assert reduced.shape == (1, 1, 66, 150)
    assert reduced[0, 0, 2:, :50].all()
    assert not reduced[0, 0, :2].any()
    assert not reduced[..., 50:].any()


@pytest.mark.parametrize("size", [(256, 256), (299, 299), (200, 333)])
def test_pixel_noise_of_a_large_picture_does_not_change_its_pose(size):
    """The noise averages out in the blocks that are read."""
    torch.manual_seed(0)
    layer = et.Canonicalizer(["rotation"], in_channels=1).eval().layers[0]
    torch.nn.init.normal_(layer.predictor.head.weight, std=3)
    x, y = pixel_centres(size, torch.float32, None)
    angle = torch.atan2(y, x)
    radius = (x.square() + y.square()).sqrt()
    image = (torch.exp(-((radius - 0.4) / 0.2).square()) * (angle - 0.7).cos().exp()).expand(1, *size)[None]
    clear = layer(image).steps[0].evidence
    noisy = layer(image + 0.3 * torch.randn_like(image)).steps[0].evidence
    assert (clear - noisy).std() < 0.2 * clear.std()


@pytest.mark.parametrize("size", [(256, 256), (299, 299)])
def test_a_large_picture_is_read_like_a_small_one(size):
    torch.manual_seed(0)
    layer = et.Canonicalizer(["rotation"], in_channels=1).eval().layers[0]
    torch.nn.init.normal_(layer.predictor.head.weight, std=3)

    def evidence(size):
        x, y = pixel_centres(size, torch.float32, None)
        image = torch.exp(-((x - 0.3).square() + 2 * (y + 0.2).square()) / 0.1).expand(1, *size)[None]
        return layer(image).steps[0].evidence

    alike = torch.nn.functional.cosine_similarity(
        *(seen - seen.mean(1, keepdim=True) for seen in (evidence(size), evidence((127, 127))))
    )
    assert alike.item() > 0.99
