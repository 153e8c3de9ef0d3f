"""The kernel samples as `resampling` does, and has its gradients; on a GPU, or interpreted (`test_interpreter.py`)."""

import pytest
import torch
from interpreted import DEVICE, NEEDS_KERNELS

import equivariant_transformers as et

pytestmark = NEEDS_KERNELS


def both(warp_of, images, grid, fill, monkeypatch):
    """The result and the gradient of the matrices, by the kernel and without it."""
    for with_kernel in (True, False):
        monkeypatch.setattr("equivariant_transformers.geometry.kernels.HAS_TRITON", with_kernel)
        matrix = warp_of()
        result = et.Warp((matrix,)).sample(images, grid, fill=fill)
        (result * torch.linspace(-1, 1, result.numel(), device=DEVICE).reshape(result.shape)).sum().backward()
        yield result.detach(), matrix.grad


@pytest.mark.parametrize("name", [*et.CHARTS])
@pytest.mark.parametrize(
    ("batch", "matrices", "size"),
    [(3, (3, 3, 3), (13, 17)), (3, (3, 3), (40, 9)), (1, (1, 3, 3), (15, 15)), (2, (2, 3, 3), (1, 8))],
)
def test_kernel_and_grid_agree(name, batch, matrices, size, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    matrix = (torch.eye(3) + 0.4 * torch.randn(matrices, generator=generator)).to(DEVICE)
    images = torch.rand(batch, 2, *size, generator=generator).to(DEVICE)
    grid = et.chart(name).replace(size=(24, 20)).grid().to(DEVICE)
    for fill in (0.3, torch.rand(batch, 2, 1, 1, generator=generator).to(DEVICE)):
        (fast, fast_gradient), (slow, slow_gradient) = both(
            lambda: matrix.clone().requires_grad_(), images, grid, fill, monkeypatch
        )
        torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            fast_gradient, slow_gradient, rtol=1e-3, atol=1e-3 * slow_gradient.abs().max().item()
        )


def test_the_identity_samples_too(monkeypatch):
    images, grid = torch.rand(2, 1, 9, 9).to(DEVICE), et.chart("log_polar").grid().to(DEVICE)
    fast = et.Warp.identity().sample(images, grid)
    monkeypatch.setattr("equivariant_transformers.geometry.kernels.HAS_TRITON", False)
    torch.testing.assert_close(fast, et.Warp.identity().sample(images, grid), rtol=1e-5, atol=1e-5)


def test_images_that_need_a_gradient_get_one():
    images = torch.rand(2, 1, 9, 9, device=DEVICE, requires_grad=True)
    et.Warp.identity().sample(images, et.chart("rotation").grid().to(DEVICE)).sum().backward()
    assert images.grad.abs().sum() > 0
