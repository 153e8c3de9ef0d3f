"""Training is deterministic, and an interruption costs no more than the current step."""

import dataclasses
import errno
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small import CONFIG, bars, job, network
from torch import nn

from equivariant_transformers import Canonicalized, Canonicalizer
from equivariant_transformers.nn import TTA, Augmentation
from equivariant_transformers.training import CHECKPOINT, Config, Stopped, checkpoint, train
from equivariant_transformers.training.loggers import HISTORY
from equivariant_transformers.training.run import Run, is_finished

PROGRAM = """
import pathlib, sys, time
from small import CONFIG, job
from equivariant_transformers.training import train
directory, epochs, pause = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
def report(progress):
    print(progress.epoch, progress.step, flush=True)
    time.sleep(pause)
train([job(CONFIG.replace(epochs=epochs), directory)], report=report, save_every=0)
"""


def weights(run):
    return torch.cat([parameter.flatten() for parameter in run.module.parameters()])


def without_times(result):
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in result.history]


def assert_same(first, second, first_job, second_job):
    assert without_times(first) == without_times(second)
    assert (first.best_epoch, first.test_error) == (second.best_epoch, second.test_error)
    assert torch.equal(weights(first_job), weights(second_job))


def start(directory, epochs, pause):
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", PROGRAM, str(directory), str(epochs), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_it_learns():
    (result,) = train([job(CONFIG.replace(epochs=12))])
    assert result.test_error < 10
    assert len(result.history) == 12
    assert result.history[-1]["loss"] < result.history[0]["loss"] / 3


def test_the_best_epoch_is_tested():
    run = job(CONFIG.replace(epochs=6))
    (result,) = train([run])
    errors = [entry["validation_error"] for entry in result.history]
    assert result.validation_error == min(errors) == errors[result.best_epoch - 1]
    assert min(errors[: result.best_epoch - 1], default=math.inf) > result.validation_error
    test = bars(40, 2)
    with torch.no_grad():
        logits = run.module.eval()(test.normalise(test.images))
    assert result.test_error == pytest.approx(100 * (logits.argmax(1) != test.labels).double().mean().item())


def test_the_last_epoch_is_tested_if_so_wished():
    settled = CONFIG.replace(epochs=6, ema_decay=0.9, keep="last")
    run = job(settled)
    (result,) = train([run])
    errors = [entry["validation_error"] for entry in result.history]
    assert (result.best_epoch, result.validation_error) == (6, errors[-1])
    best = job(settled.replace(keep="best"))
    train([best])
    assert errors.index(min(errors)) < 5  # or this test shows nothing
    assert not torch.equal(weights(run), weights(best))


def test_a_finished_run_is_tested_again_with_its_last_epoch(tmp_path):
    config = CONFIG.replace(epochs=6, ema_decay=0.9)
    train([job(config, directory=tmp_path)])
    before = (tmp_path / CHECKPOINT).read_bytes()
    again, whole = job(config.replace(keep="last"), directory=tmp_path), job(config.replace(keep="last"))
    assert_same(train([again])[0], train([whole])[0], again, whole)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_finished_run_is_tested_again_with_tta(tmp_path, device):
    config = CONFIG.replace(layers=("x_shear",), augment=("x_shear=1",), epochs=1, keep="last")
    train([augmented_job(config, tmp_path, device)])
    closer = config.replace(tta=4)
    again = augmented_job(closer, tmp_path, device)
    (result,) = train([again])
    for data, error in ((bars(33, 1), result.validation_error), (bars(40, 2), result.test_error)):
        data = data.to(device)
        with torch.no_grad():
            wrong = TTA(again.module, again.augmentation, 4)(data.normalise(data.images)).argmax(1) != data.labels
        assert error == pytest.approx(100 * wrong.double().mean().item())
    with pytest.raises(checkpoint.CheckpointError, match="tta is 1 in the file and 4 in this run"):
        train([augmented_job(closer.replace(keep="best"), tmp_path, device)])


def test_a_state_of_another_network_is_named(tmp_path):
    train([job(CONFIG, directory=tmp_path)])
    tensors, description = checkpoint.read(tmp_path / CHECKPOINT)
    tensors["model/9.weight"] = tensors.pop("model/0.weight")
    checkpoint.write(tmp_path / CHECKPOINT, tensors, description)
    with pytest.raises(checkpoint.CheckpointError, match="holds the weights of another network"):
        train([job(CONFIG, directory=tmp_path)])


def augmented_job(config, directory, device):
    torch.manual_seed(config.seed)
    stack = Canonicalizer(["x_shear"], channels=4, predictor="consistent")
    module = Canonicalized(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), stack)
    return dataclasses.replace(job(config, directory, module, device), augmentation=Augmentation({"x_shear": 1.0}))


def test_which_epoch_was_best_cannot_be_told_afterwards(tmp_path):
    train([job(CONFIG.replace(keep="last"), directory=tmp_path)])
    with pytest.raises(checkpoint.CheckpointError, match="keep is 'last' in the file and 'best' in this run"):
        train([job(directory=tmp_path)])


def test_a_job_that_is_not_in_a_list_is_named():
    with pytest.raises(TypeError, match=r"write train\(\[job\]\)"):
        train(job())


def test_the_same_seed_gives_the_same_numbers():
    first, second, other = job(), job(), job(CONFIG.replace(seed=1))
    results = [train([run])[0] for run in (first, second, other)]
    assert_same(results[0], results[1], first, second)
    assert without_times(results[0]) != without_times(results[2])


def test_runs_do_not_notice_their_neighbours():
    together = [job(CONFIG.replace(seed=seed)) for seed in (0, 1)]
    alone = [job(CONFIG.replace(seed=seed)) for seed in (0, 1)]
    for pair in zip(train(together), [train([run])[0] for run in alone], together, alone, strict=True):
        assert_same(*pair)


def test_the_learning_rate_decays_each_epoch():
    still, frozen = job(CONFIG.replace(lr_decay=1e-12, epochs=1)), job(CONFIG.replace(lr_decay=1e-12, epochs=3))
    train([still])
    train([frozen])
    torch.testing.assert_close(weights(still), weights(frozen))


def test_the_learning_rate_rises_in_the_first_epochs():
    config = CONFIG.replace(warmup=3, lr_decay=0.9)
    rates = [config.learning_rate_in(epoch) for epoch in range(6)]
    plain = [CONFIG.replace(lr_decay=0.9).learning_rate_in(epoch) for epoch in range(6)]
    assert rates == pytest.approx([rate * min(1, (epoch + 1) / 4) for epoch, rate in enumerate(plain)])
    assert rates[3:] == plain[3:]
    slow, fast = job(config.replace(epochs=1)), job(CONFIG.replace(epochs=1, learning_rate=0.01 / 4))
    train([slow])
    train([fast])
    assert torch.equal(weights(slow), weights(fast))


def test_training_ends_without_improvement_and_goes_on_with_more_patience(tmp_path):
    config = CONFIG.replace(epochs=30, patience=3)
    stopped = job(config, tmp_path)
    (result,) = train([stopped])
    errors = [entry["validation_error"] for entry in result.history]
    assert len(errors) == errors.index(min(errors)) + 1 + 3 < 30
    assert result.best_epoch == errors.index(min(errors)) + 1
    assert is_finished(tmp_path / CHECKPOINT, stopped)
    again, steps = job(config, tmp_path), []
    assert_same(result, train([again], report=steps.append)[0], stopped, again)
    assert steps == []
    longer, whole = (job(config.replace(patience=6), place) for place in (tmp_path, None))
    assert_same(train([longer])[0], train([whole])[0], longer, whole)


def test_kept_weights_are_handed_over_as_they_are_found():
    run, found = job(CONFIG.replace(epochs=6, ema_decay=0.9)), []
    run.on_keep = lambda kept, result: found.append((result.best_epoch, {n: t.clone() for n, t in kept.items()}))
    (result,) = train([run])
    errors = [entry["validation_error"] for entry in result.history]
    assert [epoch for epoch, _ in found] == [n + 1 for n, e in enumerate(errors) if e < min(errors[:n], default=101)]
    assert all(torch.equal(tensor, found[-1][1][name]) for name, tensor in run.module.state_dict().items())


@pytest.mark.parametrize("after", [2, 9, 17])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path, after):
    process = start(tmp_path, epochs=4, pause=0.02)
    for _ in range(after):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    resumed, whole = job(directory=tmp_path), job()
    assert_same(train([resumed])[0], train([whole])[0], resumed, whole)


def test_sigterm_finishes_the_step_and_saves(tmp_path):
    process = start(tmp_path, epochs=4, pause=0.05)
    for _ in range(10):
        epoch, step = map(int, process.stdout.readline().split())
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "stopped by SIGTERM" in errors
    description = checkpoint.read(tmp_path / CHECKPOINT)[1]
    assert (description["epoch"], description["step"]) >= (epoch, step) > (0, 0)
    assert description["step"] > 0  # in the middle of an epoch
    resumed, whole = job(directory=tmp_path), job()
    assert_same(train([resumed])[0], train([whole])[0], resumed, whole)


def test_a_signal_during_the_last_validation_is_heard(tmp_path, monkeypatch):
    validate = Run.finish_epoch

    def interrupted(run):
        validate(run)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish_epoch", interrupted)
        with pytest.raises(Stopped, match="SIGINT") as stopped:
            train([job(CONFIG.replace(epochs=1), tmp_path)])
    assert stopped.value.signal == "SIGINT"
    resumed, whole = job(CONFIG.replace(epochs=1), tmp_path), job(CONFIG.replace(epochs=1))
    assert_same(train([resumed])[0], train([whole])[0], resumed, whole)


def test_a_deadline_stops_and_saves(tmp_path):
    with pytest.raises(Stopped, match="out of time"):
        train([job(directory=tmp_path)], deadline=time.monotonic())
    assert checkpoint.read(tmp_path / CHECKPOINT)[1]["step"] == 1
    resumed, whole = job(directory=tmp_path), job()
    assert_same(train([resumed])[0], train([whole])[0], resumed, whole)


def test_a_finished_run_is_not_repeated(tmp_path):
    first, second = job(directory=tmp_path), job(directory=tmp_path)
    result = train([first])[0]
    steps = []
    assert_same(result, train([second], report=steps.append)[0], first, second)
    assert steps == []


def test_a_run_can_go_on_for_more_epochs(tmp_path):
    train([job(directory=tmp_path)])
    longer, whole = job(CONFIG.replace(epochs=6), tmp_path), job(CONFIG.replace(epochs=6))
    assert_same(train([longer])[0], train([whole])[0], longer, whole)


def test_a_checkpoint_from_before_a_field_existed_goes_on_with_its_default(tmp_path):
    with pytest.raises(Stopped):
        train([job(directory=tmp_path)], deadline=time.monotonic())
    tensors, description = checkpoint.read(tmp_path / CHECKPOINT)
    del description["config"]["augment"]
    checkpoint.write(tmp_path / CHECKPOINT, tensors, description)
    with pytest.raises(checkpoint.CheckpointError, match=r"augment is .* in the file and .'rotation=1'. in this run"):
        train([job(CONFIG.replace(augment=("rotation=1",)), tmp_path)])
    resumed, whole = job(directory=tmp_path), job()
    assert_same(train([resumed])[0], train([whole])[0], resumed, whole)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    train([job(CONFIG.replace(epochs=1), tmp_path)])
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"), pytest.warns(UserWarning, match="write_history failed"):
        train([job(CONFIG.replace(epochs=2), tmp_path)], save_every=0)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, HISTORY}


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    path = tmp_path / CHECKPOINT
    train([job(CONFIG.replace(epochs=1), tmp_path)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(checkpoint.CheckpointError, match="cut off, damaged"):
        train([job(directory=tmp_path)])
    path.write_bytes(b"")
    with pytest.raises(checkpoint.CheckpointError, match="cut off, damaged"):
        train([job(directory=tmp_path)])
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(checkpoint.CheckpointError, match="not written by this version"):
        train([job(directory=tmp_path)])
    with pytest.raises(checkpoint.CheckpointError, match="Remove this file to restart the run"):
        train([job(directory=tmp_path)])
    path.unlink()
    assert len(train([job(directory=tmp_path)])[0].history) == CONFIG.epochs
    path.write_bytes(whole)
    with pytest.raises(checkpoint.CheckpointError, match=r"learning_rate is 0.01 in the file and 0.5 in this run"):
        train([job(CONFIG.replace(learning_rate=0.5), tmp_path)])


class Breaks(nn.Module):
    def forward(self, x):
        return x * math.nan


def test_a_loss_that_is_not_a_number_is_reported_with_its_place():
    module = network(0)
    module.insert(3, Breaks())
    (result,) = train([job(module=module)])
    assert result.failure.startswith(
        "the loss was nan in epoch 1; the first values that are not finite are in the weights"
    )
    assert result.failure.endswith("Try a learning rate below 0.01")
    assert math.isnan(result.test_error)
    assert len(result.history) == 1
    module = network(0)
    module.append(Breaks())
    for parameter in module.parameters():
        parameter.register_hook(torch.zeros_like)  # the weights stay what they were
    (result,) = train([job(module=module)])
    assert "the output of layer '6'" in result.failure


def test_weights_that_are_not_numbers_are_reported_though_the_loss_is():
    class Deaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(math.nan))

        def forward(self, x):
            return torch.where(x * self.scale > 0, x, 0.0)

    (result,) = train([job(module=nn.Sequential(Deaf(), network(0)))])
    assert "in the weights '0.scale'" in result.failure


def test_divergence_is_reported():
    (result,) = train([job(CONFIG.replace(learning_rate=100.0))])
    assert "in epoch 1, far above chance. Try a learning rate below 100" in result.failure
    assert len(result.history) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", -1),
        ("learning_rate", 0.0),
        ("lr_decay", 1.5),
        ("warmup", -1),
        ("patience", 0),
        ("class_weights", "heavy"),
        ("size", 5000),
        ("dropout", 1.0),
        ("precision", "int8"),
        ("seed", 2**70),
        ("data_seed", -(2**70)),
    ],
)
def test_nonsense_in_a_config_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} must be .*got {value!r}"):
        Config(**{field: value})


def test_a_config_survives_being_written_down():
    config = Config(layers=("x_shear", "rotation"), chart="log_polar", seed=5)
    assert Config.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match=r"unknown fields .'learning'"):
        Config.from_dict({"learning": 1})


def test_averaged_weights_are_evaluated_and_resumed(tmp_path):
    config = CONFIG.replace(ema_decay=0.9)
    averaged, plain = job(config), job()
    results = [train([run])[0] for run in (averaged, plain)]
    assert [entry["loss"] for entry in results[0].history] == [entry["loss"] for entry in results[1].history]
    assert not torch.equal(weights(averaged), weights(plain))
    with pytest.raises(Stopped):
        train([job(config, tmp_path)], deadline=time.monotonic())
    resumed = job(config, tmp_path)
    assert_same(train([resumed])[0], results[0], resumed, averaged)


def test_a_job_brings_its_own_loss():
    run = job(CONFIG.replace(epochs=1))
    run.loss = lambda logits, _: 0.0 * logits.sum() + 7.0
    before = weights(run).clone()
    (result,) = train([run])
    assert result.history[0]["loss"] == 7.0
    assert torch.equal(weights(run), before)


@pytest.mark.cuda
@pytest.mark.parametrize("change", [{}, {"precision": "bfloat16", "compile": True, "ema_decay": 0.9}])
def test_runs_share_a_gpu(tmp_path, change):
    configs = [CONFIG.replace(seed=seed, epochs=12, **change) for seed in (0, 1, 2)]
    runs = [job(config, tmp_path / str(config.seed), device="cuda") for config in configs]
    results = train(runs)
    assert max(result.test_error for result in results) < 15
    assert len({weights(run).sum().item() for run in runs}) == 3


@pytest.mark.cuda
def test_a_run_on_a_gpu_resumes(tmp_path):
    with pytest.raises(Stopped):
        train([job(CONFIG.replace(epochs=6), tmp_path, device="cuda")], deadline=time.monotonic())
    resumed, whole = (job(CONFIG.replace(epochs=6), place, device="cuda") for place in (tmp_path, None))
    first, second = train([resumed])[0], train([whole])[0]
    for mine, theirs in zip(first.history, second.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
