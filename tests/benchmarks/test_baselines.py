"""The comparison on transformed digits: one classifier for all rows, nothing measured twice, the page is the files."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tiny_mnist
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
baselines = import_module("baselines")
SMALL = {"examples": 4, "epochs": 1, "batch_size": 4, "width": 4}


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs some rows with few digits in an empty folder."""
    tiny_mnist.install(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr("equivariant_transformers.data.affnist_set.VALIDATION", 15)
    monkeypatch.setenv("ET_COMMIT", "0123456")
    monkeypatch.setattr(baselines, "ROUNDS", {1: 1})
    monkeypatch.setattr(baselines, "SIZES", {"cpu": {**SMALL, "validation": 2, "test": 3}})
    monkeypatch.setattr(baselines, "SPANS", {"rotation": baselines.Span(0.5, 2)})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text("Before\n<!-- baselines -->\n<!-- end of baselines -->\nAfter\n")

    def run(*names):
        threads = ["--threads", str(torch.get_num_threads())]
        command = ["baselines.py", "--device", "cpu", "--docs", "page.md", *threads, "--only", *names]
        monkeypatch.setattr(sys, "argv", command)
        baselines.main()
        return json.loads((tmp_path / "results" / "baselines" / "cpu.json").read_text())

    return run


def test_rows_are_measured_once_and_come_into_the_page(run, tmp_path, monkeypatch):
    figures = run("nothing", "discrete canonicalizer")
    rows = figures["rows"]
    assert list(rows) == ["nothing", "search", "discrete canonicalizer"]  # search shares the training of nothing
    for row in rows.values():
        assert list(row["errors"]) == ["upright", "affNIST", "homNIST", "any angle"]
        assert all(0 <= error <= 100 for error in row["errors"].values())
    assert rows["nothing"]["parameters"] == rows["search"]["parameters"] < rows["discrete canonicalizer"]["parameters"]
    assert set(figures["latency"]["1"]) == set(rows)
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("Before")
    assert page.endswith("After\n")
    assert "| ET, projective | not measured |" in page
    monkeypatch.setattr(baselines, "measure_row", lambda *_: pytest.fail("trained again"))
    assert run("nothing", "search") == figures


@pytest.mark.parametrize("name", [name for name in baselines.ROWS if name not in ("search", "steerable features")])
def test_rows_have_the_same_classifier_and_schedule(name):
    pixels = torch.zeros(4, 1, 40, 40, dtype=torch.uint8)
    part = baselines.data.ImageSet(images=pixels, labels=torch.arange(4), name="blank")
    splits = baselines.data.Splits(part, part, part)
    job, plain = (baselines.prepare(row, SMALL, splits) for row in (name, "nothing"))
    network = job.module.network if name == "discrete canonicalizer" else job.module
    shapes = [
        {key: value.shape for key, value in each.backbone.state_dict().items()} for each in (network, plain.module)
    ]
    assert shapes[0] == shapes[1]
    same = ["epochs", "examples", "batch_size", "lr_decay", "keep", "seed"]
    for field in same if name == "Spatial Transformer" else [*same, "learning_rate"]:
        assert getattr(job.config, field) == getattr(plain.config, field)


def test_without_escnn_its_row_is_left_out(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "escnn.gspaces", None)
    splits = [
        baselines.data.ImageSet(images=torch.zeros(4, 1, 40, 40).byte(), labels=torch.arange(4), name="blank")
    ] * 2
    monkeypatch.setattr(baselines, "load", lambda *_: (splits, {"upright": splits[0]}))
    with pytest.raises(SystemExit, match="nothing was measured"):
        run("steerable features")
    assert "steerable features is left out: steerable features need escnn" in capsys.readouterr().err


def test_the_page_says_what_the_files_say():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    part = page.partition("<!-- baselines -->\n")[2].partition("\n<!-- end of baselines -->")[0]
    assert part == baselines.tables(ROOT / "results" / "baselines")
    assert "### " in part
