"""affNIST, and the sets made by recipes: digits that are known, under transformations that are known."""

import dataclasses
import math
from functools import partial
from importlib import import_module

import numpy as np
import pytest
import tiny_mnist
import torch
from hypothesis import given
from hypothesis import strategies as st
from matfiles import write_mat

from equivariant_transformers import Warp, data
from equivariant_transformers.data import cache, synthesis

affnist, mnist, rotated_mnist = (
    import_module(f"equivariant_transformers.data.{name}") for name in ("affnist_set", "mnist_set", "rotated_mnist_set")
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

RECIPES = [getattr(rotated_mnist, name) for name in ("ROTATED", "RTS", "SIM2", "RS", "SCALE")]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_recipes(few_digits, recipe):
    small = dataclasses.replace(recipe, counts=(20, 10, 15))
    splits = rotated_mnist.by_recipe(small, seed=2)
    assert [len(part) for part in splits] == [20, 10, 15]
    again, other = rotated_mnist.by_recipe(small, seed=2), rotated_mnist.by_recipe(small, seed=3)
    assert torch.equal(splits.test.images, again.test.images)
    assert not torch.equal(splits.test.images, other.test.images)
    side = recipe.size * recipe.enlarged
    for part in splits:
        assert part.images.shape[1:] == (1, side, side)
        assert (part.name, part.mean) == (recipe.name, splits.train.mean)
        assert "regenerated from MNIST" in part.origin
    poses = dict(zip(recipe.pose_names, torch.cat([part.poses for part in splits]).unbind(-1), strict=True))
    assert ("rotation" in poses) == (recipe.turn > 0)
    if recipe.turn:
        assert 0.8 * recipe.turn < poses["rotation"].abs().max() <= recipe.turn
    if recipe.scales is not None:
        low, high = recipe.scales
        sizes = poses["dilation"].neg().exp()
        assert low <= sizes.min() < sizes.max() <= high
        assert sizes.max() - sizes.min() > 0.7 * (high - low)


def test_published_numbers_of_images_and_pixels():
    sizes = {recipe.name: (recipe.counts, recipe.size * recipe.enlarged) for recipe in RECIPES}
    assert sizes["RS-MNIST"] == ((5_000, 2_000, 50_000), 56)
    assert sizes["Scale-MNIST"] == ((10_000, 2_000, 50_000), 28)


def test_enlarged_images_have_the_same_poses_and_their_own_normalisation(few_digits):
    small = dataclasses.replace(rotated_mnist.RS, counts=(20, 10, 15))
    large, usual = (rotated_mnist.by_recipe(dataclasses.replace(small, enlarged=factor)) for factor in (2, 1))
    for part, other in zip(large, usual, strict=True):
        assert torch.equal(part.poses, other.poses)
        corners = part.images[..., :: 2 * 27 + 1, :: 2 * 27 + 1], other.images[..., ::27, ::27]
        assert torch.equal(*corners)
        found = torch.nn.functional.interpolate(part.images.float(), size=(28, 28), mode="bilinear", align_corners=True)
        assert (found - other.images.float()).abs().mean() < 3
    assert large.train.mean == pytest.approx((large.train.images.double().mean().item(),))
    assert large.test.mean == large.train.mean


@pytest.mark.parametrize("name", ["mnist_rts", "rs_mnist", "affnist", "homnist"])
def test_fewer_images_are_a_subset(few_digits, monkeypatch, name):
    tested = {"test_copies": 1} if name in ("affnist", "homnist") else {"test_examples": 6}
    load = getattr(data, name)
    if name not in ("affnist", "homnist"):
        load = partial(rotated_mnist.by_recipe, dataclasses.replace(load.args[0], counts=(20, 10, 15)))
    full, some = load(), load(examples=9, **tested)
    assert [len(part) for part in some] == [9, len(full.validation), tested.get("test_examples", 20)]
    for part, whole in zip(some, full, strict=True):
        assert torch.equal(part.images, whole.images[: len(part)])
        assert torch.equal(part.labels, whole.labels[: len(part)])
    for wrong in (0, 70_000):
        with pytest.raises(ValueError, match=f"examples must be from 1 to .*, got {wrong}"):
            load(examples=wrong)


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.moved], ids=lambda r: r.name)
def test_each_digit_is_used_once_and_not_cropped(few_digits, recipe):
    small = dataclasses.replace(recipe, counts=(20, 10, 15))
    train, test = mnist.digits()
    base = rotated_mnist._choose(small, (train, test), torch.Generator().manual_seed(0))
    assert len(base.images.flatten(1).unique(dim=0)) == 45
    if not recipe.pooled:
        assert torch.equal(base.images[30:], test.images[:15])
    for part, images in zip(rotated_mnist.by_recipe(small), base.images.split((20, 10, 15)), strict=True):
        assert not outside(images, part).any()


# Official files of Rotated MNIST


def write_amat(path, images, labels):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.concatenate((images.reshape(len(images), -1) / 255, labels[:, None]), 1)
    np.savetxt(path, rows, fmt="%.7g")


@pytest.fixture
def rotated_files(few_digits, monkeypatch, tmp_path):
    """Official files with few digits, and the digits in them."""
    monkeypatch.setattr(rotated_mnist, "ROTATED", dataclasses.replace(rotated_mnist.ROTATED, counts=(12, 8, 9)))
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (29, 28, 28)), generator.integers(0, 10, 29)
    for file, part in zip(rotated_mnist.OFFICIAL, (slice(20), slice(20, None)), strict=True):
        write_amat(tmp_path / "files" / file, images[part], labels[part])
    return tmp_path / "files", torch.from_numpy(images).to(torch.uint8), torch.from_numpy(labels)


def test_official_files_of_rotated_mnist(rotated_files, monkeypatch, tmp_path):
    folder, images, labels = rotated_files
    splits = rotated_mnist.rotated_mnist(files=folder)
    assert [len(part) for part in splits] == [12, 8, 9]
    assert torch.equal(torch.cat([part.images[:, 0] for part in splits]), images)
    assert torch.equal(torch.cat([part.labels for part in splits]), labels)
    assert all("official" in part.origin and part.poses is None for part in splits)
    assert splits.test.mean == splits.train.mean
    assert len(rotated_mnist.rotated_mnist(files=folder, examples=5, test_examples=3).test) == 3
    assert "regenerated" in rotated_mnist.rotated_mnist().test.origin
    folder.rename(cache.root() / "rotated-mnist")
    assert "official" in rotated_mnist.rotated_mnist().test.origin


def test_other_files_of_rotated_mnist_are_refused(rotated_files, tmp_path):
    folder, images, labels = rotated_files
    with pytest.raises(FileNotFoundError, match=r"contains no mnist_all_rotation.*amat"):
        rotated_mnist.rotated_mnist(files=tmp_path)
    path = folder / rotated_mnist.OFFICIAL[0]
    write_amat(path, images[:19].numpy(), labels[:19].numpy())
    with pytest.raises(ValueError, match="must hold 20 rows of 784 pixels and a label"):
        rotated_mnist.rotated_mnist(files=folder)
    for bad in (labels[:20].numpy() + 10, labels[:20].numpy() + 0.5):
        write_amat(path, images[:20].numpy(), bad)
        with pytest.raises(ValueError, match="labels are not digits"):
            rotated_mnist.rotated_mnist(files=folder)
    write_amat(path, 255.0 * images[:20].numpy(), labels[:20].numpy())
    with pytest.raises(ValueError, match="pixels are not between 0 and 1"):
        rotated_mnist.rotated_mnist(files=folder)
    path.write_text("no numbers")
    with pytest.raises(ValueError, match="must hold 20 rows"):
        rotated_mnist.rotated_mnist(files=folder)
