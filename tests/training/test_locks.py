"""One run at a time uses a directory, and a killed one leaves it free."""

import errno
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image
from small import bars, network

from equivariant_transformers import cli
from equivariant_transformers.data import Splits
from equivariant_transformers.experiments import results, runner
from equivariant_transformers.training import CHECKPOINT, Config
from equivariant_transformers.training import job as jobs
from equivariant_transformers.training.locks import InUseError, hold

HOLDER = """
import pathlib, sys
from equivariant_transformers.training.locks import hold
with hold(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def command(tmp_path):
    """The words of `et train` on a folder of small images, into the directory `run`."""
    rng = np.random.default_rng(0)
    for name in ("dark", "bright"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(15):
            picture = rng.integers(0, 60, (24, 24), np.uint8) + (150 if name == "bright" else 0)
            Image.fromarray(picture).save(tmp_path / "images" / name / f"{number}.png")
    words = ["train", str(tmp_path / "images"), "--network", "z2cnn", "--batch-size", "10", "--epochs", "1"]
    return [*words, "--device", "cpu", "--out", str(tmp_path / "run")]


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.startswith(".")}


def test_the_holder_is_named_and_a_killed_one_holds_nothing(tmp_path):
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        message = rf"run is in use by process {process.pid} on {platform.node()} since .*run\)\. Wait"
        for _ in range(2):
            with pytest.raises(InUseError, match=message), hold(tmp_path / "run"):
                pass
        process.kill()
    with hold(tmp_path / "run"), pytest.raises(InUseError, match=f"process {os.getpid()} "), hold(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


def test_only_what_was_there_or_was_written_stays(tmp_path):
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "empty", tmp_path / "new" / "unused", tmp_path / "new" / "used"):
        with hold(directory):
            if directory.name == "used":
                (directory / "result").touch()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert found == {"empty", "new", "new/used", "new/used/result"}


def test_a_directory_is_free_after_an_error(tmp_path):
    def fail():
        raise ValueError("nonsense")

    with pytest.raises(ValueError, match="nonsense"), hold(tmp_path):
        fail()
    with hold(tmp_path):
        pass


def test_where_nothing_can_be_locked_there_is_a_warning(tmp_path, monkeypatch):
    def no_locks(*_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", no_locks)
    with pytest.warns(UserWarning, match="cannot be locked"), hold(tmp_path):
        pass


@pytest.mark.parametrize("option", ["--resume", "--fresh"])
def test_a_second_run_fails_and_changes_nothing(command, tmp_path, capsys, option):
    assert cli.main(command) == 0
    before = contents(tmp_path / "run")
    assert set(before) == {
        CHECKPOINT,
        "config.yaml",
        "confusion.png",
        "history.csv",
        "model.safetensors",
        "result.json",
    }
    capsys.readouterr()
    with hold(tmp_path / "run"):
        assert cli.main([*command, option, "--seed", "1"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {tmp_path / 'run'} is in use by process {os.getpid()} on ")
    assert err.count("\n") == 1
    assert contents(tmp_path / "run") == before
    assert cli.main([*command, "--fresh", "--seed", "1"]) == 0


def test_several_processes_hold_a_directory_as_one(command, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*torchrun, "-m", "equivariant_transformers", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with hold(tmp_path / "run"):
        refused = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 1
    assert f"\nerror: {tmp_path / 'run'} is in use by process {os.getpid()} on " in f"\n{refused.stderr}"
    assert "Traceback" not in refused.stderr.split("error: ")[0]
    assert not (tmp_path / "run").exists()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert CHECKPOINT in contents(tmp_path / "run")


def test_a_run_of_a_table_that_another_process_trains_is_not_started(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "make_module", lambda config, *_: network(config.seed, config.dropout))
    monkeypatch.setattr(runner, "load_data", lambda *_, **__: Splits(bars(100, 0), bars(33, 1), bars(40, 2)))
    config = Config(epochs=1, batch_size=16, learning_rate=1e-2)
    folders = {"folder": tmp_path / "results" / "x", "checkpoints": tmp_path / "runs"}
    with hold(tmp_path / "runs" / results.key(config)), pytest.raises(InUseError, match="is in use by process"):
        runner.run([config], **folders)
    assert contents(tmp_path / "results" / "x") == {}
    assert len(runner.run([config], **folders)) == 1
