"""homNIST: the images are those of the published recipe, written out pixel by pixel."""

import math
from importlib import import_module

import pytest
import tiny_mnist
import torch

from equivariant_transformers.data import affnist, cache, synthesis

homnist = import_module("equivariant_transformers.data.homnist_set")
mnist = import_module("equivariant_transformers.data.mnist_set")


@pytest.fixture
def few_digits(monkeypatch, tmp_path):
    digits = tiny_mnist.arrays()
    tiny_mnist.expect(monkeypatch, digits)
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    tiny_mnist.write(cache.root() / "mnist", digits)
    monkeypatch.setattr(import_module("equivariant_transformers.data.affnist_set"), "VALIDATION", 15)


def exponential(matrix):
    """The power series, as the definition has it."""
    total = term = torch.eye(3, dtype=torch.float64)
    for k in range(1, 40):
        term = term @ matrix / k
        total = total + term
    return total


def literal_homography(coefficients):
    """H of eight coefficients, by the basis of the paper: E11 - I/3, E12, E13, E21, E22 - I/3, E23, E31, E32."""
    a, b, c, d, e, f, g, h = coefficients
    third = (a + e) / 3
    return exponential(torch.tensor([[a - third, b, c], [d, e - third, f], [g, h, -third]], dtype=torch.float64))


def literal_image(digit, homography):
    """An image of 40 x 40 pixels: the first axis is the row, bilinear interpolation, 0 outside."""
    canvas = torch.zeros(40, 40, dtype=torch.float64)
    canvas[6:34, 6:34] = digit
    inverse = torch.linalg.inv(homography)
    ticks = torch.linspace(-1, 1, 40, dtype=torch.float64).tolist()
    image = torch.zeros(40, 40, dtype=torch.float64)
    for i, row in enumerate(ticks):
        for j, column in enumerate(ticks):
            u, v, w = (inverse @ torch.tensor([row, column, 1.0], dtype=torch.float64)).tolist()
            y, x = ((20 * place / w + 20) * 39 / 40 for place in (u, v))
            top, left = math.floor(y), math.floor(x)
            for k in (top, top + 1):
                for m in (left, left + 1):
                    if 0 <= k < 40 and 0 <= m < 40:
                        image[i, j] += (1 - abs(y - k)) * (1 - abs(x - m)) * canvas[k, m]
    return image


def test_the_images_are_those_of_the_literal_recipe(few_digits):
    test = homnist.homnist(test_copies=2, seed=3).test
    base = mnist.digits()[1]
    generator = torch.Generator().manual_seed(3)
    homnist.on_canvas(mnist.digits()[0], "centred", generator, examples=None, device="cpu", progress=None)
    draws = torch.cat([torch.randn(2, 20, 8, dtype=torch.float64, generator=generator) for _ in range(2)], 1)
    assert torch.equal(test.labels, base.labels.repeat(2))
    for number in (0, 7, 19, 20, 33):
        coefficients = [
            0.5 * scale * (one + two)
            for scale, one, two in zip(
                (0.15, 0.35, 0.17, 0.35, 0.15, 0.17, 0.15, 0.15), *draws[:, number].tolist(), strict=True
            )
        ]
        wanted = literal_image(base.images[number % 20], literal_homography(coefficients))
        torch.testing.assert_close(test.images[number, 0].double(), wanted, rtol=0, atol=0.55)  # rounded to bytes


def test_poses_are_the_homography(few_digits):
    homographies = homnist.draw_homographies(500, torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.linalg.det(homographies), torch.ones(500).double())
    matrix = synthesis.pose_matrix(homnist.poses_of(homographies), homnist.POSE_NAMES)
    swap = torch.tensor([1, 0, 2])
    wanted = torch.linalg.inv(homographies)[:, swap][:, :, swap]
    scale = matrix[:, 2:, 2:] / wanted[:, 2:, 2:]
    torch.testing.assert_close(matrix, wanted * scale)
    assert (scale > 0).all()


def test_the_spread_of_the_coefficients_is_the_papers():
    homographies = homnist.draw_homographies(20_000, torch.Generator().manual_seed(0))
    logs = 0.5 * (homographies - torch.linalg.inv(homographies))  # the logarithm, up to the third order
    spread = torch.stack([logs[:, row, column].std() for row, column in homnist._ENTRIES])
    wanted = torch.tensor(homnist.SCALES).double() / math.sqrt(2)
    wanted[[0, 4]] *= math.sqrt(4 / 9 + 1 / 9)  # two thirds of one coefficient, a third of the other
    torch.testing.assert_close(spread, wanted, rtol=0.1, atol=0)


def test_training_digits_are_those_of_affnist(few_digits):
    splits, other = homnist.homnist(test_copies=1), affnist("centred", test_copies=1)
    for part, expected in zip(splits[:2], other[:2], strict=True):
        assert torch.equal(part.images, expected.images)
        assert torch.equal(part.labels, expected.labels)
    assert (splits.test.mean, splits.test.name) == (splits.train.mean, "homNIST")
    assert "regenerated" in splits.test.origin
    with pytest.raises(ValueError, match="test_copies must be at least 1, got 0"):
        homnist.homnist(test_copies=0)
