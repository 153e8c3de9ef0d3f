"""The networks that come with the library: what is shipped is sound, and names, files and hubs lead to it."""

import dataclasses
import json
import re
import runpy
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image

import equivariant_transformers as et
from equivariant_transformers import cli
from equivariant_transformers.data import ImageSet
from equivariant_transformers.hub.canonicalizers import CanonicalizerCard, read_canonicalizer
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.training import Config
from equivariant_transformers.training.checkpoint import CheckpointError

module = import_module("equivariant_transformers.hub.zoo")  # et.pretrained is the function
ROOT = Path(__file__).parents[2]
SHIPPED = Path(et.__file__).parent / "hub" / "weights"
IMAGES = torch.randint(256, (2, 1, 64, 64), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def check_shipped(folder, limit=12_000_000):
    """Every file of weights loads, has the readable card that it holds, and all of them together are small."""
    files = list(folder.glob("*.safetensors"))
    assert {file.stem for file in files} == {file.stem for file in folder.glob("*.json")}
    assert sum(file.stat().st_size for file in folder.iterdir()) < limit
    for file in files:
        fields = json.loads(file.with_suffix(".json").read_text())
        assert fields.pop("licence") == module.LICENCE
        if "canonicalizer" in fields:
            assert CanonicalizerCard.from_dict(fields["canonicalizer"]) == read_canonicalizer(file)[1]
            continue
        card = Classifier.load(file).card
        assert Card.from_dict(fields) == card
        assert None not in (card.validation_error, card.test_error)
    return len(files)


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A folder of weights with two tiny networks, and the file that they were installed from."""
    noise = ImageSet(images=IMAGES, labels=torch.arange(2), name="noise", origin="drawn", classes=("a", "b"))
    torch.manual_seed(0)
    card = Card.of(Config(dataset="noise", layers=("rotation",), seed=7), noise)
    Classifier(card.build(), card).save(tmp_path / "run" / "model.safetensors")
    folder = tmp_path / "weights"
    folder.mkdir()
    monkeypatch.setattr(module, "FOLDER", folder)
    for name, error in (("tiny-noise", 50.0), ("other", 25.0)):
        module.install(tmp_path / "run" / "model.safetensors", name, validation_error=0.0, test_error=error)
    return folder


def test_what_is_shipped_is_sound():
    assert check_shipped(SHIPPED) == len(et.list_pretrained())
    for name, card in et.list_pretrained().items():
        classifier = et.pretrained(name)
        if isinstance(card, CanonicalizerCard):
            assert classifier(torch.rand(2, card.in_channels, 32, 32)).pose.isfinite().all()
            continue
        blank = torch.zeros(1, classifier.card.in_channels, *classifier.card.size, dtype=torch.uint8)
        assert classifier(blank).isfinite().all()


def test_unsound_folders_are_found(weights):
    assert check_shipped(weights) == 2
    with pytest.raises(AssertionError):
        check_shipped(weights, limit=1000)
    text = (weights / "other.json").read_text()
    (weights / "other.json").write_text(text.replace("25.0", "5.0"))
    with pytest.raises(AssertionError):
        check_shipped(weights)
    (weights / "other.json").unlink()
    with pytest.raises(AssertionError):
        check_shipped(weights)


def test_names_lead_to_networks(weights):
    assert list(et.list_pretrained()) == ["other", "tiny-noise"]
    classifier = et.pretrained("tiny-noise")
    assert not classifier.training
    assert classifier.card == et.list_pretrained()["tiny-noise"]
    assert (classifier.card.test_error, classifier.card.config.seed, classifier.card.data) == (50.0, 7, "noise")
    original = Classifier.load(weights.parent / "run" / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(classifier(IMAGES), original(IMAGES))
    readable = json.loads((weights / "other.json").read_text())
    assert (readable["licence"], readable["test_error"], readable["config"]["layers"]) == ("MIT", 25.0, ["rotation"])
    with pytest.raises(ValueError, match=r"unknown pretrained model 'tiny-nose'\. Did you mean 'tiny-noise'\?"):
        et.pretrained("tiny-nose")


def test_a_canonicalizer_can_be_shipped(weights, monkeypatch, capsys):
    torch.manual_seed(1)
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3)
    et.hub.save_canonicalizer(canonicalizer, weights.parent / "aligned.safetensors", {"data": "noise"})
    module.install_canonicalizer(weights.parent / "aligned.safetensors", "upright", test_error=1.5)
    card = et.list_pretrained()["upright"]
    assert (card.layers, card.training) == (("rotation",), {"data": "noise", "test_error": 1.5})
    loaded = et.pretrained("upright")
    assert isinstance(loaded, et.Canonicalizer)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in canonicalizer.state_dict().items())
    assert check_shipped(weights) == 3
    assert cli.main(["evaluate", "upright"]) == 2
    assert "upright is a canonicalizer without a classifier" in capsys.readouterr().err
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert isinstance(torch.hub.load(str(ROOT), "upright", source="local", pretrained=False), et.Canonicalizer)


def test_errors_must_be_measured(weights):
    with pytest.raises(ValueError, match="no validation_error: measure it and pass it"):
        module.install(weights.parent / "run" / "model.safetensors", "third")
    assert len(list(weights.iterdir())) == 4


@pytest.mark.usefixtures("weights")
def test_files_come_before_names_and_paths_are_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert module.find("other").card.test_error == 25.0
    Path("other").write_bytes(Path("run/model.safetensors").read_bytes())
    assert module.find("other").card.test_error is None
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at other\.safetensors"):
        module.find("other.safetensors")
    with pytest.raises(CheckpointError, match="there is no checkpoint at run"):
        module.find("run/other")


@pytest.mark.usefixtures("weights")
def test_commands_take_names(tmp_path, capsys):
    def run(*arguments, code=0):
        assert cli.main(list(map(str, arguments))) == code
        return capsys.readouterr()

    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (16, 16), number).save(tmp_path / "data" / name / f"{number}.png")
    data = ("--dataset", tmp_path / "data")
    assert run("evaluate", "tiny-noise", *data).out.startswith("test error")
    assert "a/0.png" in run("predict", "tiny-noise", tmp_path / "data" / "a" / "0.png").out
    assert run("audit", "tiny-noise", "--count", 1, *data).out.splitlines()[1].startswith("rotation")
    assert "other, tiny-noise" in run("info").out
    for command in (["evaluate"], ["predict"], ["audit"], ["export", tmp_path / "model.pt2", "--model"]):
        rest = ["photo.png"] if command == ["predict"] else []
        error = run(*command, "tiny-nose", *rest, code=2).err
        assert error.startswith("error: unknown pretrained model 'tiny-nose'. Did you mean 'tiny-noise'?")
    assert "must end in .onnx or .pt2, got" in run("export", "model.tflite", "--model", "other", code=2).err


# Hubs


def test_a_folder_of_the_hub(weights, tmp_path):
    hub = pytest.importorskip("equivariant_transformers.hub.huggingface")
    classifier = et.pretrained("tiny-noise")
    folder = tmp_path / "deep" / "folder"
    hub.HubClassifier(classifier.module, classifier.card).save_pretrained(folder)
    assert {file.name for file in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert (folder / "config.json").read_text() == (weights / "tiny-noise.json").read_text()
    loaded = hub.HubClassifier.from_pretrained(folder)
    assert isinstance(loaded, Classifier)
    assert loaded.card == classifier.card
    assert not loaded.training
    with torch.no_grad():
        assert torch.equal(loaded(IMAGES), classifier(IMAGES))
    page = (folder / "README.md").read_text()
    assert page.startswith("---\n")
    for line in (
        "license: mit",
        "pipeline_tag: image-classification",
        "| transformer layers | rotation (predictor: consistent) |",
        "| training data | noise, drawn (terms of the data: see their source) |",
        "| test error | 50.00 % |",
        "| seed | 7 |",
        "| licence | MIT |",
    ):
        assert line in page.splitlines()
    example = page.partition("```python\n")[2].partition("```")[0]
    Image.new("L", (9, 9)).save(tmp_path / "photo.png")
    exec(example.replace("THIS FOLDER OR REPOSITORY", str(folder)).replace("photo.png", str(tmp_path / "photo.png")))


def test_the_page_of_a_model_has_the_terms_of_its_data():
    hub = pytest.importorskip("equivariant_transformers.hub.huggingface")
    classifier = et.pretrained("projective-mnist")
    page = str(hub.HubClassifier(classifier.module, classifier.card).generate_model_card())
    assert f"(terms of the data: {et.data.DATASETS['projective-mnist'].licence})" in page


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_only_a_regression_is_not_tagged_as_image_classification(task):
    hub = pytest.importorskip("equivariant_transformers.hub.huggingface")
    labels = torch.arange(2) if task == "classification" else torch.eye(2)
    images = ImageSet(images=IMAGES, labels=labels, name="noise", classes=("a", "b"))
    card = Card.of(Config(task=task), images)
    page = str(hub.HubClassifier(card.build(), card).generate_model_card())
    assert ("pipeline_tag: image-classification" in page) == (task != "regression")
    assert ("A regression of images" in page) == (task == "regression")


@pytest.mark.usefixtures("weights")
def test_pushing_and_downloading(hub, tmp_path, monkeypatch):
    classifier = et.pretrained("other")
    classifier.card = dataclasses.replace(classifier.card, test_error=None)
    assert hub.HubClassifier(classifier.module, classifier.card).push_to_hub("someone/model") == "a commit"
    assert "| test error | not measured |" in (tmp_path / "remote" / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    assert hub.HubClassifier.from_pretrained("someone/model").card == classifier.card


@pytest.mark.usefixtures("weights")
def test_torch_hub(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    entries = {name for name, value in runpy.run_path(str(ROOT / "hubconf.py")).items() if callable(value)}
    assert {name for name in entries if not name.startswith("_")} == {"canonicalizer", "other", "tiny_noise"}

    def load(*arguments, **options):
        return torch.hub.load(str(ROOT), *arguments, source="local", **options)

    with torch.no_grad():
        expected = et.pretrained("tiny-noise")(IMAGES)
        assert torch.equal(load("tiny_noise")(IMAGES), expected)
        assert not torch.equal(load("tiny_noise", pretrained=False).eval()(IMAGES), expected)
    assert load("canonicalizer", ["rotation"], in_channels=3)(torch.rand(1, 3, 16, 16)).names == ("rotation",)


def test_the_page_runs(weights, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shutil.copy(ROOT / "hubconf.py", tmp_path)
    shutil.copy(weights / "other.safetensors", tmp_path / "model.safetensors")
    for file in SHIPPED.glob("upright.*"):
        shutil.copy(file, weights)
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pretrained.md").read_text(), re.DOTALL):
        exec(compile(block, "docs/pretrained.md", "exec"), {})
    assert (tmp_path / "folder" / "README.md").exists()
