"""Images that stay on the disk train like images in memory: same batches, same bits, also after an interruption."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from photos import write_folder, write_table

from equivariant_transformers.cli import main
from equivariant_transformers.data import Splits, from_folder
from equivariant_transformers.data.stored import Stored, UnreadableError
from equivariant_transformers.training import CHECKPOINT, Config, Stopped, checkpoint, train
from equivariant_transformers.training.aligning import NO_NETWORK, make_alignment_job
from equivariant_transformers.training.job import make_job

CONFIG = Config(
    network="resnet10", layers=("rotation",), epochs=2, batch_size=16, augment=("rotation=0.3",), device="cpu"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photos"), 60)


def splits(folder, memory):
    found = from_folder(folder, size=24, memory=memory)
    assert all(isinstance(part.images, Stored) == (memory == 0) for part in found)
    return found


def weights(job):
    return {name: tensor.clone() for name, tensor in job.module.state_dict().items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def wobble(images):
    """Return images with random brightness, drawn for each image, as torchvision's transforms draw it."""
    factors = 0.5 + torch.rand(len(images), 1, 1, 1)
    return (images * factors).clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("transform", [None, wobble])
def test_streamed_images_train_to_the_same_bits(folder, transform):
    jobs = [make_job(CONFIG, splits(folder, memory), transform=transform) for memory in (1, 0)]
    assert jobs[0].labels == jobs[1].labels
    resident, streamed = (train([job])[0] for job in jobs)
    assert_same(*map(weights, jobs))
    figures = [[(e["loss"], e["validation_error"]) for e in result.history] for result in (resident, streamed)]
    assert figures[0] == figures[1]
    assert resident.test_error == streamed.test_error


@pytest.mark.cuda
@pytest.mark.parametrize("transform", [None, lambda images: wobble(images.cpu()).to(images.device)])
def test_streamed_images_train_on_a_gpu(folder, transform):
    found = []
    for memory in (1, 0):
        parts = Splits(*(part.to("cuda") for part in splits(folder, memory)))
        found.append(train([make_job(CONFIG.replace(device="cuda"), parts, transform=transform)])[0])
    kept, streamed = ([entry["loss"] for entry in result.history] for result in found)
    assert kept[0] == pytest.approx(streamed[0], rel=0.005)  # the same images in the same order
    assert kept == pytest.approx(streamed, rel=0.05)  # the order of sums on a GPU varies, and its effect grows


def test_a_transform_acts_in_training_only(folder):
    seen = []

    def black(images):
        seen.append(images.shape)
        return torch.zeros_like(images)

    plain, blind = (make_job(CONFIG.replace(epochs=1), splits(folder, 1), transform=t) for t in (None, black))
    train([plain])
    train([blind])
    assert seen == [(16, 3, 24, 24)] * len(blind.train)
    assert any(not torch.equal(a, b) for a, b in zip(weights(plain).values(), weights(blind).values(), strict=True))
    for left, right in ((plain.validation, blind.validation), (plain.test, blind.test)):
        indices = left.in_order()[0][0]
        assert torch.equal(left.batch(indices)[0], right.batch(indices)[0])


@pytest.mark.parametrize("wrong", [lambda images: images / 255, lambda images: images[:, :1]])
def test_a_wrong_transform_is_named(folder, wrong):
    with pytest.raises(ValueError, match=r"must return uint8 images of shape \(16, 3, 24, 24\).*got torch"):
        train([make_job(CONFIG, splits(folder, 1), transform=wrong)])


@pytest.mark.parametrize("transform", [None, wobble])
def test_a_stopped_run_resumes_in_the_middle_of_an_epoch(folder, transform, tmp_path):
    before = children()  # of other tests
    whole = make_job(CONFIG, splits(folder, 1), transform=transform)
    train([whole])

    def interrupt(progress):
        if (progress.epoch, progress.step) == (1, 1):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match="SIGINT"):
        train([make_job(CONFIG, splits(folder, 0), directory=tmp_path, transform=transform)], report=interrupt)
    description = checkpoint.read(tmp_path / CHECKPOINT)[1]
    assert (description["epoch"], description["step"]) == (1, 1)
    assert set(children()) <= set(before)
    resumed = make_job(CONFIG, splits(folder, 0), directory=tmp_path, transform=transform)
    train([resumed])
    assert_same(weights(whole), weights(resumed))


def test_canonicalizers_learn_from_streamed_images(folder):
    config = CONFIG.replace(network=NO_NETWORK, predictor="posterior", alignment=1.0, epochs=1)
    jobs = [make_alignment_job(config, splits(folder, memory)) for memory in (1, 0)]
    assert jobs[0].labels == jobs[1].labels
    for job in jobs:
        train([job])
    assert_same(*map(weights, jobs))


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:60])])
def test_a_file_that_breaks_during_training_is_named(tmp_path, damage):
    before = children()  # of other tests
    folder = write_folder(tmp_path / "photos", 60)
    whole = make_job(CONFIG, splits(folder, 1))
    train([whole])
    saved = shutil.copytree(folder, tmp_path / "saved")

    def break_all(progress):
        if (progress.epoch, progress.step) == (1, 1):
            for file in folder.rglob("*.png"):
                damage(file)

    job = make_job(CONFIG, splits(folder, 0), directory=tmp_path / "run")
    with pytest.raises(UnreadableError, match=r"photos/\w+/\d+\.png can no longer be read \(.+\): restore it") as error:
        train([job], report=break_all)
    assert "\n" not in str(error.value)
    del error
    assert set(children()) <= set(before)
    description = checkpoint.read(tmp_path / "run" / CHECKPOINT)[1]
    assert description["epoch"] == 1
    assert description["step"] >= 1
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    resumed = make_job(CONFIG, splits(folder, 0), directory=tmp_path / "run")
    train([resumed])
    assert_same(weights(whole), weights(resumed))


def test_the_command_prints_the_budget_and_gives_the_same_result(tmp_path, capsys):
    table = write_table(tmp_path, 60)
    results = []
    options = ["--layers", "rotation", "--epochs", "1", "--size", "64", "--json"]
    for limit in ("1", "0.0005"):
        assert main(["train", str(table), *options, "--memory", limit, "--out", str(tmp_path / limit)]) == 0
        out, err = capsys.readouterr()
        results.append({**json.loads(out), "directory": None, "seconds": None})
        line = next(line for line in err.splitlines() if "60" not in line and "classes" in line)
        words = "42/6/12 images, 3 classes, resized to 64 x 64"
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        by = "1 worker" if count == 1 else f"{min(count, 8)} workers"
        assert line == (words if limit == "1" else f"{words}, 0.000737 GB decoded, streamed from disk by {by}")
    keys = ("test_error", "validation_error", "losses", "validation_errors", "audit")
    assert [results[0][key] for key in keys] == [results[1][key] for key in keys]
    for limit in ("-1", "nan"):
        assert main(["train", str(table), "--memory", limit, "--out", str(tmp_path / "no")]) == 1
        assert "memory must be a number of GB from 0" in capsys.readouterr().err


def test_memory_is_for_own_images(tmp_path, capsys):
    assert main(["train", "mnist", "--memory", "1", "--out", str(tmp_path)]) == 1
    assert "mnist does not let you choose memory" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc")
def test_ctrl_c_ends_training_and_its_workers(tmp_path):
    folder, out = write_folder(tmp_path / "photos", 60), tmp_path / "run"
    arguments = ["train", str(folder), "--epochs", "500", "--memory", "0", "--size", "24", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "equivariant_transformers", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, to which the signal goes as from a terminal
    )
    while not (out / "checkpoint.safetensors").exists() and process.poll() is None and process.stderr.readline():
        if (out / "model.safetensors").exists():
            break
    deadline = time.monotonic() + 30
    while not children(process.pid) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)  # between two epochs there are no workers
    assert process.poll() is None
    assert time.monotonic() < deadline
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130, err
    assert "stopped by SIGINT; the run is saved, resume with: et train --config" in err
    assert err.splitlines()[-1].endswith("--memory 0")
    assert "Traceback" not in err
    deadline = time.monotonic() + 10
    while children(process.pid, session=True) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children(process.pid, session=True) == []


def children(parent=None, *, session=False):
    """Return the processes that `parent` (by default this one) has started, or all processes of its session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3 if session else 1]) == (parent or os.getpid()):
            found.append(int(entry.parent.name))
    return found
