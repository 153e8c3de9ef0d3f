"""Several workers train the runs of a sweep, and their results are those of one process."""

import os
import sys

import numpy as np
import pytest
from PIL import Image

from equivariant_transformers.experiments import cluster, command, results, runner
from equivariant_transformers.training import CHECKPOINT, Config


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """Four runs on a folder of two classes of 12 pictures. The workers have the threads of this process."""
    rng = np.random.default_rng(0)
    for name in ("dark", "bright"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(12):
            picture = rng.integers(0, 80, (32, 32), np.uint8) + np.uint8(100 if name == "bright" else 0)
            Image.fromarray(picture).save(tmp_path / "pictures" / name / f"{number}.png")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    base = Config(dataset=str(tmp_path / "pictures"), size=32, network="resnet10", epochs=1, batch_size=8, device="cpu")
    return [base.replace(seed=seed) for seed in range(4)]


def test_two_workers_have_the_results_of_one_process(configs, tmp_path, monkeypatch, capsys):
    pytest.importorskip("submitit", reason="needs the extra cluster")
    places = {"checkpoints": tmp_path / "runs", "folder": tmp_path / "results" / "sweep"}
    first = results.key(configs[0])
    runner.run(configs[:1], **places)  # a result that exists is not trained again
    before = (places["folder"] / f"{first}.json").read_bytes()
    said = []
    display = type("Lines", (), {"say": staticmethod(said.append)})
    cluster.run(configs, workers=2, cluster="local", logs=tmp_path / "logs", display=display, **places)
    assert [line.partition(",")[0] for line in said] == ["worker 1 trains 2 runs", "worker 2 trains 1 runs"]
    found = results.load_all(tmp_path / "results")
    assert set(found) == set(map(results.key, configs))
    assert (places["folder"] / f"{first}.json").read_bytes() == before
    assert all((tmp_path / "runs" / name / CHECKPOINT).exists() for name in found)
    (alone,) = runner.run(configs[3:], folder=tmp_path / "alone" / "sweep", checkpoints=None)
    assert found[results.key(configs[3])].losses == pytest.approx(alone.losses, rel=1e-3)

    monkeypatch.setattr(cluster, "_executor", None)  # nothing is left to submit
    cluster.run(configs, workers=2, cluster="local", logs=tmp_path / "logs", **places)


def test_a_preempted_worker_is_submitted_again_as_it_was():
    pytest.importorskip("submitit", reason="needs the extra cluster")
    share = cluster.Share([Config()], {"budget": 3.0})
    again = share.checkpoint()
    assert (again.function, again.args, again.kwargs) == (share, (), {})


def test_runs_are_dealt_to_workers():
    configs = [Config(seed=seed) for seed in range(3)]
    tested = [config.replace(keep="last", tta=1) for config in configs]
    shares = cluster.split([*configs, *tested], 2)
    assert [[config.seed for config in share] for share in shares] == [[0, 0, 2, 2], [1, 1]]
    assert cluster.split(configs, 9) == [[config] for config in configs]
    assert cluster.split([], 2) == []


@pytest.mark.parametrize(("named", "gpus"), [("2,5", (2, 5)), ("0", (0,))])
def test_workers_get_the_gpus_of_this_process(named, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert cluster.visible_gpus() == gpus


class Executor:
    """Stand-in that keeps the parameters of each job."""

    def __init__(self):
        self.parameters, self.jobs = {}, []

    def update_parameters(self, **parameters):
        self.parameters |= parameters

    def submit(self, share):
        job = type("Job", (), {})()
        job.share, job.parameters = share, dict(self.parameters)
        job.paths = type("Paths", (), {"stdout": "out", "stderr": "err"})
        job.done, job.exception, job.result, job.cancel = lambda: True, lambda: None, lambda: None, lambda: None
        self.jobs.append(job)
        return job


@pytest.fixture
def executor(monkeypatch):
    made = Executor()
    monkeypatch.setattr(cluster, "_executor", lambda *_: made)
    return made


def test_each_worker_has_a_gpu_of_its_own(executor, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "visible_gpus", lambda: (4, 7))
    places = {"folder": tmp_path / "results" / "sweep", "logs": tmp_path / "logs"}
    configs = [Config(seed=seed) for seed in range(3)]
    cluster.run(configs, workers=3, cluster="local", **places)
    assert [job.parameters["local_visible_gpus"] for job in executor.jobs] == [[4], [7], [4]]
    executor.jobs.clear(), executor.parameters.clear()
    cluster.run(configs, workers=2, cluster="slurm", **places)
    assert [job.parameters for job in executor.jobs] == [{"gpus_per_node": 1}] * 2
    executor.jobs.clear(), executor.parameters.clear()
    cluster.run([config.replace(device="cpu") for config in configs], workers=2, cluster="slurm", **places)
    assert [job.parameters for job in executor.jobs] == [{}] * 2


def test_a_job_of_slurm_asks_for_a_gpu_and_the_time_of_the_budget(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra cluster")
    commands = {"sbatch": f'cp "$1" {tmp_path}/submitted.sh; echo Submitted batch job 7', "srun": "exit 0"}
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    executor = cluster._executor("slurm", tmp_path / "logs", budget=90 * 60.0)
    executor.update_parameters(gpus_per_node=1)
    assert executor.submit(cluster.Share([Config()], {})).job_id == "7"
    script = (tmp_path / "submitted.sh").read_text()
    for line in ("--gpus-per-node=1", "--time=100", "--job-name=et-reproduce"):
        assert f"#SBATCH {line}\n" in script


def test_a_failed_worker_and_a_stopped_worker_are_reported(executor, tmp_path):
    places = {"folder": tmp_path / "results" / "sweep", "logs": tmp_path / "logs"}
    good = executor.submit

    def bad(share):
        job = good(share)
        job.exception = lambda: RuntimeError("Traceback ...\nOSError: no data")
        return job

    executor.submit = bad
    with pytest.raises(RuntimeError, match="1 of 1 workers failed: OSError: no data; see err"):
        cluster.run([Config()], workers=1, cluster="local", **places)

    def stopped(share):
        job = good(share)
        job.result = lambda: "out of time; 1 runs left"
        return job

    executor.submit = stopped
    with pytest.raises(cluster.Stopped, match="out of time; 1 runs left"):
        cluster.run([Config()], workers=1, cluster="local", **places)


def test_a_signal_cancels_the_workers(executor, tmp_path):
    cancelled = []

    def interrupted(share):
        job = Executor().submit(share)
        job.done, job.cancel = lambda: False, lambda: cancelled.append(1)
        os.kill(os.getpid(), 15)
        return job

    executor.submit = interrupted
    with pytest.raises(cluster.Stopped, match="stopped by SIGTERM"):
        cluster.run([Config()], workers=1, cluster="local", folder=tmp_path / "results" / "x", logs=tmp_path)
    assert cancelled == [1]


def test_wrong_use_is_explained(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="cluster must be local or slurm, got 'cloud'"):
        cluster.run([Config()], workers=1, cluster="cloud", folder=tmp_path / "x" / "y", logs=tmp_path)
    with pytest.raises(ValueError, match="figure-data has no runs to share among workers"):
        command.reproduce("figure-data", workers=2)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ModuleNotFoundError, match=r"several workers need the package submitit: pip install .*cluster"):
        cluster.run([Config()], workers=1, cluster="local", folder=tmp_path / "x" / "y", logs=tmp_path)
