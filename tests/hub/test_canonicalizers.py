"""Canonicalizers in files: what is saved comes back, and what is damaged or foreign is refused."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import every_pair
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.data import ImageSet
from equivariant_transformers.hub.canonicalizers import CanonicalizerCard, read_canonicalizer
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.training import Config, checkpoint
from equivariant_transformers.training.checkpoint import CheckpointError

IMAGES = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))


@every_pair(["rotation"], ["x_shear", "log_polar"], ["cartesian"])
def test_what_is_saved_comes_back(predictor, layers, tmp_path):
    options = {"predictor": predictor, "channels": 8, "fill": 0.5, "iterations": 2, "min_confidence": 0.25}
    torch.manual_seed(0)
    made = et.Canonicalizer(layers, 3, **options).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    et.hub.save_canonicalizer(made, tmp_path / "file", {"data": "noise"})
    state = torch.get_rng_state()
    loaded, card = read_canonicalizer(tmp_path / "file")
    assert torch.equal(torch.get_rng_state(), state)
    assert not loaded.training
    assert {name: getattr(card, name) for name in options} == options
    assert card.training == {"data": "noise"}
    with torch.no_grad():
        assert torch.equal(made(IMAGES).pose, loaded(IMAGES).pose)
        assert torch.equal(made(IMAGES).image, loaded(IMAGES).image)


def test_layers_may_have_different_predictors(tmp_path):
    centred = et.EquivariantTransformer("cartesian", 3, predictor="centre")
    made = et.Canonicalizer([centred, "rotation"], 3, predictor="consistent").eval()
    et.hub.save_canonicalizer(made, tmp_path / "file")
    assert CanonicalizerCard.of(made).predictor == ("centre", "consistent")
    loaded = et.hub.load_canonicalizer(tmp_path / "file")
    with torch.no_grad():
        assert torch.equal(made(IMAGES).pose, loaded(IMAGES).pose)


def test_layers_without_a_name_are_refused(tmp_path):
    wide = et.EquivariantTransformer(et.chart("rotation").replace(size=(16, 16)), 3)
    own = et.EquivariantTransformer("rotation", 3, pose_range=(-1, 1))
    for layer, message in ((wide, "differs from the layer of this name"), (own, "differs from the layer of this name")):
        with pytest.raises(ValueError, match=message):
            et.hub.save_canonicalizer(et.Canonicalizer([layer], 3), tmp_path / "file")
    model = et.Canonicalized(torch.nn.Flatten(), et.Canonicalizer(["rotation"], 3))
    for other, message in ((model, "pass network.canonicalizer"), (wide, r"pass et.Canonicalizer\(\[layer\]\)")):
        with pytest.raises(TypeError, match=message):
            et.hub.save_canonicalizer(other, tmp_path / "file")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "canonicalizer.safetensors"
    et.hub.save_canonicalizer(et.Canonicalizer(["rotation"], channels=2), path)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.data())
def test_flipped_bits_are_refused(saved, tmp_path, data):
    content = bytearray(saved.read_bytes())
    place = data.draw(st.integers(8, len(content) - 1))  # the first 8 bytes are the length of the header
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    (tmp_path / "file").write_bytes(content)
    try:
        loaded = et.hub.load_canonicalizer(tmp_path / "file")
    except CheckpointError:
        return
    assert chr(saved.read_bytes()[place]).isspace()  # padding of the header
    assert isinstance(loaded, et.Canonicalizer)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": "rotation"},
        {"layers": []},
        {"layers": ["rotation"] * 33},
        {"layers": [3]},
        {"layers": ["nowhere"]},
        {"predictor": "psychic"},
        {"predictor": []},
        {"predictor": ["posterior", "posterior"]},
        {"predictor": [3]},
        {"predictor": 3},
        {"channels": 10**9},
        {"channels": 4},
        {"in_channels": 0},
        {"in_channels": True},
        {"fill": "grey"},
        {"iterations": 10**6},
        {"min_confidence": -1},
        {"training": 3},
        {"more": 1},
    ],
)
def test_impossible_cards_are_refused(saved, tmp_path, change):
    tensors, description = checkpoint.read(saved)
    checkpoint.write(tmp_path / "file", tensors, {"canonicalizer": {**description["canonicalizer"], **change}})
    with pytest.raises(CheckpointError, match="is not a canonicalizer of this version of the library"):
        et.hub.load_canonicalizer(tmp_path / "file")


def test_each_kind_of_file_names_its_loader(saved, tmp_path):
    with pytest.raises(CheckpointError, match=r"load it in Python with et\.hub\.load_canonicalizer"):
        Classifier.load(saved)
    noise = ImageSet(images=torch.zeros(1, 1, 64, 64, dtype=torch.uint8), labels=torch.zeros(1).long(), name="noise")
    card = Card.of(Config(layers=("rotation",)), noise)
    Classifier(card.build(), card).save(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"Classifier\.load\(path\)\.module\.canonicalizer"):
        et.hub.load_canonicalizer(tmp_path / "model.safetensors")
    checkpoint.write(tmp_path / "other", {}, {})
    with pytest.raises(CheckpointError, match="it holds a training run"):
        et.hub.load_canonicalizer(tmp_path / "other")
    assert json.loads(json.dumps(CanonicalizerCard.of(et.Canonicalizer(["rotation"])).to_dict()))["layers"]


def test_brightness_contrast_and_normalisation_do_not_change_the_pose(tmp_path):
    torch.manual_seed(0)
    made = et.Canonicalizer(["rotation"], 3)
    nn.init.normal_(made.layers[0].predictor.head.weight)
    et.hub.save_canonicalizer(made, tmp_path / "file")
    loaded = et.hub.load_canonicalizer(tmp_path / "file")
    mean = torch.tensor([0.4, 0.5, 0.6]).reshape(1, 3, 1, 1)
    with torch.no_grad():
        assert torch.allclose(loaded(IMAGES).pose, loaded((IMAGES - mean) / 0.2).pose, atol=1e-4)
