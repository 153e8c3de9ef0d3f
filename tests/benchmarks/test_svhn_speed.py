"""The speed of training on SVHN's shapes: every switch is measured, in steps and in the loop around them."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
speed = import_module("svhn_speed")


def test_steps_and_loop_are_measured_and_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(speed, "configs", lambda _: {"none": speed.Config(network="resnet10", batch_size=4)})
    out = tmp_path / "speed.json"
    chosen = ["--settings", "0", "1", "--layers", "none", "--runs", "1", "2", "--images", "8", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["svhn_speed.py", "--device", "cpu", *chosen])
    speed.main()
    rows = json.loads(out.read_text())["rows"]
    assert [(row["setting"], row["runs"]) for row in rows] == [
        (setting, runs) for setting in ("float32", "float32, channels last") for runs in (1, 2)
    ]
    assert all(row["steps"] > 0 and row["loop"] > 0 for row in rows)
    assert "| none | float32 | 1 |" in capsys.readouterr().out


def test_switches_reach_the_job():
    splits = speed.Splits(*[speed.pictures(8, torch.device("cpu"))] * 3)
    config = speed.Config(network="resnet10", batch_size=4, examples=10_000)
    (job, other) = speed.jobs(config, speed.Setting("bfloat16", compile=True, channels_last=True), splits, 2)
    assert (job.config.precision, job.config.compile, job.config.seed, other.config.seed) == ("bfloat16", True, 0, 1)
    assert job.module.backbone.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert set(speed.configs("resnet18")) == {"none", "spatial", "equivariant"}
    with pytest.raises(SystemExit, match="no network resnet7"):
        speed.configs("resnet7")


def test_finished_runs_are_listed():
    lines = speed.records_table(ROOT / "results").splitlines()
    assert len(lines) > 20
    (fastest,) = (line for line in lines if "| resnet10 | none | 10,000 | 1 | 1.0 |" in line)
    page = " ".join((ROOT / "docs" / "lab-notebook.md").read_text().split())
    assert "130,795" in fastest
    assert "1.0 ms (131,000 images/s)" in page
