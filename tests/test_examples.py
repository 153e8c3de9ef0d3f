"""The examples run and draw what they say."""

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import stand_ins
import tiny_mnist
from PIL import Image

from equivariant_transformers.data import from_folder
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.training import Config
from equivariant_transformers.training.optimization import Optimization

EXAMPLES = Path(__file__).parent.parent / "examples"
README = EXAMPLES.parent / "README.md"
TOLERANCE = 2.0  # points, for sums that round differently with other numbers of threads and other processors


@pytest.mark.parametrize(
    ("script", "pictures"),
    [
        (["first_look.py"], ["coordinates.png", "groups.png"]),
        (["pose_plot.py"], ["pose_plot.png"]),
        (["orbit.py", "--frames", "2"], ["orbit.webp"]),
    ],
)
def test_examples_draw(script, pictures, tmp_path):
    pytest.importorskip("matplotlib")
    name, *options = script
    subprocess.run([sys.executable, EXAMPLES / name, *options, "--out", tmp_path], check=True, capture_output=True)
    for picture in pictures:
        assert (tmp_path / picture).stat().st_size > 10_000


@pytest.mark.parametrize(("name", "least"), [("segmentation", 0.1), ("detection", 0.15)])
def test_a_layer_helps_dense_predictions_on_turned_pictures(name, least, tmp_path):
    """The first two figures of a row are for upright and for turned pictures, which are not square."""
    pytest.importorskip("matplotlib")
    command = [sys.executable, EXAMPLES / f"{name}.py", "--steps", "60", "--out", tmp_path]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^(network.*?) +([\d.]+) +([\d.]+)(?: |$)", said, re.MULTILINE)
    found = {row: (float(upright), float(turned)) for row, upright, turned in rows}
    plain, everywhere, layer = (
        found[row] for row in ("network", "network, trained on all angles", "network behind a layer")
    )
    assert layer[1] > max(plain[1], everywhere[1]) + least
    assert layer[0] > plain[0] - 0.05  # upright pictures lose little
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.fixture
def quickstart(monkeypatch, tmp_path):
    """Runs the quickstart on a tiny MNIST."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("rich")
    tiny_mnist.install(monkeypatch, tmp_path)
    settings = ["--examples", "16", "--epochs", "1", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *settings])
    return lambda: runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")


def test_the_quickstart_trains_both_networks_and_draws(quickstart, tmp_path, capsys):
    quickstart()
    said = capsys.readouterr().out
    for line in ("training the plain CNN: 100%", "training the ET network: 100%", "Wrong on 60 test digits"):
        assert line in said
    errors = [line.split() for line in said.splitlines() if line.endswith(" %")]
    assert [row[:2] for row in errors] == [["plain", "CNN"], ["ET", "network"]]
    assert all(0 <= float(row[2]) <= 100 for row in errors)
    assert (tmp_path / "out" / "quickstart.png").stat().st_size > 10_000


def test_the_quickstart_stops_when_it_is_interrupted(quickstart, tmp_path, monkeypatch):
    monkeypatch.setattr(Optimization, "step", lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit, match="stopped"):
        quickstart()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain CNN", "ET network"])
def test_the_quickstart_ends_in_the_range_of_the_readme(name):
    pytest.importorskip("rich")
    low, high = map(
        float, re.search(rf"^\| {name} \|.*\| ([\d.]+) to ([\d.]+) % \|$", README.read_text(), re.M).groups()
    )
    example = runpy.run_path(str(EXAMPLES / "quickstart.py"))
    try:
        splits, _ = example["load"](example["EXAMPLES"])
    except RuntimeError as error:
        pytest.skip(str(error))  # without a connection there is no MNIST
    _, error = example["train"](name, splits, example["EPOCHS"], seed=0)
    assert low - TOLERANCE <= error <= high + TOLERANCE


@pytest.fixture
def photos(tmp_path):
    """A folder of two classes of eight noisy pictures."""
    rng = np.random.default_rng(0)
    for name in ("bright", "dark"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            picture = rng.integers(0, 100, (20, 24, 3)) + (100 if name == "bright" else 0)
            Image.fromarray(picture.astype(np.uint8)).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("library", ["stand-in", "timm", "torchvision"])
def test_a_backbone_behind_layers_trains_in_an_ordinary_loop(library, photos, monkeypatch, capsys):
    stand_ins.backbones_of(library, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["wrap_backbone.py", str(photos), "--epochs", "2"])
    runpy.run_path(str(EXAMPLES / "wrap_backbone.py"), run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["epoch 1", "epoch 2"]


def test_a_folder_is_canonicalized(photos, tmp_path):
    card = Card.of(Config(network="resnet10", layers=("rotation",)), from_folder(photos, size=(32, 32)).train)
    Classifier(card.build(), card).save(tmp_path / "model.safetensors")
    program = tmp_path / "et"  # as installing the package makes it
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m equivariant_transformers "$@"\n')
    program.chmod(0o755)
    where = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", EXAMPLES / "canonicalize_folder.sh", tmp_path / "model.safetensors", photos / "bright"]
    done = subprocess.run([*command, tmp_path / "canonical"], env=where, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1 + 8
    names = {path.name for path in (tmp_path / "canonical").iterdir()}
    assert names == {f"{number}.png" for number in range(8)}


def test_a_group_by_its_formula_follows(capsys):
    runpy.run_path(str(EXAMPLES / "own_group.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "rho_1 = x/sin(3*y)" in said
    assert 0.95 < float(re.search(r"^wave\s+([\d.]+)", said, re.MULTILINE)[1]) < 1.05
