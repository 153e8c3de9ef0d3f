"""The comparison of ways to deal with poses runs, keeps what it has measured, and its page says what the files say."""

import json
import math
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tiny_mnist
import torch
from glyphs import glyphs

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
compare = import_module("compare")


@pytest.fixture
def plain():
    """The backbone with random weights, the last ones large, so that its probabilities differ."""
    network = compare.make_network("nothing", {"examples": 1, "epochs": 1}, torch.device("cpu")).eval()
    with torch.no_grad():
        network.backbone.head.weight *= 1000
    return network


@pytest.fixture
def images():
    return glyphs(64)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the comparison with few digits in an empty folder."""
    projective_mnist = import_module("equivariant_transformers.data.projective_mnist_set")
    digits = tiny_mnist.arrays()
    tiny_mnist.expect(monkeypatch, digits)
    tiny_mnist.write(tmp_path / "mnist", digits)
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    monkeypatch.setenv("ET_COMMIT", "0123456")
    monkeypatch.setattr(projective_mnist, "EXAMPLES", 40)
    monkeypatch.setattr(projective_mnist, "VALIDATION", 20)
    monkeypatch.setattr(compare, "ROUNDS", {1: 1, 2: 1})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text("Before\n<!-- tables -->\n<!-- end of tables -->\nAfter\n")

    def run(*options):
        threads = ["--threads", str(torch.get_num_threads())]
        settings = ["--device", "cpu", "--examples", "8", "--epochs", "1", "--docs", "page.md", *threads]
        monkeypatch.setattr(sys, "argv", ["compare.py", *settings, *options])
        compare.main()
        return json.loads((tmp_path / "results" / "compare" / "cpu.json").read_text())

    return run


def test_every_row_is_measured_once_and_comes_into_the_page(run, tmp_path, monkeypatch):
    figures = run()
    rows = figures["rows"]
    assert list(rows) == list(compare.ROWS)
    assert all(0 <= row["test_error"] <= 100 and row["test_images"] == 20 for row in rows.values())
    assert rows["nothing"]["parameters"] == rows["augmentation"]["parameters"] == rows["search"]["parameters"]
    assert rows["nothing"]["parameters"] < min(rows[name]["parameters"] for name in rows if "T" in name)
    assert {name: set(figures["latency"][name]) for name in figures["latency"]} == {"1": set(rows), "2": set(rows)}
    assert figures["latency"]["1"]["nothing"]["ratio"] == 1
    assert figures["latency"]["2"]["search"]["ratio"] > 2
    if sys.platform == "linux":
        assert 0 < rows["nothing"]["memory_mib"] < rows["ET, consistent"]["memory_mib"]
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("Before")
    assert page.endswith("After\n")
    assert all(f"| {name} |" in page for name in rows)

    monkeypatch.setattr(compare, "measure_error", lambda *_: pytest.fail("trained again"))
    assert run() == figures
    with pytest.raises(SystemExit, match="settings"):
        run("--epochs", "2")


def test_search_over_no_pose_is_the_plain_network(plain, images, monkeypatch):
    monkeypatch.setattr(compare, "SEARCH", ((0.0, 0.0, 1), (0.0, 0.0, 1)))
    torch.testing.assert_close(compare.Searched(plain).eval()(images), plain(images).softmax(1))


def test_search_treats_images_one_by_one(plain, images):
    search = compare.Searched(plain).eval()
    found = search(images)
    assert (found.sum(1) > 1).all()  # the largest of the probabilities of several poses
    torch.testing.assert_close(found[1:2], search(images[1:2]), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found, plain(images).softmax(1), atol=1e-4)


def test_augmentation_draws_poses_in_training_only(plain, images, monkeypatch):
    augmented = compare.Augmented(plain)
    assert torch.equal(augmented.eval()(images), plain(images))
    augmented.training = True  # but the network behind it stays as it is
    assert not torch.allclose(augmented(images), augmented(images))
    monkeypatch.setattr(compare, "AUGMENTATION", dict.fromkeys(compare.AUGMENTATION, 0.0))
    torch.testing.assert_close(augmented(images), plain(images))


def test_the_page_says_what_the_files_say():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    part = page.partition("<!-- tables -->\n")[2].partition("\n<!-- end of tables -->")[0]
    assert part == compare.tables(ROOT / "results" / "compare")
    assert "### " in part
    assert f"{math.prod(count for _, _, count in compare.SEARCH)} poses are removed" in " ".join(page.split())
