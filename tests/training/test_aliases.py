"""Files with the names of version 0.1 are read as before."""

import json
from pathlib import Path

import pytest
import torch
from small import bars

from equivariant_transformers.data import Splits
from equivariant_transformers.experiments import results
from equivariant_transformers.hub import Classifier
from equivariant_transformers.hub.classifier import Card
from equivariant_transformers.training import CHECKPOINT, Config, checkpoint, train
from equivariant_transformers.training.aliases import FIELDS
from equivariant_transformers.training.job import make_job

ROOT = Path(__file__).parents[2]
VALUES = {
    "averaging": 0.9,
    "background": "black",
    "decay": 0.5,
    "jitter": 0.1,
    "looks": 2,
    "passes": 2,
    "views": ["rotation=1"],
}
OLD = {new: old for old, new in FIELDS.items()}
RECORDS = [
    path for path in sorted(ROOT.glob("results/*/*.json")) if "validation_errors" in json.loads(path.read_text())
]
NETWORKS = {
    "bare": (Config(network="resnet10"), ""),
    "behind a chart": (Config(network="resnet10", chart="log_polar"), "1."),
    "layers": (Config(network="resnet10", layers=("rotation",), pose_noise=0.1), None),
    "average": (Config(network="resnet10", ema_decay=0.9, augment=("rotation=0.1",)), "backbone."),
}


def to_old(fields):
    return {OLD.get(name, name): value for name, value in fields.items()}


def test_every_alias_has_a_value_here():
    assert VALUES.keys() == FIELDS.keys()


@pytest.mark.parametrize("old", FIELDS)
def test_configs_with_an_old_name_are_read(old):
    extra = {"views": ["rotation=1"]} if old == "looks" else {}
    config = Config.from_dict({old: VALUES[old], **extra})
    value = getattr(config, FIELDS[old])
    assert (list(value) if old == "views" else value) == VALUES[old]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_result_files_keep_their_figures_and_names(path):
    record, fields = results.load(path), json.loads(path.read_text())
    assert record.test_error == pytest.approx(fields["test_error"], nan_ok=True)
    for name, value in fields["config"].items():
        assert record.config.to_dict()[FIELDS.get(name, name)] == value
    assert results.key(record.config) == path.stem


def test_there_are_result_files():
    assert len(RECORDS) > 100


def old_names(tensors, prefix):
    """Return tensors of a checkpoint with the weight names of 0.1, `prefix` in place of `backbone.`."""
    return {name.replace("/backbone.", f"/{prefix}"): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", NETWORKS)
def test_checkpoints_of_old_runs_are_resumed(kind, tmp_path):
    base, prefix = NETWORKS[kind]
    config = base.replace(epochs=2, batch_size=20, dropout=0.0, device="cpu")
    splits = Splits(bars(60, 0), bars(20, 1), bars(20, 2))

    def stop(progress):
        if (progress.epoch, progress.step) == (1, 1):
            raise KeyboardInterrupt

    whole = make_job(config, splits)
    (expected,) = train([whole])
    with pytest.raises(KeyboardInterrupt):
        train([make_job(config, splits, directory=tmp_path)], report=stop, save_every=0)
    tensors, description = checkpoint.read(tmp_path / CHECKPOINT)
    if prefix is not None:
        tensors = old_names(tensors, prefix)
    description["config"] = to_old(description["config"])
    checkpoint.write(tmp_path / CHECKPOINT, tensors, description)
    again = make_job(config, splits, directory=tmp_path)
    (found,) = train([again])
    assert [entry["loss"] for entry in found.history] == [entry["loss"] for entry in expected.history]
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], tensor), name


@pytest.mark.parametrize("kind", NETWORKS)
def test_model_files_with_old_names_are_read(kind, tmp_path):
    base, prefix = NETWORKS[kind]
    card = Card.of(base, bars(4, 0))
    classifier = Classifier(card.build(), card).eval()
    state = classifier.module.state_dict()
    if prefix is not None:
        state = {name.replace("backbone.", prefix, 1): tensor for name, tensor in state.items()}
    fields = to_old(card.to_dict())
    fields["config"] = to_old(fields["config"])
    checkpoint.write(tmp_path / "model.safetensors", state, {"card": fields})
    loaded = Classifier.load(tmp_path / "model.safetensors")
    assert loaded.card == card
    images = bars(4, 1).images
    assert torch.equal(loaded(images), classifier(images))
