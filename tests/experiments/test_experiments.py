"""Tables as runs: nothing is repeated, nothing is lost, and the report says what the files hold."""

import dataclasses
import inspect
import itertools
import json
import math
import re
import shutil
import statistics
import time
from pathlib import Path

import pytest
import tiny_mnist
import torch
from small import bars, network
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equivariant_transformers import Canonicalized, Canonicalizer, data, models, viz
from equivariant_transformers.cli import main
from equivariant_transformers.data import ImageSet, Splits
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.experiments import (
    EXPERIMENTS,
    Cell,
    Experiment,
    display,
    field,
    figures,
    report,
    results,
    rotation,
    runner,
)
from equivariant_transformers.experiments.command import PAGES
from equivariant_transformers.nn import canonicalizer
from equivariant_transformers.training import CHECKPOINT, Config, Progress, Stopped, checkpoint
from equivariant_transformers.training import job as job_module
from equivariant_transformers.training.optimization import Optimization

ROOT = Path(__file__).parents[2]
TINY = Config(epochs=2, batch_size=16, learning_rate=1e-2)
CELLS = (
    Cell(row="small", column="a", config=TINY, paper=12.5, priority=(0, 1)),
    Cell(row="small", column="b", config=TINY.replace(copies=2), priority=(1, 1)),
    Cell(row="averaged", column="a", config=TINY.replace(ema_decay=0.9), paper=10.0, priority=(0, 0)),
)
TABLE = Experiment(title="tiny", cells=CELLS, seeds=2)


@pytest.fixture
def made(monkeypatch):
    """Small data and networks in place of large ones; the configs for which a network was made."""
    configs = []

    def make_module(config, images, _=None):
        configs.append(config)
        if config.dropout == 0.9:
            raise RuntimeError("out of memory")
        return Canonicalized(network(config.seed, config.dropout), Canonicalizer([]))

    monkeypatch.setattr(job_module, "make_module", make_module)
    monkeypatch.setattr(runner, "load_data", lambda *_, **__: Splits(bars(100, 0), bars(33, 1), bars(40, 2)))
    monkeypatch.setitem(EXPERIMENTS, "tiny", TABLE)
    return configs


def entry(config, test_error=5.0, **changes):
    made = results.Record(
        config=config,
        test_error=test_error,
        validation_error=test_error + 1,
        best_epoch=2,
        validation_errors=[20.0, test_error + 1],
        losses=[2.0, 1.0],
        seconds=30.0,
        parameters=7,
        origin="drawn",
        device=results.device_name(),
        torch="2.0",
        commit="abc",
    )
    return dataclasses.replace(made, **changes)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# The paper's tables


@pytest.mark.parametrize(
    ("name", "row", "figures"),
    [
        ("table1", "Cartesian", [11.91, 9.67, 7.64, 6.93]),
        ("table1", "ST-LP sh-hr", [4.92, 3.87, 3.22, 3.03]),
        ("table1", "ST-LP sh-hr-px-py", [None] * 4),
        ("table1", "ET-LP sh-hr-px-py", [3.76, 3.11, 2.80, 2.60]),
        ("svhn", "ResNet-10, none", [9.83, 7.90, 5.35, 2.96]),
        ("svhn", "ResNet-34, spatial", [8.60, 6.91, 4.37, 2.66]),
        ("svhn", "ResNet-18, equivariant", [7.81, 6.37, 4.50, 2.57]),
        ("affnist", "ET-LP translation, x-shear", [98.3, None]),
        ("affnist", "CNN", [88.3, None]),
        ("affnist-centred", "ET-LP projective", [98.45]),
        ("homnist", "ET-LP projective", [96.0]),
        ("homnist", "no layers", [None]),
        ("rotated-mnist", "ET-LP projective", [0.89]),
        ("rts", "ET-LP projective", [0.5]),
        ("sim2mnist", "ET-LP projective", [5.03]),
        ("rs-mnist", "ET-LP projective", [95.8]),
        ("scale-mnist", "ET-LP projective", [98.3]),
    ],
)
def test_the_figures_are_the_papers(name, row, figures):
    assert [cell.paper for cell in EXPERIMENTS[name].cells if cell.row == row] == figures


def test_every_cell_is_a_run_of_its_own():
    for experiment in EXPERIMENTS.values():
        assert len({results.base(cell.config) for cell in experiment.cells}) == len(experiment.cells)
        assert len({(cell.row, cell.column) for cell in experiment.cells}) == len(experiment.cells)


def test_every_network_can_be_built_on_a_data_set_that_exists():
    cells = [cell for name in ("table1", "affnist", "svhn") for cell in EXPERIMENTS[name].cells]
    assert {cell.config.dataset for cell in cells} <= set(data.DATASETS)
    built = set()
    for config in (cell.config for cell in cells if "34" not in cell.row and cell.config.copies == 1):
        channels, size = (3, 32) if config.network.startswith("resnet") else (1, 64)
        what = (config.network, config.layers, config.chart, config.predictor)
        if what not in built:
            built.add(what)
            images = ImageSet(
                images=torch.zeros(1, channels, size, size, dtype=torch.uint8),
                labels=torch.zeros(1).long(),
                name="blank",
            )
            assert isinstance(job_module.make_module(config, images), torch.nn.Module)
    assert len(built) == 23


@pytest.mark.parametrize("name", field.BENCHMARKS)
def test_benchmarks_share_one_recipe_and_run_on_their_data_set(name, monkeypatch, tmp_path):
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    experiment, benchmark = EXPERIMENTS[name], field.BENCHMARKS[name]
    cells = {cell.row: cell.config for cell in experiment.cells}
    assert (experiment.seeds, experiment.value(entry(TINY, 3.0))) == (3, 97.0 if benchmark.accuracy else 3.0)
    known = inspect.signature(data.DATASETS[benchmark.dataset].load).parameters
    assert "examples" in known
    for config in cells.values():
        assert config.epochs * config.examples == pytest.approx(1_500_000, rel=0.02)
        assert config.learning_rate_in(config.epochs) / config.learning_rate == pytest.approx(0.046, rel=0.01)
        assert config.keep == "last"
    recipes = {EXPERIMENTS[other].cells[0].config for other in field.BENCHMARKS}
    same = {"dataset": "", "examples": None, "network": "z2cnn", "epochs": 1, "lr_decay": 0.9}
    assert len({config.replace(**same) for config in recipes}) == 1
    looked = cells["ET-LP projective, augmentation, 8-fold TTA"]
    assert cells["ET-LP projective, augmentation"] in runner._alike(looked)  # is trained once
    side = {"rotated-mnist": 28, "scale-mnist": 28, "rts": 42, "sim2mnist": 96, "rs-mnist": 56}.get(name, 40)
    blank = ImageSet(
        images=torch.zeros(1, 1, side, side, dtype=torch.uint8), labels=torch.zeros(1).long(), name="blank"
    )
    for row in ("no layers", "ET-LP projective", "ET-Cartesian projective, rotation/scale layer"):
        network = job_module.make_module(cells[row], blank).eval()
        with torch.no_grad():
            assert network(torch.rand(1, 1, side, side)).isfinite().all()


def test_a_benchmark_runs_from_the_data_to_the_record(monkeypatch, tmp_path):
    tiny_mnist.install(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr("equivariant_transformers.data.affnist_set.VALIDATION", 15)
    (config, *_) = EXPERIMENTS["homnist"].configs()
    small = config.replace(examples=16, epochs=1, batch_size=8, layers=config.layers[:2], device="cpu")
    (record,) = runner.run([small], folder=tmp_path / "results" / "homnist", checkpoints=tmp_path / "runs")
    assert 0 <= record.test_error <= 100
    assert "homNIST's recipe" in record.origin
    assert record.parameters > 150_000


def test_tables_of_benchmarks_show_costs(tmp_path):
    config = EXPERIMENTS["homnist"].configs(seeds=1)[0]
    for seed in (0, 1):
        results.save(entry(config.replace(seed=seed), 3.0 + seed, parameters=123_456, seconds=60.0), tmp_path / "a")
    head, _, first, *rest = report.table("homnist", tmp_path).splitlines()
    assert head.endswith("| parameters | time per run |")
    assert first.endswith("<br>LieLAC 96 | 123,456 | 1m00s |")
    assert "**96.50\u00a0±\u00a00.71**" in first
    assert rest[0].endswith("| not measured |  |  |")


def test_the_protocol_is_the_papers():
    cells = {(cell.row, cell.column): cell.config for cell in EXPERIMENTS["table1"].cells}
    for (row, _), config in cells.items():
        assert (config.epochs, config.lr_decay, config.batch_size) == (300, 0.99, 128)
        assert config.learning_rate == (2e-4 if row.startswith("ST") else 2e-3)
        assert config.chart == (None if row == "Cartesian" else "log_polar")
    rates = [config.learning_rate for config in EXPERIMENTS["learning-rates"].configs(only=["ET"], seeds=1)]
    assert (len(rates), min(rates), max(rates)) == (6, 1e-4, 4e-3)


def test_the_most_informative_runs_come_first():
    configs = EXPERIMENTS["table1"].configs()
    assert len(configs) == 8 * 4 * 3
    assert [config.copies for config in configs] == [1] * 24 + [2] * 24 + [4] * 24 + [8] * 24
    assert [config.seed for config in configs[:24]] == [0] * 8 + [1] * 8 + [2] * 8
    kinds = [config.predictor == "direct" for config in configs[:8]]
    assert kinds == sorted(kinds)
    svhn = [(config.network, config.examples) for config in EXPERIMENTS["svhn"].configs()]
    assert [name for name, _ in itertools.groupby(svhn)][:2] == [("resnet10", 10_000), ("resnet10", 20_000)]


def test_rows_seeds_and_settings_can_be_chosen():
    configs = TABLE.configs(only=["averaged"], seeds=1, fast=True)
    assert configs == [TINY.replace(ema_decay=0.9, precision="bfloat16", compile=True)]
    names = ["ET-LP sh", "2 copies", "Log-polar", "4 copies"]
    chosen = EXPERIMENTS["table1"].configs(only=names, seeds=1)
    assert [(len(config.layers), config.copies) for config in chosen] == [(0, 2), (1, 2), (0, 4), (1, 4)]
    assert len(EXPERIMENTS["table1"].configs(only=["2 copies"], seeds=1)) == 8
    with pytest.raises(ValueError, match=r"no row or column 'large'; the rows are 'small', 'averaged'"):
        TABLE.configs(only=["large"])


def test_capsules_have_their_own_loss():
    part = ImageSet(images=torch.zeros(4, 1, 20, 20, dtype=torch.uint8), labels=torch.arange(4), name="blank")
    config = Config(network="capsule", batch_size=2)
    assert job_module.make_job(config, Splits(part, part, part)).loss is models.margin_loss


class OffTheCPU(TorchDispatchMode):
    """Fails where a tensor is made or used on the CPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
        assert all(tensor.device.type != "cpu" for tensor in tensors), f"{function} is computed on the CPU"
        return out


PICTURES = {"projective-mnist": (1, 64, 64), "affnist": (1, 40, 40), "svhn": (3, 32, 32), "homnist": (1, 40, 40)}
NETWORKS = {
    f"{name}, {cell.row}": cell.config
    for name in ("table1", "affnist", "svhn", "beat", "homnist")
    for cell in EXPERIMENTS[name].cells
    if cell.priority[0] == 0 and (name != "beat" or cell.config.augment)
}


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_a_cuda_graph_can_hold_a_step(config, monkeypatch):
    """A step needs no value on the host and no tensor from it; on the meta device there are no values to be had."""
    monkeypatch.setattr(canonicalizer, "check_input", lambda *_: None)  # refuses the meta device
    shape = PICTURES[config.dataset]
    part = ImageSet(images=torch.zeros(4, *shape, dtype=torch.uint8), labels=torch.arange(4), name="blank")
    job = job_module.make_job(config.replace(batch_size=2), Splits(part, part, part))
    module = job.module.to("meta")
    images, labels = torch.empty(2, *shape, device="meta"), torch.empty(2, dtype=torch.long, device="meta")
    with OffTheCPU():
        job.loss(module(images), labels).backward()
        module.eval()
        module(images).argmax(1)


# Running


def test_finished_runs_are_not_repeated(made, tmp_path):
    configs = TABLE.configs()
    first = runner.run(configs, folder=tmp_path / "results" / "tiny", checkpoints=tmp_path / "runs")
    assert [record.config for record in first] == configs
    assert made == configs
    files = contents(tmp_path / "results" / "tiny")
    assert runner.run(configs, folder=tmp_path / "results" / "other", checkpoints=tmp_path / "runs") == first
    assert made == configs
    assert contents(tmp_path / "results" / "tiny") == files


@pytest.fixture
def unlearnable(made, monkeypatch):
    """Images whose labels say nothing: the error goes up and down for ever. Returns the steps that are made."""

    def data(count, seed):
        images = bars(count, seed)
        return dataclasses.replace(images, labels=images.labels.roll(7))

    steps, step = [], Optimization.step
    monkeypatch.setattr(Optimization, "step", lambda self: (steps.append(self), step(self)))
    monkeypatch.setattr(runner, "load_data", lambda *_, **__: Splits(data(100, 0), data(33, 1), data(40, 2)))
    return steps


BEST = TINY.replace(epochs=6, augment=("rotation=1",))
LAST = BEST.replace(keep="last")


def test_tta_takes_smaller_batches_and_no_more_memory():
    splits = Splits(*(bars(300, seed) for seed in range(3)))
    for tta, size in ((1, 250), (8, 31), (256, 1)):
        job = job_module.make_job(LAST.replace(tta=tta), splits)
        assert job.validation.batch_size == job.test.batch_size == size


def test_runs_that_differ_in_their_test_alone_are_trained_once(unlearnable, tmp_path):
    (alone,) = runner.run([LAST], folder=tmp_path / "alone" / "x", checkpoints=None)
    once = len(unlearnable)
    folders = {"folder": tmp_path / "results" / "x", "checkpoints": tmp_path / "runs"}
    best, last, looking = runner.run([BEST, LAST, LAST.replace(tta=3)], **folders)
    assert len(unlearnable) == 2 * once
    assert best.best_epoch < 6  # or this test shows nothing
    assert best.test_error != last.test_error
    assert best.validation_errors == last.validation_errors == looking.validation_errors == alone.validation_errors
    assert (last.best_epoch, last.test_error) == (6, alone.test_error)
    runner.run([BEST.replace(tta=3)], **folders)  # it may choose another epoch
    assert len(unlearnable) == 3 * once


@pytest.mark.parametrize("last_first", [False, True])
def test_without_the_best_epoch_the_last_one_serves(unlearnable, tmp_path, last_first):
    configs = [LAST.replace(tta=3), LAST][:: -1 if last_first else 1]
    runner.run(configs, folder=tmp_path / "results" / "x", checkpoints=tmp_path / "runs")
    assert len(unlearnable) == (1 if last_first else 2) * 6 * (100 // 16)


def _damage(path):
    path.write_bytes(b"no tensors")


def _describe(path, **changes):
    tensors, description = checkpoint.read(path)
    checkpoint.write(path, tensors, description | changes)


def _rename(path):
    tensors, description = checkpoint.read(path)
    checkpoint.write(
        path, {name.replace("model/backbone.0", "model/backbone.9"): t for name, t in tensors.items()}, description
    )


@pytest.mark.parametrize(
    "spoil",
    [
        _damage,
        _rename,
        lambda path: _describe(path, labels="others"),
        lambda path: _describe(path, failure="exploded"),
        lambda path: _describe(path, epoch=5),
    ],
    ids=["damaged", "another network", "other images", "diverged", "unfinished"],
)
def test_a_state_that_does_not_serve_is_left_alone(unlearnable, tmp_path, spoil):
    folders = {"folder": tmp_path / "results" / "x", "checkpoints": tmp_path / "runs"}
    runner.run([BEST], **folders)
    once = len(unlearnable)
    path = tmp_path / "runs" / results.key(BEST) / CHECKPOINT
    spoil(path)
    before = path.read_bytes()
    (last,) = runner.run([LAST], **folders)
    assert (last.best_epoch, len(unlearnable)) == (6, 2 * once)
    assert path.read_bytes() == before


def test_a_run_that_can_have_another_state_waits_for_it(monkeypatch):
    monkeypatch.setattr(runner, "find_device", lambda _: torch.device("cuda"))
    other, looking = BEST.replace(seed=1), LAST.replace(tta=3)

    def choose(*waiting, resumable=True):
        return runner._choose(waiting, {}, 9, 1e9, resumable=resumable)

    assert choose(BEST, LAST, other) == [BEST, other]
    assert choose(LAST, looking, other) == [LAST, other]
    assert choose(looking, looking.replace(tta=4)) == [looking, looking.replace(tta=4)]
    assert choose(BEST, BEST.replace(tta=3)) == [BEST, BEST.replace(tta=3)]
    assert choose(BEST, LAST, resumable=False) == [BEST, LAST]


def test_interrupted_runs_go_on_to_the_same_result(made, tmp_path):
    config = TINY.replace(epochs=6)
    whole = runner.run([config], folder=tmp_path / "whole" / "x", checkpoints=None)[0]
    folders = {"folder": tmp_path / "parts" / "x", "checkpoints": tmp_path / "runs"}
    budget = 1e-3
    for _ in range(20):
        try:
            (resumed,) = runner.run([config], budget=budget, **folders)
            break
        except Stopped:
            assert not list(folders["folder"].glob("*.json"))
            budget *= 2
    assert (resumed.validation_errors, resumed.test_error) == (whole.validation_errors, whole.test_error)
    assert budget > 1e-3


def test_files_that_are_not_official_are_read_only_if_one_says_so(made, tmp_path, monkeypatch):
    monkeypatch.setattr("equivariant_transformers.experiments.command.NAMES", ("tiny",))
    part, seen = bars(40, 0), []
    monkeypatch.setattr(runner, "load_data", lambda *_, **options: seen.append(options) or Splits(part, part, part))
    for number, flags in enumerate(([], ["--accept-other-files"])):
        folders = ["--results", str(tmp_path / str(number)), "--no-checkpoints"]
        assert main(["reproduce", "tiny", "--only", "averaged", "--seeds", "1", *flags, *folders]) == 0
    assert seen == [{"accept_other_files": False}, {"accept_other_files": True}]
    with pytest.raises(ValueError, match="projective-mnist does not let you choose accept_other_files: leave it out"):
        job_module.load_data(TINY, torch.device("cpu"), accept_other_files=True)


def test_a_crash_and_a_signal_are_told_by_the_exit_code(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("equivariant_transformers.experiments.command.NAMES", ("tiny",))
    folders = ["--results", str(tmp_path / "results"), "--checkpoints", str(tmp_path / "runs")]
    command = ["reproduce", "tiny", "--only", "small", "--seeds", "1", *folders]
    with monkeypatch.context() as patch:
        patch.setattr(runner, "train", lambda *_, **__: 1 / 0)
        assert main(command) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: some runs crashed"

    def interrupted(*_, **__):
        raise Stopped("stopped by SIGINT", signal="SIGINT")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "train", interrupted)
        assert main(command) == 130
    out, err = capsys.readouterr()
    assert out.startswith("| test error")
    assert err.splitlines()[-1] == "stopped by SIGINT"
    assert main(command) == 0


def test_what_cannot_be_kept_is_not_begun(made, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        runner.run([TINY], folder=tmp_path / "file" / "tiny", checkpoints=None)
    assert not made


def test_a_damaged_result_is_named(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "half.json").write_text('{"config"')
    with pytest.raises(ValueError, match=r"half\.json is not a complete JSON file"):
        results.load_all(tmp_path)


def test_the_commit_is_that_of_the_library(monkeypatch, tmp_path):
    monkeypatch.delenv("ET_COMMIT", raising=False)
    monkeypatch.chdir(tmp_path)
    here = results.commit()
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert results.commit() == "unknown"
    assert here == "unknown" or re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", here)


def test_no_time_means_no_run(made, tmp_path):
    with pytest.raises(Stopped, match="out of time; 6 runs left"):
        runner.run(TABLE.configs(), folder=tmp_path / "tiny", checkpoints=tmp_path, budget=0)
    with pytest.raises(Stopped, match="out of time; 1 runs left"):  # it would still be compiling
        runner.run([TINY.replace(compile=True)], folder=tmp_path / "tiny", checkpoints=tmp_path, budget=30)
    assert made == []


def test_what_cannot_be_resumed_is_started_only_if_it_fits(made, tmp_path):
    long, short = TINY.replace(epochs=100), TINY.replace(seed=1)
    results.save(entry(TINY.replace(seed=5), seconds=4.0), tmp_path / "tiny")  # two seconds an epoch
    folders = {"folder": tmp_path / "tiny", "budget": 60.0}
    with pytest.raises(Stopped, match="out of time; 1 runs left"):
        runner.run([long, short], checkpoints=None, **folders)
    assert made == [short]
    runner.run([long, short], checkpoints=tmp_path / "runs", **folders)
    assert made == [short, long]


def test_estimates_come_from_networks_alike_on_this_device():
    records = [entry(TINY), entry(TINY.replace(seed=1), together=3), entry(TINY.replace(seed=2), device="elsewhere")]
    assert results.estimate(TINY.replace(epochs=10, learning_rate=1.0), records) == pytest.approx(10 * (15 + 5) / 2)
    assert results.estimate(TINY.replace(layers=("x_shear",)), records) is None


def test_a_crash_does_not_stop_the_others(made, tmp_path, capsys):
    bad = TINY.replace(dropout=0.9)
    folders = {"folder": tmp_path / "results" / "tiny", "checkpoints": tmp_path / "runs"}
    records = runner.run([bad, TINY], display=display.Display(), **folders)
    assert [record.config for record in records] == [TINY]
    assert "crashed: RuntimeError: out of memory" in capsys.readouterr().err
    note = folders["folder"] / (results.key(bad) + runner.CRASH)
    assert "Traceback" in note.read_text()
    runner.run([bad, TINY], **folders)
    assert made == [bad, TINY, bad]  # it is tried again
    (tmp_path / "results" / "tiny" / f"{results.key(TINY)}.crash.txt").write_text("an earlier one")
    (tmp_path / "results" / "tiny" / f"{results.key(TINY)}.json").unlink()
    runner.run([TINY], **folders)
    assert not (folders["folder"] / (results.key(TINY) + runner.CRASH)).exists()


def test_a_path_of_any_length_makes_a_name_that_files_can_have(tmp_path):
    paths = [letter * 200 + "/" + "é" * 120 + "/end" for letter in "ab"]
    names = [results.key(Config(dataset=path, layers=("rotation",) * 9, seed=2**40)) for path in paths]
    assert names[0] != names[1]
    for name in names:
        assert "éé_end-z2cnn" in name
        with atomic_write(tmp_path / (name + runner.CRASH)) as file:
            file.write(b"")


@pytest.mark.usefixtures("made")
def test_a_damaged_checkpoint_is_named_and_what_to_do_with_it(tmp_path, capsys):
    damaged = tmp_path / "runs" / results.key(TINY) / CHECKPOINT
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"half of it")
    folders = {"folder": tmp_path / "results" / "tiny", "checkpoints": tmp_path / "runs"}
    assert runner.run([TINY], display=display.Display(), **folders) == []
    err = capsys.readouterr().err
    assert f"{damaged} is cut off, damaged" in err
    assert "Remove this file to restart the run" in err
    damaged.unlink()
    assert len(runner.run([TINY], **folders)) == 1


def test_runs_that_share_a_gpu_are_tried_alone_after_a_crash(made, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "find_device", lambda _: torch.device("cuda"))
    bad = TINY.replace(dropout=0.9)
    records = runner.run([TINY, bad, TINY.replace(seed=1)], folder=tmp_path / "tiny", checkpoints=None, together=3)
    assert [(record.config.seed, record.together) for record in records] == [(0, 1), (1, 1)]


def test_a_run_that_diverges_is_a_result(made, tmp_path):
    wild = TINY.replace(learning_rate=100.0)
    (record,) = runner.run([wild], folder=tmp_path / "tiny", checkpoints=None)
    assert "far above chance" in record.failure
    assert math.isnan(record.test_error)
    assert math.isnan(results.load_all(tmp_path)[results.key(wild)].test_error)


def test_results_merge_by_copying(made, tmp_path):
    one, other = tmp_path / "one" / "tiny", tmp_path / "other" / "tiny"
    runner.run(TABLE.configs(seeds=1), folder=one, checkpoints=None)
    runner.run(TABLE.configs(), folder=other, checkpoints=None)
    assert set(contents(one)) < set(contents(other))  # the same run has the same name
    shutil.copytree(other, one, dirs_exist_ok=True)
    before = len(made)
    assert len(runner.run(TABLE.configs(), folder=one, checkpoints=None)) == 6
    assert len(made) == before


def test_names_depend_on_all_that_matters_and_not_on_the_machine():
    assert results.key(TINY) == results.key(TINY.replace(device="cuda"))
    for change in (
        {"seed": 1},
        {"precision": "bfloat16"},
        {"compile": True},
        {"lr_decay": 0.5},
        {"iterations": 2},
        {"layers": ("x_shear",)},
    ):
        assert results.key(TINY) != results.key(TINY.replace(**change))


def test_a_record_survives_being_written_down(tmp_path):
    record = entry(TINY, failure="it broke", together=3)
    assert results.load(results.save(record, tmp_path)) == record


# The report


def plain(text):
    return text.replace("\N{NO-BREAK SPACE}", " ")


def measured(*arguments):
    """What a cell says; its figures must not be torn apart at the end of a line."""
    said = report.measured(*arguments)
    assert not said.startswith("**") or " " not in said
    return plain(said)


def test_the_report_says_what_the_files_hold(made, tmp_path):
    records = runner.run(TABLE.configs(only=["small"]), folder=tmp_path / "tiny", checkpoints=None)
    errors = [record.test_error for record in records if record.config.copies == 1]
    table = plain(report.table("tiny", tmp_path))
    assert f"**{statistics.fmean(errors):.2f} ± {statistics.stdev(errors):.2f}** (n = 2)<br>paper 12.50 |" in table
    assert "| averaged | not measured<br>paper 10.00 |  |" in table
    assert "*4 of 6 runs, in 2 of 3 cells;" in table


def test_one_run_has_no_spread_and_divergence_is_counted(tmp_path):
    assert measured(TABLE, [entry(TINY)]) == "**5.00** (n = 1)"
    broken = entry(TINY, math.nan, failure="it broke")
    assert measured(TABLE, [entry(TINY), broken, entry(TINY, 7.0)]) == "**6.00 ± 1.41** (n = 2, 1 diverged)"
    assert measured(TABLE, [broken]) == "1 diverged"
    assert measured(TABLE, []) == "not measured"
    accuracy = dataclasses.replace(TABLE, metric="test accuracy")
    assert measured(accuracy, [entry(TINY)]) == "**95.00** (n = 1)"
    assert measured(dataclasses.replace(TABLE, metric="validation error"), [entry(TINY)]) == "**6.00** (n = 1)"


def test_settings_are_not_mixed(made, tmp_path):
    for change in ({}, {"seed": 1, "precision": "bfloat16", "compile": True}):
        results.save(entry(TINY.replace(**change), 5.0 + len(change)), tmp_path / "tiny")
    fast, slow = report.table("tiny", tmp_path).split("\n\n|")
    assert "**8.00** (n = 1)" in plain(fast)
    assert "bfloat16, compiled" in fast
    assert "**5.00** (n = 1)" in plain(slow)
    assert "float32, not compiled" in slow


def test_what_is_around_the_marks_stays(made, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tiny -->\nold\n<!-- end -->\nafter <!-- end -->\n")
    report.write_page(page, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n<!-- tiny -->\n| test error")
    assert text.endswith("*None of the 6 runs of this table is finished.*\n<!-- end -->\nafter <!-- end -->\n")
    report.write_page(page, tmp_path)
    assert page.read_text() == text
    with pytest.raises(ValueError, match="without <!-- end --> after it"):
        report.fill("<!-- tiny -->", tmp_path)


def test_the_report_updates_every_page(made, tmp_path):
    pages = [tmp_path / name for name in ("a.md", "b.md")]
    for page in pages:
        page.write_text("<!-- tiny -->\n<!-- end -->\n")
    chosen = [argument for page in pages for argument in ("--page", str(page))]
    assert main(["reproduce", "--report", "--results", str(tmp_path), *chosen]) == 0
    filled = f"<!-- tiny -->\n{report.table('tiny', tmp_path)}\n<!-- end -->\n"
    assert [page.read_text() for page in pages] == [filled, filled]


def test_the_pages_are_made_from_the_result_files():
    pages = [(ROOT / page).read_text() for page in PAGES]
    for name in (*EXPERIMENTS, rotation.NAME):
        assert sum(page.count(f"<!-- {name} -->") for page in pages) == 1, name
    assert [report.fill(page, ROOT / "results") for page in pages] == pages


# The command line


def test_the_command(made, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("equivariant_transformers.experiments.command.NAMES", ("tiny",))
    folders = ["--results", str(tmp_path / "results"), "--checkpoints", str(tmp_path / "runs")]
    assert main(["reproduce", "tiny", "--budget", "0s", *folders]) == 0
    assert "out of time; 6 runs left; the same command resumes" in capsys.readouterr().err
    assert main(["reproduce", "tiny", "--budget", "1m", "--only", "small", "--seeds", "1", *folders]) == 0
    assert "2 of 6 runs" in capsys.readouterr().out
    assert [config.copies for config in made] == [1, 2]
    for config in (
        made[0],
        TABLE.configs(only=["averaged"])[0],
    ):  # one that has a result by now, and one of another row
        (tmp_path / "results" / "tiny" / f"{results.key(config)}{runner.CRASH}").write_text("")
    assert main(["reproduce", "tiny", "--only", "small", "--seeds", "1", *folders]) == 0
    capsys.readouterr()
    for wrong in ("tiny --budget 5", "tiny --only large", "tiny --device abacus", "tinny", ""):
        assert main(["reproduce", *wrong.split(), *folders]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_figure_of_transformations_has_a_row_for_every_layer(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    tiny_mnist.install(monkeypatch, tmp_path)
    titles = []
    drawn = viz.layers

    def layers(*arguments, **options):
        figure = drawn(*arguments, **options)
        titles.extend(axes.get_ylabel() for axes in figure.axes if axes.get_ylabel())
        return figure

    monkeypatch.setattr(viz, "layers", layers)
    assert main(["reproduce", "figure-transformations", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "figure-transformations.png").stat().st_size > 10_000
    assert [title.split("\n")[0] for title in titles] == [
        "input",
        "x shear",
        "hyperbolic rotation",
        "x perspective",
        "y perspective",
        "what the",
    ]


def test_the_figure_of_house_numbers_takes_whatever_files_there_are(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    images = torch.randint(256, (12, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    shown = ImageSet(images=images, labels=torch.zeros(12).long(), name="noise")
    monkeypatch.setattr(
        data, "svhn", lambda *_, accept_other_files: accept_other_files and data.Splits(shown, shown, shown)
    )
    assert main(["reproduce", "figure-svhn", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "figure-svhn.png").stat().st_size > 10_000


def test_a_figure_is_a_command_too(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    places = ["--results", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "figure-coordinates", *places]) == 0
    assert (tmp_path / "out" / "figure-coordinates.png").stat().st_size > 10_000
    assert main(["reproduce", "figure-validation", *places]) == 0
    assert "nothing to draw: there are no results of table1" in capsys.readouterr().out


def test_durations():
    assert [display.parse_duration(text) for text in ("90s", "25m", "1.5h", "1h30m")] == [90, 1500, 5400, 5400]
    for wrong in ("25", "m", "-5m", "5m ", "1d"):
        with pytest.raises(ValueError, match="such as 90s, 25m or 1h30m"):
            display.parse_duration(wrong)


def test_progress_is_told_now_and_then(capsys):
    shown = display.Display(100.0, every=0.0)
    shown.begin(["a", "b"], waiting=3, estimate=70.0)
    assert "training 2 runs, about 1m10s; 3 more waiting" in capsys.readouterr().err
    for step in (1, 2):
        time.sleep(0.02)
        history = [{"validation_error": 7.0}]
        shown(Progress(name="a", epoch=1, epochs=4, step=step, steps=2, history=history))
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"\[0s, left 1m40s\] 25 %, ETA \d+s, validation error 7.00", line)


# Figures


def test_figures_of_results_are_drawn_only_from_results(tmp_path):
    pytest.importorskip("matplotlib")
    names = ("figure-learning-rates", "figure-validation", "figure-rotation")
    for name in names:
        with pytest.raises(figures.NothingToDraw):
            figures.FIGURES[name](tmp_path, tmp_path / "a.png")
    for name in ("table1", "learning-rates"):
        for config in EXPERIMENTS[name].configs(seeds=2)[:20]:
            results.save(entry(config, 5.0 + config.seed), tmp_path / name)
    for name in names[:2]:
        figures.FIGURES[name](tmp_path, tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
        (tmp_path / "a.png").unlink()


def test_rotations_are_learned_and_written_down(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    generator = torch.Generator().manual_seed(0)
    part = ImageSet(
        images=torch.randint(255, (40, 1, 28, 28), generator=generator, dtype=torch.uint8),
        labels=torch.zeros(40).long(),
        name="noise",
        poses=torch.rand(40, 1, generator=generator),
        pose_names=("rotation",),
    )
    monkeypatch.setattr(rotation, "DIGITS", 2)
    monkeypatch.setattr(rotation, "ANGLES", 3)
    chosen = {name: rotation.CASES[name] for name in ("plain-10k", "softmax-10k")}
    monkeypatch.setattr(rotation, "CASES", chosen)
    options = {"device": torch.device("cpu"), "epochs": 1, "say": lambda _: None}
    with pytest.raises(Stopped):
        rotation.reproduce(tmp_path, budget=-1, data=lambda: Splits(part, part, part), **options)
    rotation.reproduce(tmp_path, data=lambda: Splits(part, part, part), **options)
    rotation.reproduce(tmp_path, data=lambda: pytest.fail("nothing is left to do"), **options)
    entries = rotation.load(tmp_path)
    assert [entry["title"] for entry in entries] == [case.title for case in chosen.values()]
    assert f"| {entries[0]['slope']:.3f} |" in report.table("rotation", tmp_path)
    figures.rotations(tmp_path, tmp_path / "a.png")
    assert json.loads((tmp_path / "rotation" / "plain-10k.json").read_text())["predicted"]
    assert results.load_all(tmp_path) == {}


def test_the_loss_of_angles_knows_that_they_turn_around():
    near = rotation.angle_loss(torch.tensor([math.pi - 0.01]), torch.tensor([-math.pi + 0.01]))
    assert near == pytest.approx(1 - math.cos(0.02), abs=1e-6)
    assert rotation.angle_loss(torch.tensor([0.5]), torch.tensor([0.5 + math.pi])) == pytest.approx(2)
