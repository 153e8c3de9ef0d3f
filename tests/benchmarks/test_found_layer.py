"""The comparison of networks with a found and a true layer: its rows, its file and its table on the page."""

import json
import sys
from importlib import import_module
from pathlib import Path

import torch
from glyphs import glyphs

import equivariant_transformers as et
from equivariant_transformers.data import ImageSet, Splits

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
found_layer = import_module("found_layer")


def test_three_networks_are_trained_and_tested_and_rows_are_measured_once(monkeypatch, tmp_path, capsys):
    images = (255 * glyphs(28)).to(torch.uint8).repeat(20, 1, 1, 1)
    few = ImageSet(images=images, labels=torch.arange(len(images)) % 4, name="glyphs", mean=(16.0,), std=(56.0,))
    monkeypatch.setattr(et.data, "mnist", lambda **_: Splits(few, few, few))
    monkeypatch.setattr(found_layer, "SEARCH", 60)
    monkeypatch.setattr(found_layer, "BATCH", 20)
    out = tmp_path / "found.json"
    options = ["--seeds", "1", "--train", "40", "--test", "40", "--epochs", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["found_layer.py", "x_shear", *options])
    found_layer.main()
    first = capsys.readouterr().out
    (row,) = json.loads(out.read_text())["x_shear"].values()
    assert set(row["error"]) == {"none", "true", "found"}
    assert all(0 <= error <= 100 for error in row["error"].values())
    found_layer.main()
    assert capsys.readouterr().out == first


def test_the_networks_of_a_seed_start_with_the_same_classifier():
    plain = found_layer.network(None, 3)
    behind = found_layer.network(et.group("rotation"), 3).backbone
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), behind.parameters(), strict=True))


def test_the_page_shows_the_results():
    results = json.loads((ROOT / "results" / "found_layer.json").read_text())
    assert found_layer.table(results) in (ROOT / "docs" / "discovery.md").read_text()
