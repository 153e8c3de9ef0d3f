"""Classifiers of other libraries and of the user, and that no file makes the library import code."""

import sys

import pytest
import stand_ins
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equivariant_transformers import Canonicalized, cli, models
from equivariant_transformers.data import ImageSet
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.models import backbones
from equivariant_transformers.training import Config
from equivariant_transformers.training.checkpoint import CheckpointError, read, write
from equivariant_transformers.training.job import make_module

CODE = """
import pathlib
from torch import nn

pathlib.Path(__file__).with_name("imported").touch()


def small(in_channels, classes):
    return nn.Sequential(nn.Conv2d(in_channels, 4, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(4, classes))


def wrong(in_channels, classes):
    return "a network"


constant = 3
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """The folder of a module `own_nets` with code of the user, which leaves a file when it is imported."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "own_nets.py").write_text(CODE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    yield folder
    sys.modules.pop("own_nets", None)


def photos(count=12):
    images = torch.randint(0, 256, (count, 3, 24, 24), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    return ImageSet(images=images, labels=torch.arange(count) % 3, name="noise", classes=("a", "b", "c"))


def saved(network, path, function=None):
    """A model with `network`, after `save`."""
    card = Card.of(Config(network=network, layers=("rotation",)), photos())
    classifier = Classifier(card.build(function), card).eval()
    classifier.save(path)
    return classifier


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_networks_of_libraries_are_rebuilt_from_their_card(library, monkeypatch, tmp_path):
    stand_ins.install(library, monkeypatch)
    classifier = saved(f"{library}:resnet18", tmp_path / "model.safetensors")
    assert isinstance(classifier.module, Canonicalized)
    assert isinstance(classifier.module.backbone, nn.Sequential)
    again = Classifier.load(tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(again(photos().images), classifier(photos().images))


def test_channels_and_sheets_reach_the_library(monkeypatch):
    stand_ins.install("timm", monkeypatch)
    model = models.build("timm:resnet18", chart="x_perspective", in_channels=1, classes=5)
    assert model(torch.rand(2, 1, 64, 64)).shape == (2, 5)
    assert model.backbone[0].in_channels == model.chart.sampled.sheets
    stand_ins.install("torchvision", monkeypatch)
    with pytest.raises(ValueError, match="torchvision take 3 channels, got 1; timm:resnet18 takes any number"):
        models.build("torchvision:resnet18", in_channels=1)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_training_starts_from_pretrained_weights(library, monkeypatch, tmp_path):
    """A model file is loaded without them. They are not needed, and loading must not download anything."""
    stand_ins.install(library, monkeypatch)
    config = Config(network=f"{library}:resnet18", pretrained=True)
    backbone = make_module(config, photos()).backbone
    assert (backbone[0].weight == stand_ins.PRETRAINED).all()
    assert len(backbone[-1].weight) == len(photos().classes)
    card = Card.of(config, photos())
    assert not (card.build().backbone[0].weight == stand_ins.PRETRAINED).any()
    assert not (models.build(f"{library}:resnet18", in_channels=3).backbone[0].weight == stand_ins.PRETRAINED).any()


def test_other_networks_have_no_pretrained_weights():
    message = "only networks of timm and torchvision have pretrained weights, got 'resnet10'"
    with pytest.raises(ValueError, match=message):
        Config(network="resnet10", pretrained=True)
    with pytest.raises(ValueError, match=message):
        models.build("resnet10", pretrained=True)
    with pytest.raises(ValueError, match="got <function"):
        models.build(photos, pretrained=True)


def test_a_network_that_computes_while_it_is_made_is_loaded(monkeypatch, tmp_path):
    stand_ins.install("timm", monkeypatch)
    make = sys.modules["timm"].create_model

    def computing(*arguments, **options):
        torch.linspace(0, 1, 3)[1].item()  # as in timm's transformers; impossible on the meta device
        return make(*arguments, **options)

    monkeypatch.setattr(sys.modules["timm"], "create_model", computing)
    saved("timm:resnet18", tmp_path / "model.safetensors")
    Classifier.load(tmp_path / "model.safetensors")
    tensors, description = read(tmp_path / "model.safetensors")
    tensors.popitem()
    write(tmp_path / "model.safetensors", tensors, description)
    with pytest.raises(CheckpointError, match="Missing key"):
        Classifier.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_is_named(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{library}:resnet18 needs {library}: pip install {library}"):
        models.build(f"{library}:resnet18", in_channels=3)


@given(st.text(max_size=12) | st.sampled_from(["hf-hub:a/b", "hf_hub:a/b", "local-dir:/tmp", "../x", "a/b", ""]))
def test_names_with_addresses_or_paths_reach_no_library(name):
    fine = all(letter.isascii() and (letter.isalnum() or letter in "_.-") for letter in name) and bool(name)
    if fine:
        models.check_name(f"timm:{name}")
        return
    with pytest.raises(ValueError, match="must be a name"):
        models.build(f"timm:{name}", in_channels=3)


@pytest.mark.parametrize(
    "name", ["a b:c", "os:", ":f", "a:b:c", "a..b:c", "a/b:c", "1a:f", "a:f()", "__import__('os'):f"]
)
def test_other_forms_are_no_functions(name):
    with pytest.raises(ValueError, match="a network must be a name, library:name or module:function"):
        models.check_name(name)


def test_a_file_never_makes_the_library_import_code(nets, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(nets))
    monkeypatch.setattr(backbones.importlib, "import_module", lambda name: pytest.fail(f"{name} imported"))
    path = tmp_path / "model.safetensors"

    def function(in_channels, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 24 * 24, classes))

    classifier = saved("own_nets:small", path, function)
    with pytest.raises(
        CheckpointError,
        match=r"the network own_nets:small is a function of your own.*network=.*--network own_nets:small",
    ):
        Classifier.load(path)
    with pytest.raises(ValueError, match="own_nets:small is a function of your own, and is not imported"):
        models.build("own_nets:small")
    assert not (nets / "imported").exists()
    tensors, description = read(path)
    description["card"]["config"]["network"] = "a; rm -r b:c"
    write(tmp_path / "spoilt.safetensors", tensors, description)
    with pytest.raises(CheckpointError, match="must be a name, library:name or module:function, got 'a; rm -r b:c'"):
        Classifier.load(tmp_path / "spoilt.safetensors")
    with torch.no_grad():
        assert torch.equal(Classifier.load(path, network=function)(photos().images), classifier(photos().images))
    with pytest.raises(CheckpointError, match=r"size mismatch|Missing key"):
        Classifier.load(path, network=lambda channels, classes: nn.Conv2d(channels, classes, 3))


def test_functions_must_return_modules(nets, monkeypatch):
    monkeypatch.syspath_prepend(str(nets))
    with pytest.raises(TypeError, match="must return a module, got 'a network'"):
        models.build(models.import_network("own_nets:wrong"))
    for name in ("constant", "missing"):
        with pytest.raises(ValueError, match=f"own_nets has no function {name}"):
            models.import_network(f"own_nets:{name}")


def test_the_command_line_imports_what_the_user_names(nets, tmp_path, capsys):
    from PIL import Image

    for label, name in enumerate(("dark", "light")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (24, 24), (120 * label + number,) * 3).save(tmp_path / "photos" / name / f"{number}.png")
    photos, run = str(tmp_path / "photos"), tmp_path / "run"
    again = ["train", "--config", str(run / "config.yaml"), "--out", str(run)]

    def et(*arguments, code=0):
        assert cli.main(list(map(str, arguments))) == code
        return capsys.readouterr()

    assert (
        "cannot be imported: No module named 'no_nets'" in et("train", photos, "--network", "no_nets:small", code=2).err
    )
    et("train", photos, "--network", "own_nets:small", "--epochs", 1, "--out", run)
    model = run / "model.safetensors"
    sys.modules.pop("own_nets")
    (nets / "imported").unlink()
    assert "pass --network own_nets:small to run it" in et(*again, code=2).err
    assert "the network own_nets:small is a function of your own" in et("evaluate", model, code=1).err
    assert "the network own_nets:small is a function of your own" in et("predict", model, photos, code=1).err
    assert not (nets / "imported").exists()
    network = ["--network", "own_nets:small"]
    et(*again, *network, "--epochs", 2)
    for command in (("evaluate", model), ("predict", model, photos)):
        et(*command, *network)
    assert (nets / "imported").exists()


def test_a_function_in_place_of_a_name_is_named():
    with pytest.raises(ValueError, match=r"a network has a name, such as resnet10 or module:function, got <function"):
        models.check_name(saved)
