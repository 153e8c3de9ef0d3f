"""SVHN: the paper's split of the official files, and nothing else passing for them."""

import importlib

import numpy as np
import pytest
import torch
from matfiles import write_mat, write_svhn
from servers import files, serve

from equivariant_transformers.data import cache, svhn
from equivariant_transformers.data.imageset import statistics

MODULE = importlib.import_module("equivariant_transformers.data.svhn_set")


@pytest.fixture
def folder(tmp_path):
    """Files in the layout of the release, with 60, 30 and 40 images that differ from each other."""
    write_svhn(tmp_path, train=60, test=30, extra=40)
    return tmp_path


@pytest.fixture
def official(folder, monkeypatch):
    """As if the files in `folder` were the release."""
    releases = {}
    for part, release in MODULE.FILES.items():
        content = (folder / release.file).read_bytes()
        releases[part] = MODULE.Release(release.file, cache.sha256(content), len(content))
    monkeypatch.setattr(MODULE, "FILES", releases)
    return folder


@pytest.fixture
def host(official, monkeypatch):
    """A server of the files in `official`, and the names that were asked for."""
    asked = []
    with serve(files(official, asked)) as address:
        monkeypatch.setattr(MODULE, "HOST", address)
        yield asked


def rows(part):
    return {image.numpy().tobytes(): int(label) for image, label in zip(part.images, part.labels, strict=True)}


def test_the_file_layout(official):
    images = np.zeros((32, 32, 3, 30), np.uint8)
    images[5, 7, 1, 2] = 99  # row, column, channel, number
    write_mat(official / "test_32x32.mat", X=images, y=np.full((30, 1), 10, np.uint8))
    test = svhn(root=official, validation=10, accept_other_files=True).test
    assert test.images[2, 1, 5, 7] == 99
    assert test.images.count_nonzero() == 1
    assert test.labels.unique().tolist() == [0]  # the files say 10


def test_a_label_that_is_no_digit_is_refused_where_it_is_chosen(official):
    labels = np.full((60, 1), 255, np.uint8)
    labels[torch.randperm(60, generator=torch.Generator().manual_seed(0))[:30].numpy()] = 10
    write_mat(official / "train_32x32.mat", X=np.zeros((32, 32, 3, 60), np.uint8), y=labels)
    assert svhn(20, root=official, validation=10, accept_other_files=True).train.labels.tolist() == [0] * 20
    with pytest.raises(ValueError, match="labels run from 0 to 255"):
        svhn(21, root=official, validation=10, accept_other_files=True)


def test_the_parts_of_the_paper(official):
    splits = svhn(root=official, validation=10)
    assert [len(part) for part in splits] == [50, 10, 30]
    assert not rows(splits.train).keys() & rows(splits.validation).keys()
    assert splits.train.origin == "official"
    small, larger = (svhn(examples, root=official, validation=10) for examples in (10, 20))
    assert rows(small.train).items() < rows(larger.train).items() < rows(splits.train).items()
    assert rows(small.validation) == rows(splits.validation)
    with_extra = svhn(extra=True, root=official, validation=10)
    assert len(with_extra.train) == 50 + 40
    assert rows(splits.train).items() < rows(with_extra.train).items()
    assert rows(with_extra.validation) == rows(splits.validation)


def test_normalisation_is_that_of_the_images_used(official):
    small, larger = (svhn(examples, root=official, validation=10) for examples in (10, 20))
    assert small.train.mean != larger.train.mean
    for part in small:
        assert (part.mean, part.std) == statistics(small.train.images)
    normal = small.train.normalise(small.train.images)
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_the_seed_chooses_the_images(official):
    first, again, other = (svhn(10, root=official, validation=10, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.images, again.train.images)
    assert rows(first.validation) != rows(other.validation)


def test_other_files_are_refused_or_confessed(folder):
    with pytest.raises(ValueError, match=r"files differ from the official release: train_32x32.mat, test_32x32.mat"):
        svhn(root=folder)
    origin = svhn(root=folder, validation=10, accept_other_files=True).train.origin
    assert "train_32x32.mat" in origin
    assert "test_32x32.mat" in origin


@pytest.mark.parametrize(("examples", "validation"), [(61, 0), (0, 10), (-1, 10), (51, 10), (None, 60), (10, -1)])
def test_impossible_numbers_are_refused(official, examples, validation):
    with pytest.raises(ValueError, match="cannot be taken from the 60 training images"):
        svhn(examples, root=official, validation=validation)


def test_files_without_digits_are_refused(official):
    write_mat(official / "test_32x32.mat", Z=np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"needs X of shape \(32, 32, 3, N\)"):
        svhn(root=official, validation=10, accept_other_files=True)


def test_missing_files_are_downloaded_once(host, tmp_path, monkeypatch):
    monkeypatch.setenv("ET_DATA", str(tmp_path / "cache"))
    told = []
    svhn(validation=10, progress=lambda what, share: told.append((what, share)))
    assert host == ["/train_32x32.mat", "/test_32x32.mat"]
    assert told[-1] == ("downloading test_32x32.mat (0 MB)", 1)
    assert len(svhn(validation=10).train) == 50
    assert len(host) == 2
    assert len(list((tmp_path / "cache" / "svhn").iterdir())) == 4  # the files and their locks


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_bad_download_leaves_nothing(host, official, tmp_path, damage):
    if damage == "changed":
        (official / "train_32x32.mat").write_bytes(b"a page that says please log in")
    else:
        (official / "train_32x32.mat").unlink()
    with pytest.raises(ConnectionError, match=r"train_32x32.mat could not be downloaded: .*try again"):
        svhn(root=tmp_path / "new", accept_other_files=True)
    assert [path.name for path in (tmp_path / "new").glob("*.mat*")] == ["train_32x32.mat.lock"]
