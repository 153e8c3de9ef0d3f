"""The comparison on photographs: its rows, its file and its table on the page."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import equivariant_transformers as et
from equivariant_transformers.data import ImageSet, Splits

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "photographs.py"


@pytest.fixture
def photographs(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return runpy.run_path(str(SCRIPT))


def few(count, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ImageSet(images=images, labels=torch.arange(count) % 10, name="cifar10", mean=(127.0,), std=(70.0,))


def test_every_row_is_trained_tested_and_written(photographs, monkeypatch, tmp_path, capsys):
    splits = Splits(few(128, 0), few(10, 1), few(20, 2))
    monkeypatch.setitem(et.data.DATASETS, "cifar10", SimpleNamespace(load=lambda *_, **__: splits))
    out, page = tmp_path / "runs.json", tmp_path / "page.md"
    page.write_text("<!-- photographs-cifar10 -->\n<!-- end of photographs-cifar10 -->\n")
    command = ["photographs.py", "cifar10", "--epochs", "1", "--test", "16", "--out", str(out), "--docs", str(page)]
    monkeypatch.setattr(sys, "argv", command)
    photographs["main"]()
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*command, "--rows", "layer strong"])
    photographs["main"]()  # replaces the first run of this row
    runs = json.loads(out.read_text())["runs"]
    assert [run["row"] for run in runs] == list(photographs["ROWS"])
    assert all(run["test images"] == 16 for run in runs)
    for run in runs:
        tests = [name for name in photographs["TESTS"] if name in run]
        assert len(tests) == (4 if run["row"].startswith("none") else 6)
        assert all(0 <= run[name] <= 100 for name in tests)
    table = photographs["table"](runs)
    assert table in page.read_text()
    assert table in capsys.readouterr().out


def test_pictures_of_a_folder(photographs, monkeypatch, tmp_path, capsys):
    for number, image in enumerate(few(160, 0).images):
        folder = tmp_path / "pets" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    command = ["photographs.py", str(tmp_path / "pets"), "--size", "16", "--epochs", "1", "--rows", "none 15"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "runs.json")])
    photographs["main"]()
    (run,) = json.loads((tmp_path / "runs.json").read_text())["runs"]
    assert (run["dataset"], run["network"], run["test images"]) == ("pets", "resnet10", 32)
    assert "| pets, resnet10," in capsys.readouterr().out


def test_the_backbone_of_the_frozen_row_does_not_change(photographs):
    given = SimpleNamespace(dataset="cifar10", network="resnet10", epochs=1, seeds=[0], fast=False)
    splits = Splits(few(128, 0), few(10, 1), few(20, 2))
    finished = {"none 15": photographs["trained"]("none 15", given, splits, {})}
    (first,) = finished["none 15"]
    before = {name: weight.clone() for name, weight in first.backbone.state_dict().items()}
    (network,) = photographs["trained"]("frozen 15", given, splits, finished)
    assert network.backbone is first.backbone
    assert all(torch.equal(before[name], weight) for name, weight in network.backbone.state_dict().items())
    assert network.canonicalizer.layers[0].predictor.head.weight.abs().sum() > 0


def test_networks_with_and_without_layers_differ_in_the_layers_alone(photographs):
    given = SimpleNamespace(dataset="cifar10", network="resnet10", epochs=2, fast=False)
    for training in photographs["AUGMENT"]:
        none, layer = (photographs["config"](f"{kind} {training}", given, 0) for kind in ("none", "layer"))
        assert none == layer.replace(layers=(), alignment=0.0)
        assert layer.layers


@pytest.mark.parametrize("dataset", ["cifar10", "svhn"])
def test_the_page_shows_the_results(photographs, dataset):
    page = (ROOT / "docs" / "photographs.md").read_text()
    shown = page.partition(f"<!-- photographs-{dataset} -->\n")[2].partition(
        f"\n<!-- end of photographs-{dataset} -->"
    )[0]
    runs = json.loads((ROOT / "results" / f"photographs_{dataset}.json").read_text())["runs"]
    assert shown == photographs["table"](runs)
