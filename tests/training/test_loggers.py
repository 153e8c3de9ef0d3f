"""Logs of training: one row per epoch, whatever is interrupted, and no error that ends the training."""

import csv
import sys
import types

import pytest
import torch
from small import CONFIG, bars, job

import equivariant_transformers as et
from equivariant_transformers.training import Epoch, train
from equivariant_transformers.training.loggers import HISTORY, TensorBoard, WeightsAndBiases, canonical_images

SHORT = CONFIG.replace(epochs=2, warmup=1)


def table(directory):
    with (directory / HISTORY).open() as file:
        return list(csv.DictReader(file))


def test_the_history_has_a_row_per_epoch(tmp_path):
    (result,) = train([job(SHORT, tmp_path)])
    rows = table(tmp_path)
    assert list(rows[0]) == ["epoch", "loss", "validation_error", "learning_rate", "seconds"]
    assert [int(row["epoch"]) for row in rows] == [1, 2]
    for epoch, (row, entry) in enumerate(zip(rows, result.history, strict=True)):
        assert {name: float(row[name]) for name in entry} == entry
        assert float(row["learning_rate"]) == SHORT.learning_rate_in(epoch)


def test_a_run_that_goes_back_to_its_checkpoint_has_each_epoch_once(tmp_path):
    train([job(SHORT.replace(epochs=1), tmp_path)])
    (tmp_path / HISTORY).write_text((tmp_path / HISTORY).read_text() + "2,9,9,9,9\n3,9,9,9,9\n")  # after the checkpoint
    (result,) = train([job(SHORT, tmp_path)])
    assert [float(row["loss"]) for row in table(tmp_path)] == [entry["loss"] for entry in result.history]


def test_a_callback_gets_every_epoch_and_the_network():
    seen, kept = [], []

    def look(epoch: Epoch):
        kept.append(epoch)
        assert not epoch.module.training
        with torch.no_grad():
            epoch.module(torch.zeros(1, 1, 8, 8))
        seen.append((epoch.name, epoch.number, [row["epoch"] for row in epoch.rows()], epoch.directory))

    (result,) = train([job(SHORT)], on_epoch=look)
    assert seen == [("run", 1, [1], None), ("run", 2, [1, 2], None)]
    assert [epoch.number for epoch in kept] == [1, 2]  # an epoch that is kept does not change
    (alone,) = train([job(SHORT)])
    drop = [{**entry, "seconds": 0} for entry in result.history]
    assert drop == [{**entry, "seconds": 0} for entry in alone.history]  # the callback changes nothing


def test_an_error_in_a_callback_is_one_warning(tmp_path):
    seen = []

    def broken(_):
        raise OSError("no space left")

    with pytest.warns(UserWarning, match="failed") as caught:
        (result,) = train([job(SHORT, tmp_path)], on_epoch=[broken, lambda epoch: seen.append(epoch.number)])
    assert [str(warning.message) for warning in caught] == [
        "training continues, but the logger broken failed: OSError: no space left"
    ]
    assert len(result.history) == len(table(tmp_path)) == 2
    assert seen == [1, 2]


def test_a_history_that_cannot_be_written_does_not_end_the_training(tmp_path):
    (tmp_path / HISTORY).mkdir()
    with pytest.warns(UserWarning, match="the logger write_history failed: IsADirectoryError"):
        (result,) = train([job(SHORT, tmp_path)])
    assert result.failure is None


# Services


def epochs(count, directory=None, module=None):
    history = [{"loss": 1 / n, "validation_error": 50.0 / n, "seconds": 0.5} for n in range(1, count + 1)]
    return Epoch(name="run", config=SHORT, history=history, module=module or torch.nn.Identity(), directory=directory)


@pytest.fixture
def layered():
    torch.manual_seed(0)
    return et.Canonicalized(torch.nn.Flatten(), et.Canonicalizer(["rotation"], predictor="consistent")).eval()


def test_canonical_images_are_inputs_above_canonical_images(layered):
    images = bars(12, 0)
    shown = canonical_images(layered, images)
    assert (shown.shape, shown.dtype) == ((1, 16, 64), torch.uint8)
    assert torch.equal(shown[:, :8], torch.cat(images.images[:8].unbind(0), 2))
    assert not torch.equal(shown[:, 8:], shown[:, :8])
    identity = et.Canonicalized(torch.nn.Flatten(), et.Canonicalizer(["rotation"])).eval()  # posterior starts there
    shown = canonical_images(identity, images)
    assert torch.equal(shown[:, 8:], shown[:, :8])
    assert canonical_images(et.Canonicalized(torch.nn.Flatten(), et.Canonicalizer([])), images) is None
    assert canonical_images(torch.nn.Flatten(), images) is None


def test_tensorboard_shows_each_epoch_once(tmp_path, layered):
    pytest.importorskip("tensorboard", reason="needs the extra logging")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoard(tmp_path, bars(4, 0))
    for count in (2, 3, 4):  # the logger starts with a run that has an epoch already
        first(epochs(count, module=layered))
    TensorBoard(tmp_path, bars(4, 0))(epochs(3, module=layered))  # resumed from a checkpoint after two epochs
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "validation_error", "learning_rate", "seconds"}
    assert [event.step for event in found.Scalars("loss")] == [1, 2, 3]
    assert [event.value for event in found.Scalars("loss")] == pytest.approx([1, 1 / 2, 1 / 3])
    images = found.Images("canonical images")
    assert [event.step for event in images] == [2, 3]
    assert (images[0].height, images[0].width) == (16, 32)


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in that keeps what it is given."""
    fake = types.ModuleType("wandb")
    fake.runs, fake.rows = [], []

    def init(**settings):
        fake.runs.append(settings)
        return types.SimpleNamespace(log=lambda figures, step: fake.rows.append((step, figures)))

    fake.init, fake.Image = init, lambda array: ("image", array.shape)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_weights_and_biases_continue_a_resumed_run(wandb, tmp_path, layered):
    first = WeightsAndBiases(tmp_path, bars(4, 0))
    for count in (2, 3):
        first(epochs(count, module=layered))
    WeightsAndBiases(tmp_path, bars(4, 0))(epochs(4, module=layered))
    assert [step for step, _ in wandb.rows] == [1, 2, 3, 4]
    assert wandb.rows[2][1] == {
        "loss": pytest.approx(1 / 3),
        "validation_error": pytest.approx(50 / 3),
        "learning_rate": SHORT.learning_rate_in(2),
        "seconds": 0.5,
        "canonical images": ("image", (16, 32, 1)),
    }
    one, two = wandb.runs
    assert one["id"] == two["id"]
    assert (one["resume"], one["name"], one["config"]) == ("allow", "run", SHORT.to_dict())
    WeightsAndBiases(tmp_path / "other", bars(4, 0))(epochs(1))
    assert wandb.runs[2]["id"] != one["id"]


@pytest.mark.parametrize(
    ("logger", "module", "message"),
    [
        (TensorBoard, "torch.utils.tensorboard", r"needs the package tensorboard: pip install .*logging"),
        (WeightsAndBiases, "wandb", "needs the package wandb: pip install wandb"),
    ],
)
def test_a_missing_package_is_named_with_its_command(logger, module, message, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=message):
        logger(tmp_path, bars(4, 0))
