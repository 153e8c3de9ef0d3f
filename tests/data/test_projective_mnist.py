"""Projective MNIST against a literal transcription of the recipe, one pixel at a time."""

import contextlib
import math
from importlib import import_module

import numpy as np
import pytest
import tiny_mnist
import torch

from equivariant_transformers import Warp
from equivariant_transformers.data import synthesis
from equivariant_transformers.data.projective_mnist_set import POSE_NAMES

mnist, projective_mnist = (
    import_module(f"equivariant_transformers.data.{name}") for name in ("mnist_set", "projective_mnist_set")
)


@pytest.fixture
def few_digits(monkeypatch, tmp_path):
    """A tiny MNIST, of which 12 digits are for training and 5 for validation."""
    digits = tiny_mnist.arrays()
    tiny_mnist.expect(monkeypatch, digits)
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    tiny_mnist.write(tmp_path / "mnist", digits)
    monkeypatch.setattr(projective_mnist, "EXAMPLES", 12)
    monkeypatch.setattr(projective_mnist, "VALIDATION", 5)


def make(copies=1, examples=12, **options):
    return projective_mnist.projective_mnist(copies, examples=examples, **options)


def literal_image(digit, pose):
    """The recipe as published: half-pixel centres, y up, a point x of the digit goes to H x, cubic with a = -1."""
    theta = dict(zip(POSE_NAMES, pose.tolist(), strict=True))
    angle, shear = theta["rotation"], -theta["x_shear"]
    scale, aspect = math.exp(-theta["dilation"]), math.exp(-theta["hyperbolic_rotation"])
    whole = 64 / 63  # a plane that ends at the borders of the outermost pixels, not at their centres
    perspective = -whole * theta["x_perspective"], whole * theta["y_perspective"]
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    linear = turn @ np.array([[1, shear], [0, 1]]) @ np.diag([scale * aspect, scale / aspect])
    back = np.linalg.inv(np.block([[linear, np.zeros((2, 1))], [np.array([perspective]), 1.0]]))
    rows = np.pad(digit, 18).tolist()
    result = np.zeros((64, 64))
    for i in range(64):
        for j in range(64):
            x, y, w = (back @ [2 * (j + 0.5) / 64 - 1, -(2 * (i + 0.5) / 64 - 1), 1]).tolist()
            x, y = x / w, y / w
            if max(abs(x), abs(y)) <= 1:
                result[i, j] = cubic(rows, 32 * (1 - y) - 0.5, 32 * (x + 1) - 0.5)
    return torch.from_numpy(result.clip(0, 255))


def cubic(rows, i, j):
    def kernel(d):
        d = abs(d)
        return d**3 - 2 * d**2 + 1 if d <= 1 else -(d**3) + 5 * d**2 - 8 * d + 4 if d < 2 else 0.0

    total = 0.0
    for row in range(math.floor(i) - 1, math.floor(i) + 3):
        for column in range(math.floor(j) - 1, math.floor(j) + 3):
            value = rows[min(max(row, 0), 63)][min(max(column, 0), 63)]
            total += value * kernel(i - row) * kernel(j - column)
    return total


def test_images_are_those_of_the_recipe(few_digits):
    digits = mnist.digits()[1].images
    test = make(test_copies=1).test
    for digit, image, pose in list(zip(digits, test.images, test.poses.double(), strict=True))[:4]:
        expected = literal_image(digit.double(), pose)
        assert expected.max() > 100
        difference = (image[0].double() - expected).abs()
        assert difference.max() < 0.51  # rounded to a byte, from float32


def test_the_warp_is_the_recipe_to_float64(few_digits):
    digits = mnist.digits()[1].images
    poses = projective_mnist._draw_poses(1, 3, torch.Generator().manual_seed(5))[0]
    canvases = torch.nn.functional.pad(digits[:3, None].double(), [18] * 4)
    seen = Warp.projective(synthesis.pose_matrix(poses, POSE_NAMES)).image(canvases, mode="sharp_bicubic")
    expected = torch.stack([literal_image(*pair) for pair in zip(digits[:3].double(), poses, strict=True)])
    torch.testing.assert_close(seen[:, 0].clamp(0, 255), expected, rtol=0, atol=1e-9)


def test_sizes_and_labels(few_digits):
    base = mnist.digits()
    splits = make(2, test_copies=3)
    assert [len(part) for part in splits] == [24, 5, 60]
    assert splits.train.images.shape[1:] == (1, 64, 64)
    assert torch.equal(splits.train.labels[:12], splits.train.labels[12:])
    assert torch.equal(splits.test.labels, base[1].labels.repeat(3))
    assert (splits.test.mean, splits.test.std) == ((16.2884,), (56.2673,))
    assert "MNIST" in splits.test.origin


def test_a_smaller_set_is_a_part_of_a_larger_one(few_digits):
    large, small = make(4, test_copies=2), make(2, 7, test_copies=1)
    assert torch.equal(small.test.images, large.test.images[:20])
    assert torch.equal(small.validation.images, large.validation.images)
    versions = large.train.images.reshape(4, 12, 1, 64, 64)
    assert torch.equal(small.train.images, versions[:2, :7].flatten(0, 1))
    assert torch.equal(small.train.poses, large.train.poses.reshape(4, 12, 6)[:2, :7].flatten(0, 1))


def test_a_digit_is_in_one_part_only(few_digits, monkeypatch):
    upright = torch.zeros(1, 1, 6, dtype=torch.float64)
    monkeypatch.setattr(projective_mnist, "_draw_poses", lambda c, n, _: upright.expand(c, n, 6))
    splits = make(8)
    pictures = torch.cat([splits.train.images[:12], splits.validation.images]).flatten(1)
    assert len(pictures.unique(dim=0)) == 17
    base = mnist.digits()[0].images.flatten(1)
    inside = pictures.reshape(-1, 64, 64)[:, 18:46, 18:46].flatten(1)
    assert all((base == picture).all(1).any() for picture in inside)


def test_the_seed_decides(few_digits):
    one, again, other = make(seed=3), make(seed=3), make(seed=4)
    assert torch.equal(one.train.images, again.train.images)
    assert not torch.equal(one.train.poses, other.train.poses)


PINNED = [
    [
        0.988849078611303,
        0.7481515118392367,
        -0.03293759871172719,
        -0.05493351930370938,
        0.4350723603682942,
        1.8293361583635903,
    ],
    [
        -0.812475520705028,
        -0.5360125521818578,
        0.06596180968679144,
        -0.49335728458959227,
        -0.14139345335665743,
        -2.0307284682303046,
    ],
]


def test_poses_are_the_same_on_every_machine():
    poses = projective_mnist._draw_poses(1, 2, torch.Generator().manual_seed(0))[0]
    expected = torch.tensor(PINNED, dtype=torch.float64)
    torch.testing.assert_close(poses, expected, rtol=0, atol=1e-12)


def test_poses_fill_their_ranges():
    poses = projective_mnist._draw_poses(2, 20_000, torch.Generator().manual_seed(1)).flatten(0, 1)
    low, high = poses.amin(0), poses.amax(0)
    reach = 0.8 * 63 / 28
    limits = torch.tensor([reach, reach, math.log(1.5), math.log(2), 1.5, math.pi], dtype=torch.float64)
    torch.testing.assert_close(high, limits * torch.tensor([1, 1, 1, 0, 1, 1]), rtol=0.02, atol=1e-3)
    torch.testing.assert_close(low, -limits, rtol=0.02, atol=1e-3)
    assert (poses[:, :2].abs().sum(-1) <= reach).all()


def tolerated(one, other):
    """Bytes may differ by one where the exact value lies near the middle of two: in less than one of 1,000 pixels."""
    difference = (one.int() - other.int()).abs()
    return difference.max() <= 1 and (difference > 0).float().mean() < 1e-3


def test_precision_changes_single_bytes_only(few_digits):
    test = make().test
    exact = Warp.projective(synthesis.pose_matrix(test.poses.double(), POSE_NAMES))
    digits = torch.nn.functional.pad(mnist.digits()[1].images[:, None].double(), [18] * 4).repeat(8, 1, 1, 1)
    assert tolerated(exact.image(digits, mode="sharp_bicubic").clamp(0, 255).round(), test.images)


@pytest.mark.parametrize("stop", [False, True])
def test_the_number_of_threads_is_left_as_it_was(few_digits, stop):
    def progress(what, _):
        if stop and what.startswith("transforming"):
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt) if stop else contextlib.nullcontext():
        make(8, progress=progress)
    assert torch.get_num_threads() == before


@pytest.mark.cuda
def test_a_gpu_makes_the_same_images(few_digits):
    for here, there in zip(make(8), make(8, device="cuda"), strict=True):
        assert there.images.is_cuda
        assert torch.equal(here.poses, there.poses.cpu())
        assert tolerated(here.images, there.images.cpu())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 0}, "copies must be from 1 to 8, got 0"),
        ({"copies": 9}, "copies must be from 1 to 8, got 9"),
        ({"examples": 10_001}, "examples must be from 1 to 10000"),
        ({"test_copies": 0}, "test_copies must be from 1 to 8"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        projective_mnist.projective_mnist(**options)
