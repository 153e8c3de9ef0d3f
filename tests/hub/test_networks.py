"""Networks behind a canonicalizer in files and on the Hub: what is saved comes back to the last bit."""

import sys

import pytest
import torch
from pairs import every_pair
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.hub.networks import NetworkCard, load_network, read_network, save_network
from equivariant_transformers.models import build
from equivariant_transformers.models.backbones import make_backbone
from equivariant_transformers.training import checkpoint
from equivariant_transformers.training.checkpoint import CheckpointError

SIZE = (32, 40)
IMAGES = torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))


def small(in_channels, classes):
    """A network of the user."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


def shaken(model, seed=0):
    """Give every weight and statistic a random value, so that nothing is left at its initial one."""
    random = torch.Generator().manual_seed(seed)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.1 * torch.rand(tensor.shape, generator=random, dtype=tensor.dtype))
    return model


def same(model, path, images=IMAGES, **options):
    loaded, _ = read_network(path, **options)
    assert not loaded.training
    weights, found = model.state_dict(), loaded.state_dict()
    assert weights.keys() == found.keys()
    assert all(torch.equal(weights[name], found[name]) and weights[name].dtype == found[name].dtype for name in weights)
    model.eval()
    with torch.no_grad():
        out, again = model.canonicalizer(images), loaded.canonicalizer(images)
        assert torch.equal(out.pose, again.pose)
        assert torch.equal(model(images), loaded(images))
    for name in ("iterations", "fill", "min_confidence", "pose_noise", "in_channels"):
        assert getattr(model.canonicalizer, name) == getattr(loaded.canonicalizer, name)
    assert [layer.chart for layer in model.canonicalizer.layers] == [
        layer.chart for layer in loaded.canonicalizer.layers
    ]
    return loaded


@every_pair(["rotation"], ["x_shear", "log_polar"], ["x_perspective"], ["cartesian"])
def test_every_predictor(predictor, layers, tmp_path):
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(layers, 3, predictor=predictor, channels=5, iterations=2, min_confidence=0.3)
    model = shaken(et.Canonicalized(make_backbone("resnet10", 3, 7), canonicalizer))
    state = torch.get_rng_state()
    card = save_network(model, tmp_path / "file", "resnet10", size=SIZE, training={"data": "noise"})
    assert (card.outputs, card.training) == (7, {"data": "noise"})
    same(model, tmp_path / "file")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", et.CHARTS)
def test_every_chart_with_other_options(name, tmp_path):
    """Layers with other ranges, sizes, limits and predictors in one stack, in front of a backbone on a chart."""
    torch.manual_seed(1)
    (low, high), across = et.chart(name).ranges
    chart = et.chart(name).replace(ranges=((low, (low + 2 * high) / 3), across), size=(24, 20))
    limits = [(-0.5, 0.25)] * len(chart.groups)
    stack = [
        et.EquivariantTransformer(chart, 3, channels=4, pose_range=limits),
        et.EquivariantTransformer(name, 3, predictor="posterior", channels=6),
        et.SpatialTransformer(name, 3, channels=3),
    ]
    canonicalizer = et.Canonicalizer(stack, 3, fill=0.25, pose_noise=0.1)
    seen = et.chart(name).replace(size=(20, 24))
    model = shaken(et.Canonicalized(make_backbone("resnet10", 3 * seen.sheets, 4), canonicalizer, seen))
    save_network(model, tmp_path / "file", "resnet10", size=SIZE)
    loaded = same(model, tmp_path / "file")
    assert loaded.canonicalizer.layers[0].pose_ranges == tuple(limits)
    assert loaded.chart.sampled == seen


@every_pair(["x_shear"], ["cartesian"])
def test_the_papers_networks(predictor, layers, tmp_path):
    torch.manual_seed(2)
    model = shaken(build("z2cnn", layers=layers, chart="log_polar", predictor=predictor, dropout=0.1))
    options = {"wraps": model.chart.sampled.periodic, "dropout": 0.1}
    save_network(model, tmp_path / "file", "z2cnn", size=(64, 64), options=options)
    loaded = same(model, tmp_path / "file", torch.rand(2, 1, 64, 64))
    assert loaded.backbone.dropout == 0.1
    with pytest.raises(ValueError, match=r"z2cnn (rebuilds a network with other outputs|does not rebuild)"):
        save_network(model, tmp_path / "other", "z2cnn", size=(64, 64))
    assert not (tmp_path / "other").exists()


def test_without_layers_and_in_other_dtypes(tmp_path):
    for dtype in (torch.float64, torch.bfloat16):
        model = shaken(et.Canonicalized(small(3, 5), et.Canonicalizer(["rotation"], 3, predictor="consistent"))).to(
            dtype
        )
        save_network(model, tmp_path / "file", "nets:small", size=SIZE, network=small)
        same(model, tmp_path / "file", IMAGES.to(dtype), network=small)
    model = et.Canonicalized(small(3, 5), et.Canonicalizer([], 3))
    save_network(model, tmp_path / "file", "nets:small", size=SIZE, network=small)
    same(model, tmp_path / "file", network=small)


def test_a_function_of_the_user_is_never_imported(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    model = et.Canonicalized(small(3, 5), "rotation")
    with pytest.raises(ValueError, match="is not imported because a file names it"):
        save_network(model, tmp_path / "file", "trap:small", size=SIZE)
    save_network(model, tmp_path / "file", "trap:small", size=SIZE, network=small)
    with pytest.raises(CheckpointError, match="pass the function as network="):
        load_network(tmp_path / "file")
    assert "trap" not in sys.modules
    same(model, tmp_path / "file", network=small)
    with pytest.raises(CheckpointError, match="is not a network of this version"):
        load_network(tmp_path / "file", network=lambda *_: nn.Flatten())


class Foreign:
    """A library of networks, in the place of timm and torchvision."""

    @staticmethod
    def create_model(name, *, pretrained, num_classes, in_chans):
        assert (name, pretrained) == ("tiny", False)
        return small(in_chans, num_classes)

    @staticmethod
    def get_model(name, *, weights, num_classes):
        assert (name, weights) == ("tiny", None)
        return small(3, num_classes)


@pytest.mark.parametrize(("library", "module"), [("timm", "timm"), ("torchvision", "torchvision.models")])
def test_networks_of_other_libraries(library, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", Foreign)
    monkeypatch.setitem(sys.modules, module, Foreign)
    model = shaken(et.Canonicalized(small(3, 5), ["rotation", "dilation"]))
    save_network(model, tmp_path / "file", f"{library}:tiny", size=SIZE)
    same(model, tmp_path / "file")


def test_what_no_name_describes_is_refused(tmp_path):
    lens = et.EquivariantTransformer(et.derive(et.RADIAL_LENS, name="lens"), 3)
    own = et.EquivariantTransformer("rotation", 3, predictor=nn.Flatten())
    renamed = et.EquivariantTransformer(et.chart("rotation").replace(name="x_shear"), 3)
    for layer, message in ((lens, "cannot hold the chart 'lens'"), (renamed, "cannot hold the chart 'x_shear'")):
        with pytest.raises(ValueError, match=message):
            save_network(et.Canonicalized(small(3, 2), layer), tmp_path / "file", "resnet10", size=SIZE)
    with pytest.raises(TypeError, match="must return a Prediction"):
        save_network(et.Canonicalized(small(3, 2), own), tmp_path / "file", "resnet10", size=SIZE)
    model = et.Canonicalized(small(3, 2), "rotation")
    for backbone, options, message in (
        ("resnet10", {}, "does not rebuild this network"),
        ("resnet99", {}, "unknown network"),
        ("nets:small", {"options": {"width": 3}, "network": small}, "have options"),
        ("nets:small", {"network": lambda channels, classes: small(channels, classes + 1)}, "does not rebuild"),
    ):
        with pytest.raises(ValueError, match=message):
            save_network(model, tmp_path / "file", backbone, size=SIZE, **options)
    image_to_image = et.Canonicalized(nn.Conv2d(3, 3, 1), "rotation")
    with pytest.raises(ValueError, match=r"must return a tensor \(B, outputs\)"):
        save_network(image_to_image, tmp_path / "file", "resnet10", size=SIZE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"backbone": "timm:../../x"},
        {"outputs": 10**9},
        {"in_channels": 0},
        {"size": [32]},
        {"size": [32, 10**9]},
        {"layers": [3]},
        {"layers": "rotation"},
        {"chart": {"name": "nowhere"}},
        {"iterations": 10**6},
        {"fill": "grey"},
        {"options": {"width": 10**6}},
        {"options": 3},
        {"more": 1},
    ],
)
def test_impossible_cards_are_refused(change, tmp_path):
    model = et.Canonicalized(make_backbone("resnet10", 3, 2), "rotation")
    save_network(model, tmp_path / "file", "resnet10", size=SIZE)
    tensors, description = checkpoint.read(tmp_path / "file")
    checkpoint.write(tmp_path / "file", tensors, {"network": {**description["network"], **change}})
    with pytest.raises(CheckpointError, match="is not a network of this version"):
        load_network(tmp_path / "file")


def test_damaged_and_other_files_are_refused(tmp_path):
    model = et.Canonicalized(make_backbone("resnet10", 3, 2), "rotation")
    save_network(model, tmp_path / "file", "resnet10", size=SIZE)
    content = bytearray((tmp_path / "file").read_bytes())
    content[-5] ^= 4
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        load_network(tmp_path / "broken")
    et.hub.save_canonicalizer(et.Canonicalizer(["rotation"]), tmp_path / "canonicalizer")
    with pytest.raises(CheckpointError, match="was not written by save_network"):
        load_network(tmp_path / "canonicalizer")
    with pytest.raises(CheckpointError, match=r"it holds a network: et\.hub\.load_network"):
        et.hub.load_canonicalizer(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"load it in Python with et\.hub\.load_network"):
        et.hub.Classifier.load(tmp_path / "file")


# The Hub


@pytest.mark.parametrize("own", [False, True])
def test_pushing_and_downloading(hub, own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, network = ("nets:small", small) if own else ("resnet10", None)
    model = shaken(et.Canonicalized(small(3, 2) if own else make_backbone("resnet10", 3, 2), ["rotation", "x_shear"]))
    card = NetworkCard.of(model, name, size=SIZE, network=network, training={"data": "noise"})
    assert hub.HubNetwork(model, card).push_to_hub("someone/model") == "a commit"
    loaded = hub.HubNetwork.from_pretrained("someone/model", network=network)
    assert loaded.card == card
    model.eval()
    with torch.no_grad():
        assert torch.equal(loaded(IMAGES), model(IMAGES))
    if own:
        with pytest.raises(CheckpointError, match="pass the function as network="):
            hub.HubNetwork.from_pretrained("someone/model")


def test_a_folder_of_the_hub(hub, tmp_path):
    model = shaken(et.Canonicalized(make_backbone("resnet10", 3, 2), "rotation"))
    card = NetworkCard.of(model, "resnet10", size=SIZE, training={"test error": "3.5 %"})
    folder = tmp_path / "deep" / "folder"
    hub.HubNetwork(model, card).save_pretrained(folder)
    assert {file.name for file in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    page = (folder / "README.md").read_text()
    for line in ("license: mit", "| backbone | resnet10 |", "| test error | 3.5 % |"):
        assert line in page.splitlines()
    example = page.partition("```python\n")[2].partition("```")[0]
    exec(example.replace("THIS FOLDER OR REPOSITORY", str(folder)))
    same(model, folder / "model.safetensors")
