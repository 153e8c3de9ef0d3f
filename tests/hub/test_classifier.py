"""A trained network in one file: what was saved is what is loaded, and anything else is refused with a reason."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from equivariant_transformers.data import ImageSet
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.training import Config, checkpoint
from equivariant_transformers.training.checkpoint import CheckpointError


def images(channels=3, side=24):
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(256, (6, channels, side, side), generator=generator).to(torch.uint8)
    return ImageSet(
        images=values,
        labels=torch.arange(6) % 2,
        name="noise",
        mean=(100.0,) * channels,
        std=(50.0,) * channels,
        classes=("a", "b"),
    )


def made(**fields):
    config = Config(network="resnet10", **fields)
    torch.manual_seed(3)
    card = Card.of(config, images())
    return Classifier(card.build(), card).eval()


@pytest.fixture
def file(tmp_path):
    made(layers=("rotation",)).save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"chart": "log_polar", "fill": "black"},
        {"layers": ("rotation", "x_scale"), "predictor": "softmax", "iterations": 2},
        {"layers": ("cartesian",), "predictor": "direct", "fill": "black"},
    ],
)
def test_what_is_loaded_is_what_was_saved(tmp_path, fields):
    before = made(**fields)
    before.save(tmp_path / "deep" / "model.safetensors")
    state = torch.get_rng_state()
    after = Classifier.load(str(tmp_path / "deep" / "model.safetensors"))
    assert torch.equal(torch.get_rng_state(), state)
    assert after.card == before.card
    assert not after.training
    batch = images().images
    with torch.no_grad():
        assert torch.equal(after(batch), before(batch))


def test_it_sees_images_as_training_does():
    classifier, data = made(fill="black"), images()
    assert torch.equal(classifier.normalise(data.images), data.normalise(data.images))
    assert torch.equal(classifier.to_bytes(classifier.normalise(data.images)), data.images)
    assert classifier.card.fill == data.black == -2


def test_the_card_is_json():
    card = made(layers=("x_shear",)).card
    assert Card.from_dict(json.loads(json.dumps(card.to_dict()))) == card


def test_a_file_from_before_cards_had_a_hash_of_the_labels_is_read(file):
    tensors, description = checkpoint.read(file)
    del description["card"]["labels"]
    checkpoint.write(file, tensors, description)
    assert Classifier.load(file).card.labels is None


def test_canonical_images():
    out = made(layers=("log_polar",)).canonicalize(images().images)
    assert out.names == ("rotation", "dilation")
    assert out.image.shape == (6, 3, 24, 24)
    assert made().canonicalize(images().images).names == ()


def test_pictures_of_any_kind_are_prepared(tmp_path):
    classifier = made()
    picture = Image.fromarray(np.full((20, 40, 4), (200, 100, 0, 255), np.uint8))
    picture.save(tmp_path / "wide.png")
    for given in (picture, np.asarray(picture), tmp_path / "wide.png", str(tmp_path / "wide.png")):
        prepared = classifier.prepare(given)
        assert prepared.dtype == torch.uint8
        assert prepared.shape == (3, 24, 24)
        assert prepared[:, 12, 12].tolist() == [200, 100, 0]
        assert prepared[:, 0, 12].tolist() == [200, 100, 0]  # the border fills the rest
    assert classifier(prepared[None]).shape == (1, 2)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(1, 3, 24, 24), torch.zeros(3, 24, 24).byte(), torch.zeros(1, 1, 24, 24).byte(), "cat.png"]
)
def test_other_images_are_refused(wrong):
    with pytest.raises(ValueError, match=r"takes uint8 images \(B, 3, 24, 24\), got"):
        made()(wrong)


def test_damaged_and_foreign_files_are_refused(file, tmp_path):
    content = file.read_bytes()
    for damaged in (b"", content[:100], content[:-100], b"PNG" + content):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cut off, damaged or not a safetensors file"):
            Classifier.load(file)
    with pytest.raises(CheckpointError, match="there is no"):
        Classifier.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="is a folder; give the file in it, such as "):
        Classifier.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda card: card.pop("mean"), "mean"),
        (lambda card: card.update(colour="blue"), "colour"),
        (lambda card: card["config"].update(network="resnet11"), "unknown network 'resnet11'"),
        (lambda card: card["config"].update(layers=[]), "Unexpected key"),
        (lambda card: card.update(classes=["a", "b", "c"]), "size mismatch"),
        (lambda card: card.update(config=[]), "not a model of this version"),
        (lambda card: card.update(config=None), "not a model of this version"),
        (lambda card: card.update(mean=["dark"]), "not a model of this version"),
        (lambda card: card.update(std=[]), "not a model of this version"),
        (lambda card: card.update(std=[0.0, 0.0, 0.0]), "not a model of this version"),
        (lambda card: card.update(size=[]), "not a model of this version"),
        (lambda card: card["config"].update(augment=[3]), "not a model of this version"),
    ],
)
def test_a_card_that_does_not_fit_is_refused_in_one_line(file, change, reason):
    tensors, description = checkpoint.read(file)
    change(description["card"])
    checkpoint.write(file, tensors, description)
    with pytest.raises(CheckpointError, match=reason) as refused:
        Classifier.load(file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("card", [None, 3, "card", [], ["config"], {}])
def test_a_card_that_is_not_an_object_is_refused(file, card):
    checkpoint.write(file, checkpoint.read(file)[0], {"card": card})
    with pytest.raises(CheckpointError, match="is not a model of this version of the library: "):
        Classifier.load(file)


def test_weights_of_another_kind_are_refused_and_of_another_precision_converted(file):
    tensors, description = checkpoint.read(file)
    floats = {name for name, tensor in tensors.items() if tensor.is_floating_point()}
    halves = {name: tensor.bfloat16() if name in floats else tensor for name, tensor in tensors.items()}
    checkpoint.write(file, halves, description)
    assert all(parameter.dtype == torch.float32 for parameter in Classifier.load(file).parameters())
    checkpoint.write(file, {name: tensor.long() for name, tensor in tensors.items()}, description)
    with pytest.raises(CheckpointError, match=r"is torch\.int64, not torch\.float32"):
        Classifier.load(file)


def test_a_flipped_bit_in_the_weights_is_noticed(file):
    content = file.read_bytes()
    for share in (0.2, 0.5, 0.8):
        flipped = bytearray(content)
        flipped[int(share * len(content))] ^= 1
        file.write_bytes(flipped)
        with pytest.raises(CheckpointError, match="is damaged"):
            Classifier.load(file)


def test_the_state_of_a_run_is_not_a_model(tmp_path):
    checkpoint.write(tmp_path / "checkpoint.safetensors", {}, {"config": {}})
    with pytest.raises(CheckpointError, match=r"load model\.safetensors in the same folder"):
        Classifier.load(tmp_path / "checkpoint.safetensors")
