"""The example that reads text lines: its lines, its distortions, its table, and a short run where the engine exists."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "read_text.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(SCRIPT))


def test_the_words_and_fonts_of_the_test_are_new(example):
    for kind in ("FONTS", "WORDS"):
        training, test = (example[kind][split] for split in ("training", "test"))
        training, test = (part.split() if isinstance(part, str) else part for part in (training, test))
        assert training
        assert test
        assert not {*training} & {*test}


@pytest.mark.parametrize("split", ["training", "test"])
def test_lines_are_centred_in_the_frame_and_leave_room(example, split):
    images, texts = example["render"](24, 0, split)
    assert images.shape == (24, 1, example["FRAME"], example["FRAME"])
    assert all(2 <= len(text.split()) <= 3 for text in texts)
    ink = images < images.amax((2, 3), keepdim=True) - 0.25
    columns, rows = (ink.any(axis)[:, 0].float() for axis in (2, 3))
    for across, limit in ((columns, 0.68), (rows, 0.16)):
        places = torch.linspace(-1, 1, example["FRAME"])
        assert (places.abs() * across).max() < limit
        assert (across.sum(1) > 5).all()


def test_the_true_inverse_brings_a_line_back(example):
    upright, _ = example["render"](4, 0, "test")
    photographs, distortion = example["photograph"](upright, example["LEVELS"]["strong"], seed=0)
    back = example["resample"](distortion.inverse(), photographs)
    left, right = example["FRAME"] // 5, -example["FRAME"] // 5
    middle = (..., slice(200, 280), slice(left, right))
    errors = [(images[middle] - upright[middle]).square().mean().sqrt() for images in (photographs, back)]
    assert errors[1] < 0.5 * errors[0]


def test_the_crop_is_the_box_of_the_ink(example):
    image = np.full((40, 60, 3), 250, np.uint8)
    assert example["crop"](image).shape == image.shape  # without ink, the whole image
    image[15:20, 20:50] = 10
    assert example["crop"](image, margin=2).shape == (9, 34, 3)
    assert example["crop"](image, margin=100).shape == image.shape


def test_spaces_do_not_count(example):
    assert example["rate"](["Harbour47", "Harbor 47", ""], ["Harbour 47"] * 3) == pytest.approx(100 / 3)


def test_the_page_shows_the_results(example):
    results = json.loads((ROOT / "results" / "read_text.json").read_text())
    page = (ROOT / "docs" / "text.md").read_text()
    assert example["table"](results["exact_match"]) in page
    assert results["levels"] == example["LEVELS"]
    assert results["training"] == example["TRAINING"]
    assert results["lines"] >= 300


def test_a_quick_run_writes_weights_results_and_picture(tmp_path):
    pytest.importorskip("rapidocr_onnxruntime", reason="the OCR engine is in the extra `ocr`")
    command = [sys.executable, SCRIPT, "--quick", "--out", tmp_path]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2))
    assert "| recogniser behind the canonicalizer |" in first
    assert first.split("CPU time")[0] == second.split("CPU time")[0]  # the second run loads the weights of the first
    rates = json.loads((tmp_path / "read_text.json").read_text())["exact_match"]
    assert rates["undistorted"]["recogniser"] == [100.0]
    assert {path.name for path in tmp_path.iterdir()} == {
        "read_text.json",
        "read_text.png",
        "read_text_3_0.safetensors",
    }
