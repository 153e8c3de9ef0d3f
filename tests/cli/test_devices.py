"""Each command that computes runs from end to end on the device that it is given."""

import pytest
import tiny_mnist
import torch
from PIL import Image

from equivariant_transformers.cli import main

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of 24 pictures in two classes, 24 x 32 pixels: noise of two brightnesses."""
    path = tmp_path_factory.mktemp("data")
    generator = torch.Generator().manual_seed(0)
    for number in range(24):
        pixels = torch.randint(80 * (number % 2), 80 * (number % 2) + 100, (24, 32, 3), generator=generator)
        file = path / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(file)
    return path


@DEVICES
def test_a_model_is_trained_tested_audited_and_used(folder, device, tmp_path, capsys):
    run, canonical = tmp_path / "run", tmp_path / "canonical"
    model = str(run / "model.safetensors")
    for command in (
        ["train", str(folder), "--layers", "rotation", "--epochs", "1", "--out", str(run)],
        ["evaluate", model],
        ["audit", model],
        ["predict", model, str(folder / "a"), "--canonical-out", str(canonical)],
    ):
        assert main([*command, "--device", device]) == 0, capsys.readouterr().err
    assert len([*canonical.glob("*.png")]) == 12


@DEVICES
@pytest.mark.parametrize("layers", ["rotation", "rotation,x_shear"])
def test_a_canonicalizer_is_trained_and_audited(folder, device, layers, tmp_path, capsys):
    command = ["align", str(folder), "--layers", layers, "--epochs", "1", "--out", str(tmp_path / "run")]
    assert main([*command, "--device", device]) == 0, capsys.readouterr().err


@DEVICES
def test_untrained_layers_are_audited(device, tmp_path, monkeypatch, capsys):
    tiny_mnist.install(monkeypatch, tmp_path)
    assert main(["audit", "--group", "rotation,x_shear", "--device", device]) == 0, capsys.readouterr().err


@DEVICES
def test_a_group_is_searched_for(folder, device, tmp_path, capsys):
    command = ["discover", str(folder), "--out", str(tmp_path / "found.png"), "--device", device]
    assert main(command) == 0, capsys.readouterr().err
