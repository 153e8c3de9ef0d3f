"""affNIST, Rotated MNIST, MNIST-RTS and SIM2MNIST: digits that are known, under transformations that are known."""

import dataclasses
import math
from importlib import import_module

import numpy as np
import pytest
import tiny_mnist
import torch
from hypothesis import given
from hypothesis import strategies as st
from matfiles import write_mat

from equivariant_transformers import Warp
from equivariant_transformers.data import cache, synthesis

affnist, mnist, rotated_mnist = (
    import_module(f"equivariant_transformers.data.{name}") for name in ("affnist_set", "mnist_set", "rotated_mnist")
)


@pytest.fixture
def few_digits(monkeypatch, tmp_path):
    """A tiny MNIST in the cache."""
    digits = tiny_mnist.arrays()
    tiny_mnist.expect(monkeypatch, digits)
    monkeypatch.setenv("ET_DATA", str(tmp_path / "cache"))
    tiny_mnist.write(cache.root() / "mnist", digits)
    monkeypatch.setattr(affnist, "VALIDATION", 15)


def outside(base, image_set, ring=4):
    """What a data set's images would show in a `ring` of pixels around them, up to the rounding to bytes."""
    size = image_set.images.shape[-1]
    canvases = torch.nn.functional.pad(base[:, None].float(), [(size - 28) // 2] * 4)
    ticks = torch.linspace(-1 - 2 * ring / (size - 1), 1 + 2 * ring / (size - 1), size + 2 * ring)
    points = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    warp = Warp.projective(synthesis.pose_matrix(image_set.poses, image_set.pose_names))
    wide = warp.sample(canvases, points).round()
    torch.testing.assert_close(wide[..., ring:-ring, ring:-ring], image_set.images.float(), rtol=0, atol=1)
    wide[..., ring:-ring, ring:-ring] = 0
    return wide


# Placing


@given(seed=st.integers(0, 1000), size=st.sampled_from([40, 42, 64]), scale=st.floats(0.5, 1.2))
def test_nothing_is_cropped_and_every_border_can_be_reached(seed, size, scale):
    generator = torch.Generator().manual_seed(seed)
    digits = torch.from_numpy(tiny_mnist.arrays(seed)["test_images"])[:8]
    inner = synthesis.uniform(8, [(-math.log(scale), -math.log(scale)), (-math.pi, math.pi)], generator)
    names = ("dilation", "rotation", *synthesis.TRANSLATIONS)
    where = torch.rand(8, 2, dtype=torch.float64, generator=generator)
    where[:2], where[2:4] = 0, 1
    poses = torch.cat((inner, synthesis.placed(digits, inner, names[:2], where, size=size)), -1)
    base = mnist.Digits(digits, torch.zeros(8, dtype=torch.long))
    made = synthesis.image_set(base, poses, names, size=size, name="placed", origin="test")
    assert not outside(digits, made).any()
    edges = made.images[:, 0] > 0
    assert edges[:2, :, :3].any(-1).any(-1).all()
    assert edges[:2, :3].any(-1).any(-1).all()
    assert edges[2:4, :, -3:].any(-1).any(-1).all()
    assert edges[2:4, -3:].any(-1).any(-1).all()


def test_a_digit_that_is_too_large_is_centred():
    digits = torch.full((1, 28, 28), 255, dtype=torch.uint8)
    poses = torch.tensor([[-math.log(2)]], dtype=torch.float64)
    for where in (0.0, 0.3, 1.0):
        place = synthesis.placed(digits, poses, ("dilation",), torch.full((1, 2), where).double(), size=40)
        torch.testing.assert_close(place, torch.zeros(1, 2).double())


# affNIST


def test_training_digits_are_moved_by_whole_pixels(few_digits):
    splits = affnist.affnist(test_copies=2)
    assert [len(part) for part in splits] == [45, 15, 40]
    base = mnist.digits()[0]
    moved = set()
    for part in splits[:2]:
        assert part.images.shape[1:] == (1, 40, 40)
        for image, pose, label in zip(part.images[:, 0], part.poses, part.labels, strict=True):
            steps = pose * 39 / 2
            column, row = (6 - steps.round()).int().tolist()
            torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-5)
            found = (base.images == image[row : row + 28, column : column + 28]).flatten(1).all(1).nonzero()
            assert image.sum() == image[row : row + 28, column : column + 28].sum()
            assert base.labels[found] == label
            moved.add(int(found))
    assert len(moved) == 60
    assert len(splits.train.poses.unique(dim=0)) > 20


def test_centred_training_digits(few_digits):
    splits = affnist.affnist("centred", test_copies=1)
    assert not splits.train.poses.any()
    inside = splits.train.images[:, 0, 6:34, 6:34]
    assert inside.sum() == splits.train.images.sum()
    assert torch.equal(splits.test.images, affnist.affnist(test_copies=1).test.images)
    with pytest.raises(ValueError, match="translated or centred, got 'rotated'"):
        affnist.affnist("rotated")
    with pytest.raises(ValueError, match="test_copies must be at least 1, got 0"):
        affnist.affnist(test_copies=0)


def test_the_test_set_is_made_by_the_recipe(few_digits):
    test = affnist.affnist(test_copies=3).test
    base = mnist.digits()[1]
    assert "regenerated" in test.origin
    assert torch.equal(test.labels, base.labels.repeat(3))
    assert not outside(base.images.repeat(3, 1, 1), test).any()
    scales, shear, turn = test.poses[:, :2].neg().exp(), test.poses[:, 2], test.poses[:, 3].rad2deg()
    for values, low, high in ((scales, 0.8, 1.2), (shear, -0.2, 0.2), (turn, -20, 20)):
        assert low <= values.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < values.max() <= high


def official(generator, count):
    images = generator.integers(0, 256, (count, 40, 40)).astype(np.uint8)
    labels = generator.integers(0, 10, count).astype(np.uint8)
    fields = {
        "label_one_of_n": np.eye(10)[labels].T,
        "image": images.reshape(count, 1600).T,
        "label_int": labels[None],
    }
    return images, labels, fields


@pytest.mark.parametrize("given_root", [False, True])
def test_official_files_are_preferred(few_digits, tmp_path, given_root):
    root = tmp_path / "mine" if given_root else cache.root() / "affnist"
    generator = np.random.default_rng(0)
    batches = [official(generator, 4) for _ in range(3)]
    for number, (_, _, fields) in zip((1, 2, 10), batches, strict=True):
        write_mat(root / "test_batches" / f"{number}.mat", affNISTdata=fields)
    test = affnist.affnist(root=root if given_root else None).test
    assert test.origin == "official affNIST files (1.mat, ...)"
    assert np.array_equal(test.images[:, 0].numpy(), np.concatenate([images for images, _, _ in batches]))
    assert test.labels.tolist() == np.concatenate([labels for _, labels, _ in batches]).tolist()
    write_mat(root / "test.mat", affNISTdata=batches[1][2])
    assert np.array_equal(affnist.affnist(root=root).test.images[:, 0].numpy(), batches[1][0])


def test_other_files_are_refused(few_digits, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither test.mat nor test_batches/1.mat"):
        affnist.affnist(root=tmp_path)
    images, _, fields = official(np.random.default_rng(0), 3)
    write_mat(tmp_path / "test.mat", X=images)
    with pytest.raises(ValueError, match=r"test.mat is not an affNIST file: it holds .*'X': \(3, 40, 40\)"):
        affnist.affnist(root=tmp_path)
    centred = np.pad(images[:, 6:34, 6:34], ((0, 0), (6, 6), (6, 6)))
    write_mat(tmp_path / "test.mat", affNISTdata=fields | {"image": centred.reshape(3, 1600).T})
    with pytest.raises(ValueError, match="holds affNIST's centred digits"):
        affnist.affnist(root=tmp_path)


# By recipes


@pytest.mark.parametrize("recipe", [rotated_mnist.ROTATED, rotated_mnist.RTS, rotated_mnist.SIM2], ids=lambda r: r.name)
def test_recipes(few_digits, recipe):
    small = dataclasses.replace(recipe, counts=(20, 10, 15))
    splits = rotated_mnist.by_recipe(small, seed=2)
    assert [len(part) for part in splits] == [20, 10, 15]
    again, other = rotated_mnist.by_recipe(small, seed=2), rotated_mnist.by_recipe(small, seed=3)
    assert torch.equal(splits.test.images, again.test.images)
    assert not torch.equal(splits.test.images, other.test.images)
    for part in splits:
        assert part.images.shape[1:] == (1, recipe.size, recipe.size)
        assert (part.name, part.mean) == (recipe.name, splits.train.mean)
        assert "regenerated from MNIST" in part.origin
    poses = dict(zip(recipe.pose_names, torch.cat([part.poses for part in splits]).unbind(-1), strict=True))
    assert 0.8 * recipe.turn < poses["rotation"].abs().max() <= recipe.turn
    if recipe.scales is not None:
        low, high = recipe.scales
        sizes = poses["dilation"].neg().exp()
        assert low <= sizes.min() < sizes.max() <= high
        assert sizes.max() - sizes.min() > 0.7 * (high - low)


@pytest.mark.parametrize("recipe", [rotated_mnist.RTS, rotated_mnist.SIM2], ids=lambda r: r.name)
def test_each_digit_is_used_once_and_not_cropped(few_digits, recipe):
    small = dataclasses.replace(recipe, counts=(20, 10, 15))
    train, test = mnist.digits()
    base = rotated_mnist._choose(small, (train, test), torch.Generator().manual_seed(0))
    assert len(base.images.flatten(1).unique(dim=0)) == 45
    if not recipe.pooled:
        assert torch.equal(base.images[30:], test.images[:15])
    for part, images in zip(rotated_mnist.by_recipe(small), base.images.split((20, 10, 15)), strict=True):
        assert not outside(images, part).any()
