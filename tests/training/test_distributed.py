"""Two processes train as one does, started from Python and by the command."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small import CONFIG, job, plain

from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.training import CHECKPOINT, train
from equivariant_transformers.training.loggers import HISTORY

PROGRAM = """
import json, pathlib, sys, torch
from small import CONFIG, job, plain
from equivariant_transformers.training import distributed, train
with distributed.processes(torch.device("cpu")):
    rank, size = distributed.rank(), distributed.world_size()
    directory = pathlib.Path(sys.argv[1])
    run = job(CONFIG, directory / "run", plain(rank), rank=rank, world_size=size)
    (result,) = train([run], save_every=0)
    (directory / f"{rank}.json").write_text(json.dumps([result.history, result.test_error]))
"""

ALIGNED = """
import sys, torch
from oriented import arrows
from torch import nn
import equivariant_transformers as et
from equivariant_transformers.training import Config, distributed, train
from equivariant_transformers.training.job import make_job
with distributed.processes(torch.device("cpu")):
    options = dict(layers=("rotation",), predictor="posterior", augment=("rotation=0.3",), alignment=1.0)
    splits = et.data.Splits(*(arrows(16, seed) for seed in range(3)))
    job = make_job(Config(**options, epochs=2, batch_size=8), splits, network=lambda c, n: nn.Sequential(
        nn.Conv2d(c, n, 5), nn.AdaptiveMaxPool2d(1), nn.Flatten()))
    (result,) = train([job])
    head = job.module.canonicalizer.layers[0].predictor.head.weight.detach()
    assert result.failure is None and head.abs().sum() > 0
    both = [torch.empty_like(head) for _ in range(2)]
    torch.distributed.all_gather(both, head)
    assert torch.equal(*both)
"""

THREADS = """
import os, pathlib, sys, torch
from small import CONFIG, job, plain
from equivariant_transformers.training.checkpoint import CheckpointError
from equivariant_transformers.training import CHECKPOINT, Stopped, distributed, train

def threads():
    return sorted(pathlib.Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task"))

directory, ending = pathlib.Path(sys.argv[1]), sys.argv[2]
before = threads()
try:
    with distributed.processes(torch.device("cpu")):
        rank, size = distributed.rank(), distributed.world_size()
        run = job(CONFIG, directory / "run", plain(rank), rank=rank, world_size=size)
        assert any("gloo" in name for name in threads()), threads()
        train([run], deadline=0 if ending == "stopped" else float("inf"))
except (CheckpointError, Stopped) as error:
    expected = {"stopped": Stopped, "damaged": CheckpointError}[ending]
    assert type(error) is expected, error
else:
    assert ending == "finished"
assert threads() == before, threads()
(directory / f"{rank}.done").touch()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("distributed")
    run_two_processes(PROGRAM, directory, directory)
    return directory


def run_two_processes(code, directory, *arguments):
    program = directory / "program.py"
    program.write_text(code)
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run(
        [sys.executable, *command, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_two_processes_have_the_loss_curve_of_one(two_processes):
    (alone,) = train([job(CONFIG, module=plain(0))])
    for rank in range(2):
        history, test_error = json.loads((two_processes / f"{rank}.json").read_text())
        for mine, theirs in zip(alone.history, history, strict=True):
            assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)
            assert theirs["validation_error"] == pytest.approx(mine["validation_error"], abs=4)
        assert test_error == pytest.approx(alone.test_error, abs=3)


def test_one_checkpoint_is_written(two_processes):
    assert {path.name for path in (two_processes / "run").iterdir()} == {CHECKPOINT, HISTORY}


def test_the_alignment_loss_trains_the_same_layers_in_both(tmp_path):
    run_two_processes(ALIGNED, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ending", ["finished", "stopped", "damaged"])
def test_no_thread_of_the_process_group_outlives_it(ending, tmp_path):
    if ending == "damaged":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / CHECKPOINT).write_bytes(b"damaged")
    run_two_processes(THREADS, tmp_path, tmp_path, ending)
    assert {path.name for path in tmp_path.glob("*.done")} == {"0.done", "1.done"}


@pytest.fixture
def bars(tmp_path):
    """A folder with bright and dark pictures."""
    rng = np.random.default_rng(0)
    for name in ("dark", "bright"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(20):
            picture = rng.integers(0, 80, (32, 32), np.uint8) + np.uint8(100 if name == "bright" else 0)
            Image.fromarray(picture).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def et_train(folder, epochs, torchrun=("--standalone", "--nproc-per-node", "2")):
    """Start `torchrun ... -m equivariant_transformers train ...`, as on the page about training."""
    settings = ["--network", "resnet10", "--size", "32", "--batch-size", "8", "--epochs", str(epochs), "--keep", "best"]
    words = ["-m", "equivariant_transformers", "train", str(folder), *settings, "--device", "cpu", "--patience", "none"]
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun, *words, "--out", str(folder.parent / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
def test_the_command_trains_with_two_processes_and_resumes(bars):
    out, err = (trained := et_train(bars, 2)).communicate(timeout=300)
    assert trained.returncode == 0, err
    assert out.count("test error") == out.count("model: ") == 1  # one process prints
    run = bars.parent / "run"
    assert len((run / HISTORY).read_text().splitlines()) == 1 + 2
    out, err = (resumed := et_train(bars, 3)).communicate(timeout=300)
    assert resumed.returncode == 0, err
    assert "epoch 3/3" in err
    assert "epoch 2/3" not in err
    rows = [line.split(",")[0] for line in (run / HISTORY).read_text().splitlines()]
    assert rows == ["epoch", "1", "2", "3"]
    classifier = Classifier.load(run / "model.safetensors")
    with torch.no_grad():
        bright, dark = classifier(torch.stack([torch.full((3, 32, 32), value).byte() for value in (140, 40)])).argmax(1)
    assert [classifier.card.classes[index] for index in (bright, dark)] == ["bright", "dark"]


@pytest.mark.slow
def test_the_command_trains_on_two_machines(bars):
    """Two agents of torchrun find each other at an address, as on two machines."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    nodes = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", address)
    started = [et_train(bars, 1, (*nodes, "--rdzv-id", "test", "--node-rank", str(rank))) for rank in range(2)]
    said = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert sum(out.count("test error") for out, _ in said) == 1
    assert (bars.parent / "run" / "model.safetensors").exists()
