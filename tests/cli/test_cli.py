"""The command `et`: what it writes and prints, and that every error is one line with the right exit code."""

import dataclasses
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import stand_ins
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from matfiles import write_svhn
from PIL import Image
from rich.console import Console

from equivariant_transformers import cli, install
from equivariant_transformers.cli import console
from equivariant_transformers.cli.config import make_config, read_yaml, to_yaml
from equivariant_transformers.cli.defaults import choose
from equivariant_transformers.cli.presets import PRESETS
from equivariant_transformers.data import DATASETS, ImageSet, Source, Splits
from equivariant_transformers.experiments import results
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.zoo import pretrained
from equivariant_transformers.models import build
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.training import CHECKPOINT, Config, Stopped
from equivariant_transformers.training import job as job_module
from equivariant_transformers.training.aligning import default_augment
from equivariant_transformers.training.checkpoint import read
from equivariant_transformers.training.job import find_data

SMALL = ["--network", "z2cnn", "--layers", "rotation", "--batch-size", "10", "--keep", "best", "--device", "cpu"]


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    """A folder with bright bars, across and down, on a dark ground."""
    folder = tmp_path_factory.mktemp("data") / "bars"
    rng = np.random.default_rng(0)
    for name in ("across", "down"):
        (folder / name).mkdir(parents=True)
        for number in range(15):
            picture = rng.integers(0, 60, (24, 24), np.uint8)
            middle = rng.integers(6, 18)
            bar = np.s_[middle - 2 : middle + 2]
            picture[(slice(None), bar) if name == "down" else bar] += 150
            Image.fromarray(picture).save(folder / name / f"{number}.png")
    return str(folder)


@pytest.fixture(scope="module")
def trained(bars, tmp_path_factory):
    """The directory of a finished run of two epochs."""
    directory = tmp_path_factory.mktemp("runs") / "finished"
    assert cli.main(["train", bars, *SMALL, "--epochs", "2", "--out", str(directory)]) == 0
    return directory


@pytest.fixture
def et(run):
    return run


def blank(examples=20, *, fail=None, progress=None):
    if fail:
        raise OSError(f"the disk\nsaid {fail}")
    if progress:
        progress("drawing", 1.0)
    images = torch.zeros(examples, 1, 8, 8, dtype=torch.uint8)
    part = ImageSet(images=images, labels=torch.arange(examples) % 10, name="blank", origin="drawn")
    return Splits(part, part, part)


@pytest.fixture
def blank_is_known(monkeypatch):
    source = Source(name="blank", summary="nothing to see", licence="none", download_bytes=3_000_000, load=blank)
    monkeypatch.setitem(DATASETS, "blank", source)


# Training


def test_train_writes_all_there_is_to_know(trained, bars):
    assert {path.name for path in trained.iterdir()} == {
        "checkpoint.safetensors",
        "config.yaml",
        "confusion.png",
        "history.csv",
        "model.safetensors",
        "result.json",
    }
    record = results.load(trained / "result.json")
    assert record.config == Config.from_dict(read_yaml(trained / "config.yaml"))
    assert record.config.dataset == bars
    assert len(record.losses) == 2
    classifier = Classifier.load(trained / "model.safetensors")
    assert classifier.card.test_error == record.test_error
    assert classifier.card.classes == ("across", "down")
    tensors, _ = read(trained / CHECKPOINT)
    assert torch.equal(tensors["best/backbone.head.bias"], classifier.module.backbone.head.bias)


def test_train_prints_a_line_an_epoch_and_the_result_on_stdout(et, bars, tmp_path):
    out, err = et("train", bars, *SMALL, "--epochs", 1, "--out", tmp_path / "run")
    assert re.search(r"epoch 1/1: loss [\d.]+, validation [\d.]+ %, best [\d.]+ %, [\d.]+ s\nclassifying: 100%\n$", err)
    lines = out.splitlines()
    assert lines[0].startswith("test error ")
    assert " % with epoch 1 of 1, " in lines[0]
    assert re.fullmatch(r"class +test images +error +most often taken for", lines[1])
    assert {line.split()[0] for line in lines[2:4]} == {"across", "down"}
    assert lines[4] == f"model: {tmp_path / 'run' / 'model.safetensors'}"
    assert lines[5].startswith("parameter ")
    assert re.fullmatch(r"rotation +0\.\d\d of the image +-3\.14 \.\. \+3\.14 .*", lines[6])  # one layer: no stack
    assert len(lines) == 7
    wrong = sum(int(line.split()[1]) * float(line.split()[2]) / 100 for line in lines[2:4])
    assert float(lines[0].split()[2]) == pytest.approx(100 * wrong / 6, abs=0.1)


def test_settings_that_are_not_given_are_chosen_from_the_folder(et, bars, tmp_path):
    command = ("train", bars, "--network", "z2cnn", "--device", "cpu", "--out", tmp_path / "run")
    _, err = et(*command, "--epochs", 1)
    rates = "learning rate 0.002, 3 epochs of warm-up, decay 0.99"
    assert f"resized to 64 x 64\nbatch size 8, 1 epoch, {rates}\n" in err
    written = read_yaml(tmp_path / "run" / "config.yaml")
    fields = ("batch_size", "epochs", "patience", "keep", "warmup", "lr_decay", "size")
    assert [written[name] for name in fields] == [8, 1, None, "last", 3, 0.99, 64]
    et("train", "--config", tmp_path / "run" / "config.yaml", "--out", tmp_path / "run")
    assert read_yaml(tmp_path / "run" / "config.yaml") == written
    assert PRESETS["mnist"].epochs == Config().epochs  # the paper's protocol elsewhere


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ({}, ("consistent", 0.0)),
        ({"layers": "rotation"}, ("posterior", 1.0)),
        ({"layers": "rotation", "predictor": "posterior"}, ("posterior", 1.0)),
        ({"layers": "rotation", "predictor": "consistent"}, ("consistent", 0.0)),
        ({"layers": "rotation", "alignment": "0"}, ("consistent", 0.0)),
        ({"layers": "rotation", "augment": "rotation=0.3"}, ("posterior", 1.0)),
        ({"layers": "rotation", "augment": "rotation=0.3", "alignment": "0.5"}, ("posterior", 0.5)),
        ({"layers": "rotation", "augment": "rotation=0.3", "alignment": "0"}, ("consistent", 0.0)),
        ({"layers": "rotation", "augment": "rotation=0.3", "predictor": "softmax"}, ("softmax", 1.0)),
    ],
)
def test_upright_photographs_are_aligned(bars, tmp_path, flags, chosen):
    for name in (bars, "cifar10"):
        config = make_config(name, None, flags)
        assert (config.predictor, config.alignment) == chosen
        if config.alignment:
            assert (config.keep, config.patience) == ("last", None)
            assert config.augment == ((flags["augment"],) if "augment" in flags else default_augment(config.layers))
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert make_config(None, tmp_path / "config.yaml", {}) == config
    if flags.get("predictor") != "posterior":
        assert make_config("mnist", None, {**flags, "alignment": "0"}).predictor == flags.get("predictor", "consistent")
    given = {"augment": flags["augment"]} if "augment" in flags else {}
    assert make_config("svhn", None, given).alignment == (1.0 if given else 0.0)
    assert make_config("svhn", None, given).predictor == "consistent"
    assert make_config("rotated-mnist", None, given).alignment == 0


def test_a_config_from_before_the_alignment_loss_stays_as_it_was(bars, tmp_path):
    before = make_config(bars, None, {"layers": "rotation", "augment": "rotation=0.3", "alignment": "0"})
    lines = to_yaml(before).splitlines(keepends=True)
    (tmp_path / "config.yaml").write_text("".join(line for line in lines if not line.startswith("alignment")))
    assert make_config(None, tmp_path / "config.yaml", {}) == before


def test_train_prints_one_epoch_of_warmup(et, bars, tmp_path):
    err = et("train", bars, *SMALL, "--epochs", 1, "--warmup", 1, "--out", tmp_path).err
    assert ", 1 epoch, learning rate 0.002, 1 epoch of warm-up, " in err


def test_train_prints_the_predictor_and_the_alignment(et, bars, tmp_path):
    command = ("train", bars, *SMALL, "--augment", "rotation=0.3", "--epochs", 1, "--out", tmp_path / "run")
    assert "\nlayers rotation, predictor posterior, alignment 1\n" in et(*command).err
    resume = ("train", "--config", tmp_path / "run" / "config.yaml", "--out", tmp_path / "run", "--epochs", 2)
    assert "\nlayers rotation, predictor posterior, alignment 1\n" in et(*resume).err
    assert Classifier.load(tmp_path / "run" / "model.safetensors").card.config.alignment == 1
    other = ("--predictor", "posterior", "--alignment", "0", "--out", tmp_path / "other")
    wrong = et("train", bars, *SMALL, *other, code=2)
    assert "learns from the alignment loss alone" in wrong.err
    wrong = et("train", bars, *SMALL, "--alignment", "1", "--out", tmp_path / "other", code=2)
    assert "alignment must be 0 without augment" in wrong.err


@given(st.integers(1, 10**6), st.integers(0, 10**5))
def test_small_and_large_folders_get_enough_steps(images, validation):
    chosen = choose(images, validation)
    steps = max(1, images // chosen["batch_size"])
    assert 8 <= chosen["batch_size"] <= 128
    assert steps >= 8 or chosen["batch_size"] == 8
    assert 20 <= chosen["epochs"] <= 300
    assert steps * chosen["epochs"] >= 5_900 or chosen["epochs"] == 300
    if validation < 10:
        assert (chosen["patience"], chosen["keep"]) == (None, "last")
    else:
        assert 10 <= chosen["patience"] < chosen["epochs"]
        assert chosen["keep"] == "best"
    config = Config(**chosen)
    assert config.learning_rate_in(chosen["epochs"]) == pytest.approx(0.05 * config.learning_rate, rel=0.2)


def test_the_best_model_so_far_is_on_disk_when_a_run_is_interrupted(et, bars, tmp_path, monkeypatch):
    seen = []

    def interrupt(self, progress):
        if progress.step == 0:
            seen.append(Classifier.load(tmp_path / "run" / "model.safetensors").card)
            if progress.epoch == 2:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("equivariant_transformers.cli.train._Begin.__call__", interrupt)
    command = ("train", bars, *SMALL, "--epochs", 9, "--out", tmp_path / "run")
    err = et(*command, code=130).err.splitlines()
    assert err[-2] == f"the model so far: {tmp_path / 'run' / 'model.safetensors'}"
    assert err[-1].startswith("stopped by SIGINT; the run is saved")
    assert len(seen) == 2
    assert all(card.validation_error is not None and card.test_error is None for card in seen)
    assert json.loads(et("predict", tmp_path / "run" / "model.safetensors", f"{bars}/down/0.png", "--json").out)


@pytest.mark.parametrize(("options", "side"), [((), 64), (("--size", 56), 56)])
def test_train_says_how_large_the_images_are(et, bars, tmp_path, options, side):
    _, err = et("train", bars, *SMALL, "--epochs", 1, "--out", tmp_path / "run", *options)
    assert f"21/3/6 images, 2 classes, resized to {side} x {side}\n" in err
    assert Classifier.load(tmp_path / "run" / "model.safetensors").card.size == (side, side)
    et("evaluate", tmp_path / "run" / "model.safetensors")
    assert "does not let you choose size" in et("train", "mnist", "--size", 40, code=1).err


def test_train_audits_the_stack_in_the_range_of_the_augmentation(et, bars, tmp_path):
    options = ("--layers", "rotation,x_shear", "--augment", "x_shear=0.1", "--chart", "log_polar", "--epochs", 1)
    found = json.loads(et("train", bars, *SMALL, *options, "--out", tmp_path / "run", "--json").out)["audit"]
    assert [(entry["name"], entry["theta"][1]) for entry in found["fixed_frame"]] == [
        ("rotation", pytest.approx(np.pi)),
        ("x_shear", 0.1),
    ]
    assert found["frames"]["modulo"] == "similarity"
    assert len(found["frames"]["quartiles"]) == len(found["frames"]["quartiles_no_layers"]) == 3
    out, _ = et("train", bars, *SMALL, *options, "--out", tmp_path / "run")
    assert "\nframe consistency modulo similarity: " in out
    bare = et("train", bars, *SMALL, "--layers", "none", "--epochs", 1, "--out", tmp_path / "bare", "--json").out
    assert json.loads(bare)["audit"] is None


def test_the_same_command_goes_on_and_fresh_begins_anew(et, bars, tmp_path):
    command = ("train", bars, *SMALL, "--out", tmp_path / "run", "--json")
    first = json.loads(et(*command, "--epochs", 1).out)
    longer = json.loads(et(*command, "--epochs", 2).out)
    assert longer["losses"][0] == first["losses"][0]
    assert len(longer["losses"]) == 2
    finished, err = et(*command, "--epochs", 2)
    assert {**json.loads(finished), "seconds": 0} == {**longer, "seconds": 0}
    assert "\nepoch " not in err
    _, err = et(*command, "--epochs", 1, "--fresh")
    assert "epoch 1/1" in err
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["epochs"] == 1


def test_a_finished_run_is_tested_again_with_its_last_epoch(et, trained, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(trained, directory)
    losses = json.loads((directory / "result.json").read_text())["losses"]
    out, err = et("train", "--config", directory / "config.yaml", "--out", directory, "--keep", "last")
    assert re.match(rf"test error [\d.]+ % with the last of {len(losses)} epochs \([\d.]+ % on validation data\)", out)
    assert "\nepoch " not in err
    again = json.loads((directory / "result.json").read_text())
    assert (again["best_epoch"], again["losses"]) == (len(losses), losses)
    assert yaml.safe_load((directory / "config.yaml").read_text())["keep"] == "last"
    assert Classifier.load(directory / "model.safetensors").card.config.keep == "last"


def test_a_run_stopped_by_sigterm_says_how_to_go_on_and_loses_nothing(et, bars, trained, tmp_path):
    directory = tmp_path / "a run"
    arguments = ["train", bars, *SMALL, "--epochs", "500", "--out", str(directory)]
    command = [sys.executable, "-m", "equivariant_transformers", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    while not (directory / "config.yaml").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("stopped by SIGTERM; the run is saved, resume with: et train --config ")
    assert "Traceback" not in err
    options = ["--config", str(directory / "config.yaml"), "--out", str(directory)]
    assert last.split("et ")[1] == f"train --config '{options[1]}' --out '{directory}'"
    done = max(2, err.count("\nepoch "))
    et("train", *options, "--epochs", done)
    resumed, whole = (results.load(path / "result.json") for path in (directory, trained))
    assert resumed.losses[:2] == whole.losses


def test_a_run_that_diverges_says_why_and_exits_with_3(et, bars, tmp_path):
    arguments = ("train", bars, *SMALL, "--epochs", 2, "--learning-rate", "1e30", "--out", tmp_path / "run", "--json")
    out, err = et(*arguments, code=3)
    assert err.splitlines()[-1].startswith("error: training diverged: the loss was nan in epoch 1;")
    record = json.loads(out)
    assert record["failure"]
    assert record["losses"] == [None]
    assert np.isnan(results.load(tmp_path / "run" / "result.json").losses).all()
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_the_directory_of_another_run_stays_as_it_was(et, bars, trained):
    before = {path: path.read_bytes() for path in trained.iterdir()}
    _, err = et("train", bars, *SMALL, "--epochs", 2, "--seed", 7, "--out", trained, code=1)
    assert "belongs to another run: seed is 0 in the file and 7 in this run" in err.splitlines()[-1]
    assert {path: path.read_bytes() for path in trained.iterdir()} == before


def test_logs_on_request(et, bars, tmp_path, monkeypatch):
    written = []
    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = lambda directory, **_: types.SimpleNamespace(
        add_scalar=lambda name, _, step: written.append((directory, name, step)),
        add_image=lambda name, image, step: written.append((tuple(image.shape), name, step)),
        flush=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    arguments = ("train", bars, *SMALL, "--epochs", 1, "--out", tmp_path, "--log")
    et(*arguments, "tensorboard")
    events = str(tmp_path / "tensorboard")
    names = ("loss", "validation_error", "learning_rate", "seconds")
    *figures, (shape, *image) = written
    assert figures == [(events, name, 1) for name in names]
    assert image == ["canonical images", 1]
    assert shape == (3, 2 * 64, 3 * 64)  # three validation images
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    _, err = et(*arguments, "tensorboard", code=1)
    message = "error: the log tensorboard needs the package tensorboard: pip install "
    assert err.startswith(message)  # before any image is read
    _, err = et(*arguments, "tensorbord", code=2)
    assert err == "error: unknown log 'tensorbord'. Did you mean 'tensorboard'? The logs are: tensorboard, wandb\n"


def test_pretrained_weights_get_a_smaller_learning_rate(et, bars, tmp_path, monkeypatch):
    stand_ins.install("timm", monkeypatch)
    arguments = ("train", bars, "--network", "timm:resnet18", "--pretrained", "--epochs", 1, "--out", tmp_path)
    assert "learning rate 0.0002, " in et(*arguments).err
    assert "learning rate 0.01, " in et(*arguments, "--learning-rate", 0.01, "--fresh").err


@pytest.mark.parametrize(("library", "module"), [("timm", "timm"), ("torchvision", "torchvision.models")])
def test_a_missing_library_is_named_before_images_are_read(et, bars, tmp_path, monkeypatch, library, module):
    monkeypatch.setitem(sys.modules, module, None)
    _, err = et("train", bars, "--network", f"{library}:resnet18", "--out", tmp_path, code=1)
    assert err == f"error: the network {library}:resnet18 needs {library}: pip install {library}\n"


def test_a_terminal_gets_a_bar_that_fits(et, bars, tmp_path, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "ERR", Console(file=screen, force_terminal=True, width=80, color_system=None))
    et("train", bars, *SMALL, "--epochs", 2, "--out", tmp_path / "run")
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[\??[\d;]*\w", "", screen.getvalue()))
    last = [line for line in lines if line.startswith("epoch")][-1]
    assert re.fullmatch(r"epoch 2/2 ━+ loss [\d.]+ validation [\d.]+ % best [\d.]+ % 0:00:00", last)
    assert len(last) == 80


def test_only_the_first_process_speaks(et, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert et("info").out  # a cluster may number its jobs so; torchrun says also how many processes there are
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert et("info") == ("", "")
    assert et("data", "fetch", "nothing", code=2).err.startswith("process 1: error: there is no folder 'nothing'")


def test_a_run_does_not_go_on_with_other_images(et, bars, tmp_path):
    """Some of those that it has trained on would now be test images."""
    folder = shutil.copytree(bars, tmp_path / "bars")
    command = ("train", folder, *SMALL, "--out", tmp_path / "run", "--epochs", 1)
    et(*command)
    before = (tmp_path / "run" / "result.json").read_text()
    shutil.copy(folder / "down" / "0.png", folder / "down" / "new.png")
    assert "belongs to a run on other images" in et(*command, code=1).err
    assert (tmp_path / "run" / "result.json").read_text() == before
    et(*command, "--fresh")


def test_fresh_takes_nothing_away_before_it_can_begin_and_leaves_nothing_old(et, trained, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(trained, directory)
    again = ["train", "--config", directory / "config.yaml", "--out", directory, "--fresh"]
    before = sorted(path.name for path in directory.iterdir())
    (tmp_path / "empty").mkdir()
    et(*again, "--dataset", tmp_path / "empty", code=1)
    assert sorted(path.name for path in directory.iterdir()) == before
    et(*again, "--learning-rate", 1e30, code=3)
    assert not (directory / "model.safetensors").exists()


def test_a_folder_does_not_hide_the_data_set_of_its_name(et, bars, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bars, "mnist")
    assert make_config("mnist", None, {}) == PRESETS["mnist"]
    assert find_data("mnist") == DATASETS["mnist"].load
    command = ("train", "./mnist", *SMALL, "--epochs", 1, "--out", "run")
    et(*command)
    assert Classifier.load("run/model.safetensors").card.classes == ("across", "down")
    assert json.loads(et("evaluate", "run/model.safetensors", "--json").out)["images"] == 6


# Configs

numbers = st.floats(1e-8, 0.9, allow_nan=False)
configs = st.builds(
    Config,
    examples=st.none() | st.integers(1, 10**6),
    layers=st.lists(st.sampled_from(["x_shear", "rotation"])).map(tuple),
    augment=st.lists(st.sampled_from(["rotation=3.14", "dilation=0.2"]), unique=True).map(tuple),
    chart=st.none() | st.just("log_polar"),
    fill=st.sampled_from(["border", "black"]),
    keep=st.sampled_from(["best", "last"]),
    learning_rate=numbers,
    lr_decay=numbers,
    seed=st.integers(0, 2**40),
    compile=st.booleans(),
)


@given(configs)
def test_yaml_holds_the_whole_config(tmp_path_factory, config):
    file = tmp_path_factory.mktemp("yaml") / "config.yaml"
    file.write_text(to_yaml(config))
    assert make_config(None, file, {}) == config


@given(configs)
def test_flags_say_what_fields_are(config):
    fields = config.to_dict().items()
    flags = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in fields}
    assert make_config(None, None, {**flags, "pretrained": False, "compile": config.compile}) == config


def test_flags_come_before_yaml_and_yaml_before_the_preset(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("learning_rate: 2e-4\nepochs: 7\nlayers: [rotation]\n")
    config = make_config("affnist", file, {"epochs": "9", "layers": None, "chart": "none"})
    expected = PRESETS["affnist"].replace(learning_rate=2e-4, epochs=9, layers=("rotation",), chart=None)
    assert config == expected
    assert make_config("svhn", None, {"layers": "none"}).layers == ()


def test_a_folder_is_the_same_however_it_is_written(bars, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bars, "bars")
    first, *others = (make_config(name, None, {}) for name in ("bars", "bars/", "./bars"))
    assert first.dataset == "bars"
    assert others == [first, first]
    shutil.copytree(bars, "mnist")
    assert make_config("mnist/", None, {}).dataset == "mnist/"  # not the data set


def test_help_has_every_field_with_its_docstring(et, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    out, _ = et("train", "--help")
    for field in dataclasses.fields(Config):
        (line,) = (line for line in out.splitlines() if f"--{field.name.replace('_', '-')} " in line)
        assert re.search(r"[A-Za-z]{3,}.*\. \(.+\)", line.split("  ", 2)[-1]), line
    assert (
        "Exit codes: 0 success, 1 failure, 2 usage error, 3 training diverged, 130 or 143 interrupted" in et("-h").out
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_complete(name):
    assert set(PRESETS) == set(DATASETS)
    config = make_config(name, None, {})
    sizes = {"projective": 64, "affnist": 40, "svhn": 32, "cifar": 32, "mnist-rts": 42, "sim2mnist": 96}
    sizes |= {"homnist": 40, "rs-mnist": 56}
    size = next((side for start, side in sizes.items() if name.startswith(start)), 28)
    channels = 3 if name.startswith(("svhn", "cifar")) else 1
    network = build(
        config.network, layers=config.layers, chart=config.chart, in_channels=channels, size=(size, size)
    ).eval()
    with torch.no_grad():
        assert network(torch.rand(1, channels, size, size)).shape == (1, 10)


def test_the_pages_list_what_there_is():
    docs = Path(__file__).parents[2] / "docs"
    rows = re.findall(r"^\| `(\w+)` \| ([\w.-]+) \| (.*) \|$", (docs / "training.md").read_text(), re.MULTILINE)
    defaults = {
        name: "none" if value in (None, []) else str(value).lower() for name, value in Config().to_dict().items()
    }
    assert {name: default for name, default, _ in rows} == defaults
    page = (docs / "cli.md").read_text()
    for name, config in PRESETS.items():
        layers = ", ".join(f"`{layer}`" for layer in config.layers)
        row = f"| `{name}` | `{config.network}` | {layers} | {f'`{config.chart}`' if config.chart else ''} |"
        assert " ".join(row.split()) in page


# Using a model


def test_evaluate_finds_the_error_that_training_found(et, trained):
    record = results.load(trained / "result.json")
    model = trained / "model.safetensors"
    found = json.loads(et("evaluate", model, "--json").out)
    assert found["test_error"] == pytest.approx(record.test_error)
    assert found["interval"][0] <= found["test_error"] <= found["interval"][1]
    assert found["images"] == 6
    confusion = torch.tensor(found["confusion"])
    assert confusion.shape == (len(found["classes"]),) * 2
    assert confusion.sum(1).tolist() == [3, 3]  # the test images of each class
    assert confusion.sum() - confusion.trace() == found["mistakes"]
    out, _ = et("evaluate", model)
    assert out.startswith(f"test error {record.test_error:.2f} % (95 %: ")


def test_evaluate_says_how_often_it_looked(et, bars, tmp_path):
    """With views a network without layers can look more than once, too."""
    et("train", bars, *SMALL, "--layers", "", "--augment", "rotation=0.5", "--epochs", 1, "--out", tmp_path)
    model = tmp_path / "model.safetensors"
    assert json.loads(et("evaluate", model, "--json").out)["tta"] == 1
    assert json.loads(et("evaluate", model, "--tta", 3, "--json").out)["tta"] == 3
    assert et("evaluate", model, "--tta", 3).out.endswith(", test-time augmentation 3\n")
    assert "tta" not in et("evaluate", model).out
    et("evaluate", model, "--tta", 1)


@pytest.mark.parametrize("tta", [1, 2, 4, 9])
def test_tta_takes_smaller_batches_and_no_more_memory(et, monkeypatch, tta):
    part = ImageSet(images=torch.zeros(10, 1, 64, 64, dtype=torch.uint8), labels=torch.arange(10), name="", origin="")
    monkeypatch.setattr("equivariant_transformers.cli.evaluate.load_test_images", lambda *_, **__: part)
    monkeypatch.setitem(job_module._EVALUATION_BATCH, "cpu", 4)
    seen, forward = [], Canonicalized.forward
    monkeypatch.setattr(Canonicalized, "forward", lambda *a: seen.append(len(a[1])) or forward(*a))
    et("evaluate", "projective-mnist-softmax", "--tta", tta, "--device", "cpu")
    assert sum(seen) == 10 * tta
    assert max(seen) == max(4, tta)


def test_evaluate_warns_of_a_folder_that_has_changed_since_training(et, bars, tmp_path):
    """Some of the images that the model has trained on would now be test images."""
    folder, model = shutil.copytree(bars, tmp_path / "bars"), tmp_path / "run" / "model.safetensors"
    et("train", folder, *SMALL, "--out", model.parent, "--epochs", 1)
    shutil.move(folder, tmp_path / "moved" / "bars")
    folder = tmp_path / "moved" / "bars"
    assert "warning" not in et("evaluate", model, "--dataset", folder).err
    shutil.copy(folder / "down" / "0.png", folder / "down" / "new.png")
    _, err = et("evaluate", model, "--dataset", folder)
    assert f"warning: the images in {folder} have changed since training" in err


@pytest.mark.parametrize(
    "wrong",
    [
        "evaluate MODEL --device abacus",
        "evaluate MODEL --dataset nothing",
        "evaluate MODEL --tta 0",
        "evaluate projective-mnist-plain --tta 2",
        "evaluate projective-mnist-softmax --poses 2",
        "predict MODEL a.png --device abacus",
        "predict projective-mnist-softmax a.png --tta 0",
        "predict projective-mnist-softmax a.png --poses 0",
    ],
)
def test_a_wrong_name_is_wrong_usage(et, trained, wrong):
    assert et(*wrong.replace("MODEL", str(trained / "model.safetensors")).split(), code=2).err.startswith("error: ")
    assert et("audit", "--group", "rotation", *wrong.split()[-2:], code=2).err.startswith("error: ")


def test_evaluate_on_other_classes_is_refused(et, trained, tmp_path):
    for name in ("cats", "dogs", "eels"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("L", (9, 9)).save(tmp_path / name / f"{number}.png")
    _, err = et("evaluate", trained / "model.safetensors", "--dataset", tmp_path, code=1)
    assert "the model has the classes across, down, but" in err.splitlines()[-1]
    assert "has cats, dogs, eels; choose a data set" in err.splitlines()[-1]


def test_predict(et, trained, bars, tmp_path):
    model = trained / "model.safetensors"
    files = [f"{bars}/across/0.png", f"{bars}/down/0.png"]
    out, err = et("predict", model, *files, "--canonical-out", tmp_path / "canonical", "--json")
    assert err == ""
    found = json.loads(out)
    assert [entry["image"] for entry in found] == files
    for entry, name in zip(found, ("0.png", "0-2.png"), strict=True):
        assert entry["class"] in ("across", "down")
        assert 0.5 <= entry["confidence"] <= 1
        assert list(entry["pose"]) == ["rotation"]
        assert entry["canonical"] == str(tmp_path / "canonical" / name)
        with Image.open(entry["canonical"]) as picture:
            assert (picture.size, picture.mode) == ((64, 64), "RGB")
    out, _ = et("predict", model, *files)
    assert out.splitlines()[0].split() == ["image", "class", "confidence", "rotation"]
    assert len(out.splitlines()) == 3


def test_predict_with_tta(et, bars):
    classifier, image = pretrained("projective-mnist-softmax"), Path(bars) / "down" / "0.png"
    classifier.tta = 3
    with torch.no_grad():
        expected = classifier(classifier.prepare(image)[None]).exp().max().item()
    (found,) = json.loads(et("predict", "projective-mnist-softmax", image, "--tta", 3, "--json").out)
    assert found["confidence"] == pytest.approx(expected, rel=1e-4)
    (once,) = json.loads(et("predict", "projective-mnist-softmax", image, "--json").out)
    assert once["confidence"] != pytest.approx(expected, rel=1e-4)


def test_evaluate_and_predict_with_several_poses(et, bars, tmp_path):
    """The class and the pose are those of the chosen candidate."""
    et("train", bars, *SMALL, "--layers", "rotation", "--epochs", 1, "--out", tmp_path)
    model, image = tmp_path / "model.safetensors", Path(bars) / "down" / "0.png"
    assert json.loads(et("evaluate", model, "--json").out)["poses"] == 1
    assert json.loads(et("evaluate", model, "--poses", 3, "--json").out)["poses"] == 3
    assert et("evaluate", model, "--poses", 3).out.endswith(", 3 poses\n")
    classifier = Classifier.load(model)
    classifier.poses = 3
    with torch.no_grad():
        pixels = classifier.prepare(image)[None]
        expected, pose = classifier.predict(pixels).max().item(), classifier.canonicalize(pixels).pose.item()
    (found,) = json.loads(et("predict", model, image, "--poses", 3, "--json").out)
    assert found["confidence"] == pytest.approx(expected, rel=1e-4)
    assert found["pose"]["rotation"] == pytest.approx(pose, abs=1e-4)


def test_predict_takes_folders(et, trained, bars, tmp_path):
    shutil.copytree(bars, tmp_path / "bars")
    (tmp_path / "bars" / ".hidden.png").write_text("ignored")
    files = sorted(str(path) for path in (tmp_path / "bars").rglob("[0-9]*.png"))
    out = et("predict", trained / "model.safetensors", tmp_path / "bars", "--json").out
    assert [entry["image"] for entry in json.loads(out)] == files
    (tmp_path / "empty").mkdir()
    assert "a folder without files" in et("predict", trained / "model.safetensors", tmp_path / "empty", code=1).err


def test_predict_reads_files_in_batches(et, trained, bars, tmp_path, monkeypatch):
    """Each file has the prediction that it has alone, also between files that cannot be read."""
    shutil.copytree(bars, tmp_path / "bars")
    (tmp_path / "bars" / "across" / "1.png").write_text("no picture")
    batches = []
    whole = Classifier.predict
    monkeypatch.setattr(Classifier, "predict", lambda self, images: batches.append(len(images)) or whole(self, images))
    model = trained / "model.safetensors"
    found = json.loads(et("predict", model, tmp_path / "bars", "--json", code=1).out)
    assert max(batches) > 8
    assert sum(batches) == len(found) - 1
    assert next(entry["error"] for entry in found if "across/1.png" in entry["image"]) == "not an image"
    for entry in found[:3:2] + found[-2:]:
        (alone,) = json.loads(et("predict", model, entry["image"], "--json").out)
        assert alone["class"] == entry["class"]
        assert alone["confidence"] == pytest.approx(entry["confidence"], abs=1e-4)
        assert alone["pose"] == pytest.approx(entry["pose"], abs=1e-4)


def test_canonical_images_keep_the_folders_of_their_files(et, trained, bars, tmp_path):
    shutil.copytree(bars, tmp_path / "bars")
    (tmp_path / "bars" / "bars.csv").write_text("path\ndown/0.png\n./across/0.png\n")
    out, table = tmp_path / "out", tmp_path / "table"
    model = trained / "model.safetensors"
    found = json.loads(et("predict", model, tmp_path / "bars", "--canonical-out", out, "--json", code=1).out)
    assert {entry["image"].replace(str(tmp_path / "bars"), str(out)) for entry in found if "canonical" in entry} == {
        entry["canonical"] for entry in found if "canonical" in entry
    }
    assert (out / "across" / "0.png").is_file()
    et("predict", model, tmp_path / "bars" / "bars.csv", "--canonical-out", table)
    assert sorted(path.relative_to(table).as_posix() for path in table.rglob("*.png")) == ["across/0.png", "down/0.png"]


def test_predict_prints_the_results_until_it_is_interrupted(et, trained, bars, tmp_path, monkeypatch):
    shutil.copytree(bars, tmp_path / "bars")
    for number in range(40):
        shutil.copy(f"{bars}/down/0.png", tmp_path / "bars" / "down" / f"more {number}.png")
    whole, calls = Classifier.predict, []

    def interrupted(self, images):
        calls.append(images)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(self, images)

    monkeypatch.setattr(Classifier, "predict", interrupted)
    total = len([*(tmp_path / "bars").rglob("*.png")])
    out, err = et("predict", trained / "model.safetensors", tmp_path / "bars", "--json", code=130)
    assert len(json.loads(out)) == 32
    assert err.splitlines()[-1] == f"stopped after 32 of {total} files"


def test_predict_names_and_skips_what_is_no_image(et, trained, bars, tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    files = [tmp_path / "notes.png", f"{bars}/down/1.png", tmp_path / "missing.png"]
    out, err = et("predict", trained / "model.safetensors", *files, code=1)
    assert err.splitlines() == [
        f"error: {files[0]}: not an image",
        f"error: {files[2]}: No such file or directory",
    ]
    assert "down/1.png" in out
    found = json.loads(et("predict", trained / "model.safetensors", *files, "--json", code=1).out)
    assert ["error" in entry for entry in found] == [True, False, True]


def test_predict_says_why_a_file_is_cut_off_and_leaves_names_alone(et, trained, bars, tmp_path):
    whole = Path(f"{bars}/down/1.png").read_bytes()
    cut, odd = tmp_path / "cut.png", tmp_path / "odd[/b][red].png"
    cut.write_bytes(whole[: len(whole) // 2])
    odd.parent.mkdir()  # the slash is one of a path
    odd.write_bytes(whole)
    out, err = et("predict", trained / "model.safetensors", cut, odd, code=1)
    assert "odd[/b][red].png" in out
    assert err.startswith(f"error: {cut}: ")
    assert "None" not in err


def test_audit_of_layers_by_name(et, bars, tmp_path):
    picture = tmp_path / "plots" / "audit.png"
    names = "x_translation,log_polar"
    out, _ = et("audit", "--group", names, "--dataset", bars, "--count", 2, "--json", "--out", picture)
    found = json.loads(out)
    assert found["images"] == 2
    parameters = {entry["name"]: entry for entry in found["parameters"]}
    assert list(parameters) == ["x_translation", "rotation", "dilation"]
    assert parameters["x_translation"]["slope"] == pytest.approx(1, abs=0.02)
    assert parameters["rotation"]["theta"] == pytest.approx([-np.pi, np.pi])
    fixed = {entry["name"]: entry for entry in found["fixed_frame"]}  # the bars fill their frame
    assert list(fixed) == list(parameters)
    assert fixed["x_translation"]["slope"] < 0.5  # noise comes and goes at the edges
    assert found["frames"]["modulo"] is None
    with Image.open(picture) as plot:
        assert plot.format == "PNG"


def test_audit_tells_predictors_apart(et, bars):
    common = ("--group", "x_shear", "--dataset", bars, "--count", 2, "--json")
    slopes = {
        predictor: json.loads(et("audit", *common, "--predictor", predictor).out)["parameters"][0]["slope"]
        for predictor in ("consistent", "softmax", "direct")
    }
    assert slopes["consistent"] > 0.9
    assert abs(slopes["softmax"]) < 0.5
    assert slopes["direct"] == 0  # it begins as the identity
    common = ("--group", "cartesian", *common[2:], "--predictor", "centre")
    assert all(row["slope"] > 0.9 for row in json.loads(et("audit", *common).out)["parameters"])


def test_audit_of_a_model(et, trained, bars):
    """The images are those of the folder on which the model was trained."""
    out, _ = et("audit", trained / "model.safetensors", "--count", 1)
    assert out == et("audit", trained / "model.safetensors", "--dataset", bars, "--count", 1).out
    head, canvas, frame = out.splitlines()  # one layer is not a stack
    assert re.split("  +", head)[:4] == ["parameter", "content", "theta", "slope (95 %)"]
    assert re.split("  +", head)[4:] == ["rms", "median", "rms theta", "rms pixels"]
    assert re.match(r"rotation   on a canvas        -3.14 .. \+3.14 ", canvas)
    assert re.match(r"rotation   0.6\d of the image  -3.14 .. \+3.14 ", frame)


# Data and information


@pytest.fixture
def other_svhn(tmp_path, monkeypatch):
    """A few images in the layout of SVHN's release, which are not the release."""
    write_svhn(tmp_path / "svhn", train=40, test=20)
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    known = DATASETS["svhn"]
    monkeypatch.setitem(DATASETS, "svhn", dataclasses.replace(known, load=partial(known.load, validation=10)))


@pytest.mark.usefixtures("other_svhn")
@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "svhn"),
        ("audit", "svhn", "--dataset", "svhn", "--count", 2),
        ("train", "svhn", "--layers", "none", "--epochs", 1, "--batch-size", 10),
    ],
    ids=lambda command: command[0],
)
def test_files_that_are_not_official_are_read_only_if_one_says_so(et, tmp_path, command):
    command = (*command, "--device", "cpu", "--json", *(["--out", tmp_path / "run"] if command[0] == "train" else []))
    assert (
        "pass accept_other_files=True (et train, evaluate, audit and reproduce: --accept-other-files) to use them"
        in et(*command, code=1).err
    )
    found = json.loads(et(*command, "--accept-other-files").out)
    assert found["origin"] == "files other than the official ones: train_32x32.mat, test_32x32.mat"


@pytest.mark.usefixtures("other_svhn")
def test_a_run_on_such_files_goes_on_with_them(et, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Stopped("stopped by SIGTERM", "SIGTERM")

    monkeypatch.setattr("equivariant_transformers.cli.train.run_jobs", stop)
    command = ("train", "svhn", "--batch-size", 10, "--device", "cpu", "--out", tmp_path / "run")
    _, err = et(*command, "--accept-other-files", code=143)
    assert err.endswith(f"--out {tmp_path / 'run'} --accept-other-files\n")


@pytest.mark.usefixtures("blank_is_known")
def test_data(et, tmp_path):
    assert "nothing to see" in et("data", "list").out
    listed = {entry["name"]: entry for entry in json.loads(et("data", "list", "--json").out)}
    assert listed["blank"]["present"]
    assert "30 train" in et("data", "fetch", "blank", "--option", "examples=30").out
    shown = et("data", "show", "blank", "--out", tmp_path / "sheet.png").out.splitlines()
    assert shown[0].split() == ["class", "train", "validation", "test"]
    assert shown[-1] == str(tmp_path / "sheet.png")
    assert et("data", "fetch", "blank", "--option", "fail=no", code=1).err == "error: the disk said no\n"


def test_info(et, tmp_path, monkeypatch):
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    found = json.loads(et("info", "--json").out)
    assert found["downloaded"] == []
    assert found["cache"] == str(tmp_path)
    assert "x_shear" in found["groups"]
    (tmp_path / "svhn").mkdir()
    for part in ("train", "test"):
        (tmp_path / "svhn" / f"{part}_32x32.mat").touch()
    out, _ = et("info")
    assert re.search(r"^downloaded +svhn$", out, re.MULTILINE)


# Errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("frobnicate", 2, "No such command 'frobnicate'"),
        ("train --laers x", 2, "No such option: --laers. Did you mean --layers? Try et train --help"),
        ("train mnist --lr 1", 2, "No such option: --lr. Did you mean --learning-rate? Try et train --help"),
        ("train mnist --wd 1", 2, "Did you mean --weight-decay?"),
        ("predict --qqqq", 2, "No such option: --qqqq. Try et predict --help"),
        ("train", 2, "nothing to train on"),
        ("train mnits", 2, "unknown preset 'mnits'. Did you mean 'mnist'?"),
        ("train ./no/such/folder", 2, "there is no folder or CSV file ./no/such/folder"),
        ("train mnist --layers x_sheer", 2, "unknown chart 'x_sheer'. Did you mean 'x_shear'?"),
        ("train mnist --chart polar", 2, "unknown chart 'polar'"),
        ("train mnist --augment rotatoin=1", 2, "unknown group 'rotatoin'. Did you mean 'rotation'?"),
        ("train mnist --augment rotation", 2, "as in rotation=3.14; got 'rotation'"),
        ("train mnist --augment rotation=-1", 2, "max_theta of 'rotation' must be a positive finite number, got -1.0"),
        ("train mnist --network resnet", 2, "unknown network 'resnet'"),
        ("train mnist --predictor psychic", 2, "unknown predictor 'psychic'"),
        ("train mnist --layers rotation --predictor centre", 2, "is for the chart 'cartesian' alone, got 'rotation'"),
        ("train mnist --fill pink", 2, "fill must be border or black, got 'pink'"),
        ("train mnist --epochs many", 2, "epochs takes a whole number, got 'many'"),
        ("train mnist --epochs 0", 2, "epochs must be at least 1, got 0"),
        ("train mnist --seed 1180591620717411303424", 2, "seed must be from -2**40 to 2**40, got 118"),
        ("train mnist --device cuda:99", 2, "GPU 'cuda:99' is not available"),
        ("train mnist --device abacus", 2, "the device must be auto, cpu, cuda"),
        ("train mnist --config nothing.yaml", 2, "error: nothing.yaml: No such file or directory"),
        ("train mnist --augment rotation=30", 2, "angles are in radians"),
        ("data show photos", 2, "there is no folder 'photos' in"),
        ("train mnist --copies 3", 1, "mnist does not let you choose copies"),
        ("evaluate nothing.safetensors", 1, "there is no checkpoint at nothing.safetensors"),
        ("predict", 2, "Missing argument"),
        ("predict nothing.safetensors picture.png", 1, "there is no checkpoint at"),
        ("audit", 2, "nothing to audit"),
        ("audit some.safetensors --group x_shear", 2, "not both"),
        ("audit --group x_sheer", 2, "unknown chart 'x_sheer'"),
        ("audit --group x_shear --predictor psychic", 2, "unknown predictor 'psychic'"),
        ("audit --group cartesian,x_shear --predictor centre", 2, "is for the chart 'cartesian' alone, got 'x_shear'"),
        ("audit --group x_shear --seed 1180591620717411303424", 2, "seed must be from -2**40 to 2**40"),
        ("audit --group x_shear --count 0", 2, "--count"),
        ("data fetch mnits", 2, "Did you mean 'mnist'?"),
        ("data fetch mnist --option examples", 2, "an option must be NAME=VALUE, got 'examples'"),
    ],
)
def test_an_error_is_one_line(et, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    out, err = et(*arguments.split(), code=code)
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: [1", "is not valid YAML"),
        ("- 1", "has no fields of a config"),
        ("epoch: 3", "unknown fields ['epoch']"),
        ("epochs: 2.5", "epochs takes a whole number, got 2.5"),
        ("epochs: true", "epochs takes a whole number, got True"),
        ("compile: 1", "compile takes true or false, got 1"),
        ("layers: [1]", "layers takes a list of names, got [1]"),
        ("network: 3", "network takes a string, got 3"),
    ],
)
def test_wrong_yaml(et, tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    _, err = et("train", "mnist", "--config", tmp_path / "config.yaml", code=2)
    assert message in err
    assert err.count("\n") == 1


def test_a_single_class_is_nothing_to_learn(et, tmp_path):
    for number in range(6):
        (tmp_path / "pictures" / "cat").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / "cat" / f"{number}.png")
    _, err = et("train", tmp_path / "pictures", "--out", tmp_path / "run", code=2)
    assert "has a single class, cat" in err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_long_table_says_how_much_it_leaves_out(capsys):
    console.table("class", ">error", rows=[[str(number), "1"] for number in range(23)], most=20)
    assert capsys.readouterr().out.splitlines()[-1] == "3 more"
    console.table("class", ">error", rows=[["one", "1"]], most=20)
    assert "more" not in capsys.readouterr().out


def test_damaged_models_and_full_disks(et, trained, bars, tmp_path, monkeypatch):
    (tmp_path / "cut").write_bytes((trained / "model.safetensors").read_bytes()[:-10])
    assert "cut off, damaged" in et("evaluate", tmp_path / "cut", code=1).err
    assert "load model.safetensors in the same folder" in et("evaluate", trained / CHECKPOINT, code=1).err
    (tmp_path / "file").touch()
    _, err = et("train", bars, *SMALL, "--epochs", 1, "--out", tmp_path / "file" / "run", code=1)
    assert err.splitlines()[-1] == f"error: {tmp_path / 'file' / 'run'}: Not a directory"
    _, err = et("train", bars, *SMALL, "--epochs", 1, "--out", tmp_path / "file", code=1)
    assert err.splitlines()[-1] == f"error: {tmp_path / 'file'}: a file, not a folder"
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert install.command("train") in et("evaluate", tmp_path / "cut", code=1).err


def test_tracebacks_only_with_debug(et, monkeypatch):
    for arguments in (["--debug", "evaluate", "no.file"], ["evaluate", "no.file", "--debug"]):
        _, err = et(*arguments, code=1)
        assert err.startswith("Traceback")
        assert err.endswith("error: there is no checkpoint at no.file\n")

    def broken(*_):
        raise KeyError("surprise")

    monkeypatch.setattr("equivariant_transformers.cli.info.gather", broken)
    assert et("info", code=1).err == "error: KeyError: 'surprise'. Add --debug for the traceback\n"


def test_no_command_is_help(et):
    assert "Usage: et [OPTIONS] COMMAND" in et(code=2).out


WITHOUT = """
import sys
from equivariant_transformers.cli import main
for missing in ("typer", "rich", "yaml"):
    sys.modules[missing] = None
    print(main(["info"]))
    del sys.modules[missing]
"""


def test_the_command_to_install_fits_the_installation(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "_CLONE", tmp_path)
    assert install.command("hub") == "pip install 'equivariant-transformers[hub]'"
    (tmp_path / "pyproject.toml").touch()
    assert install.command("hub") == f"pip install -e '{tmp_path}[hub]'"
    monkeypatch.chdir(tmp_path)
    assert install.command("hub") == "pip install -e '.[hub]'"


def test_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, env=os.environ, check=True)
    line = f"error: et needs {{}}: {install.command('train')}"
    assert done.stderr.splitlines() == [line.format(missing) for missing in ("typer", "rich", "yaml")]
    assert done.stdout.split() == ["1", "1", "1"]
