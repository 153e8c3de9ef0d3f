"""The examples run and draw what they say."""

import os
import runpy
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tiny_mnist

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("script", "pictures"),
    [("first_look.py", ["coordinates.png", "groups.png"]), ("pose_plot.py", ["pose_plot.png"])],
)
def test_examples_draw(script, pictures, tmp_path):
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, EXAMPLES / script, "--out", tmp_path], check=True, capture_output=True)
    for picture in pictures:
        assert (tmp_path / picture).stat().st_size > 10_000


@pytest.fixture
def quickstart(monkeypatch, tmp_path):
    """Runs the quickstart on a tiny MNIST."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("rich")
    projective_mnist = import_module("equivariant_transformers.data.projective_mnist")
    digits = tiny_mnist.arrays()
    tiny_mnist.expect(monkeypatch, digits)
    tiny_mnist.write(tmp_path / "mnist", digits)
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    monkeypatch.setattr(projective_mnist, "EXAMPLES", 40)
    monkeypatch.setattr(projective_mnist, "VALIDATION", 20)
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
    training = import_module("equivariant_transformers.training.run")
    monkeypatch.setattr(training.Run, "step", lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit, match="stopped"):
        quickstart()
    assert not (tmp_path / "out").exists()
