"""Networks learn several labels or values per image, and the figures of their predictions are right."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equivariant_transformers.data import ImageSet, Splits
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.training import Config, train
from equivariant_transformers.training.checkpoint import CheckpointError
from equivariant_transformers.training.job import make_job
from equivariant_transformers.training.metrics import average_precision, mean_absolute_error, r_squared
from equivariant_transformers.training.tasks import TASKS, make_loss, standardise, target_statistics

MULTILABEL = Config(task="multilabel", epochs=6, batch_size=16, learning_rate=2e-2, dropout=0.0)
REGRESSION = MULTILABEL.replace(task="regression")


def marks(count, seed, task):
    """Images with bright marks in some of three rows. The values depend on their brightness."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.rand(count, 3, generator=generator) < 0.5
    bright = torch.rand(count, 3, generator=generator) * 120 + 80
    images = torch.randint(40, (count, 1, 9, 12), generator=generator).float()
    images[:, 0, 1::3] += (present * bright)[:, :, None]
    values = torch.stack((1000 + (present * bright).sum(1), -0.01 * (present * bright)[:, 0]), 1)
    labels = present.float() if task == "multilabel" else values
    names = ("top", "middle", "bottom") if task == "multilabel" else ("weight", "depth")
    return ImageSet(
        images=images.to(torch.uint8), labels=labels, name="marks", mean=(60.0,), std=(60.0,), classes=names
    )


def splits(task):
    return Splits(*(marks(count, seed, task) for seed, count in enumerate((160, 40, 60))))


def small(in_channels, classes):
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d((9, 1)), nn.Flatten(),
        nn.Linear(72, classes),
    )  # fmt: skip


@pytest.fixture(scope="module", params=[MULTILABEL, REGRESSION], ids=lambda config: config.task)
def trained(request):
    config = request.param
    parts = splits(config.task)
    job = make_job(config, parts, network=small)
    (result,) = train([job])
    card = Card.of(config, parts.train)
    return Classifier(job.module, card).eval(), parts.test, result


def test_a_network_learns_the_task(trained):
    classifier, _, result = trained
    losses = [entry["loss"] for entry in result.history]
    assert losses[-1] < 0.5 * losses[0]
    assert result.test_error < (10 if classifier.card.config.task == "multilabel" else 30)
    assert result.validation_error == min(entry["validation_error"] for entry in result.history)


@torch.no_grad()
def test_the_error_of_the_run_is_that_of_the_predictions(trained):
    classifier, test, result = trained
    predictions = classifier.predict(test.images)
    if classifier.card.config.task == "multilabel":
        found = ((predictions > 0.5) != test.labels.bool()).double().mean()
        assert average_precision(predictions, test.labels).min() > 0.9
    else:
        assert predictions[:, 0].mean() == pytest.approx(test.labels[:, 0].mean().item(), rel=0.05)  # not standardised
        found = ((predictions - test.labels) / torch.tensor(classifier.card.target_std)).double().square().mean()
        assert r_squared(predictions, test.labels).min() > 0.6
    assert 100 * found.item() == pytest.approx(result.test_error, rel=1e-4, abs=1e-6)


@torch.no_grad()
def test_a_model_file_keeps_the_task_and_the_units(trained, tmp_path):
    classifier, test, _ = trained
    classifier.save(tmp_path / "model.safetensors")
    loaded = Classifier.load(tmp_path / "model.safetensors", network=small)
    assert loaded.card.config.task == classifier.card.config.task
    torch.testing.assert_close(loaded(test.images), classifier(test.images))


@pytest.mark.parametrize("config", [MULTILABEL, REGRESSION], ids=lambda config: config.task)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(config, tmp_path):
    parts, short = splits(config.task), config.replace(epochs=2)
    (alone,) = train([make_job(short, parts, network=small)])
    train([make_job(short.replace(epochs=1), parts, directory=tmp_path, network=small)])
    (resumed,) = train([make_job(short, parts, directory=tmp_path, network=small)])
    assert resumed.test_error == alone.test_error
    changed = parts._replace(train=dataclasses.replace(parts.train, labels=1 - parts.train.labels))
    with pytest.raises(CheckpointError, match="other images"):  # the values are part of the run
        train([make_job(short, changed, directory=tmp_path, network=small)])


def test_a_diverged_regression_is_reported_and_can_be_read_again(tmp_path):
    config = REGRESSION.replace(learning_rate=1e30, epochs=2)
    parts = splits("regression")
    for _ in range(2):
        (result,) = train([make_job(config, parts, directory=tmp_path, network=small)])
        assert "the loss was" in result.failure
        assert all(math.isfinite(entry["validation_error"]) for entry in result.history)


# Losses, averages and statistics


def test_balanced_labels_weigh_positive_images_by_their_odds():
    images = marks(8, 0, "multilabel")
    images.labels.copy_(torch.tensor([[1.0, 0, 1]] + 7 * [[0.0, 0, 1]]))
    loss = make_loss(MULTILABEL.replace(class_weights="balanced"), images)
    logits, labels = torch.zeros(1, 3), torch.ones(1, 3)
    assert loss(logits, labels).item() == pytest.approx(math.log(2) * (7 + 8 + 1 / 8) / 3)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
def test_the_prediction_of_averaged_outputs_is_the_mean_prediction(task, count, columns, seed):
    outputs = 4 * torch.randn(count, 3, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    each = torch.stack([task.predict(one) for one in outputs])
    torch.testing.assert_close(task.predict(task.average(outputs)), each.mean(0))


@pytest.mark.parametrize("config", [MULTILABEL, REGRESSION], ids=lambda config: config.task)
@torch.no_grad()
def test_test_time_augmentation_averages_predictions(config):
    config = config.replace(augment=("rotation=0.4",), tta=3)
    card = Card.of(config, marks(8, 0, config.task))
    classifier = Classifier(card.build(small), card).eval()
    images = marks(4, 1, config.task).images
    averaged = classifier.predict(images)
    classifier.tta = 1
    assert not torch.allclose(averaged, classifier.predict(images))
    assert averaged.shape == (4, len(card.classes))


def test_standardised_targets_have_mean_0_and_deviation_1():
    parts = splits("regression")
    parts.train.labels[:, 1] = 7.5  # a constant
    mean, std = target_statistics(REGRESSION, parts.train)
    assert std[1] == 1
    labels = standardise(REGRESSION, parts).train.labels
    torch.testing.assert_close(labels.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    assert labels[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(labels * torch.tensor(std) + torch.tensor(mean), parts.train.labels)
    assert standardise(MULTILABEL, splits("multilabel")).train.labels.unique().tolist() == [0, 1]


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_average_precision_is_its_definition(count, columns, levels, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (count, columns), generator=generator) / levels  # with ties
    labels = torch.randint(2, (count, columns), generator=generator).float()
    for found, score, label in zip(average_precision(scores, labels).tolist(), scores.T, labels.T, strict=True):
        if not label.any():
            assert math.isnan(found)
            continue
        expected, recall = 0.0, 0.0
        for threshold in sorted(set(score.tolist()), reverse=True):
            chosen = score >= threshold
            precision, reached = label[chosen].mean().item(), (label[chosen].sum() / label.sum()).item()
            expected, recall = expected + (reached - recall) * precision, reached
        assert found == pytest.approx(expected, abs=1e-6)


def test_figures_of_values():
    values = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    predictions = torch.tensor([[2.0, 5.0], [2.0, 6.0]])
    assert mean_absolute_error(predictions, values).tolist() == [1, 0.5]
    explained = r_squared(predictions, values).tolist()
    assert explained[0] == 0  # as good as the mean
    assert math.isnan(explained[1])  # a constant has no variance to explain


# Wrong targets


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        ("classification", torch.zeros(4, 2), "classification needs a class number per image"),
        ("multilabel", torch.zeros(4, dtype=torch.long), "multilabel needs a row of numbers per image"),
        ("regression", torch.zeros(4, dtype=torch.long), "regression needs a row of numbers per image"),
        ("multilabel", torch.full((4, 2), 0.5), "needs targets 0 and 1"),
    ],
)
def test_targets_of_another_task_are_refused(task, labels, message):
    images = torch.zeros(4, 1, 9, 12, dtype=torch.uint8)
    part = ImageSet(images=images, labels=labels, name="blank", classes=("a", "b"))
    with pytest.raises(ValueError, match=message):
        make_job(Config(task=task), Splits(part, part, part), network=small)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (REGRESSION.replace(class_weights="balanced"), "class_weights must be equal for the task regression"),
        (REGRESSION.replace(network="capsule"), "task must be classification for the network capsule"),
    ],
)
def test_losses_that_do_not_exist_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        make_loss(config, marks(4, 0, "regression"))


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="task must be classification or multilabel or regression, got 'detection'"):
        Config(task="detection")


@pytest.mark.parametrize(
    "changes",
    [
        {"target_mean": ()},
        {"target_std": (1.0, 0.0)},
        {"target_std": (1.0, math.nan)},
        {"target_mean": (1.0, "2")},
        {"test_error": -1.0},
        {"config": Config(task="multilabel")},
    ],
)
def test_a_card_that_contradicts_its_task_is_refused(changes):
    fields = Card.of(REGRESSION, marks(8, 0, "regression")).to_dict()
    assert Card.from_dict(fields).to_dict() == fields
    changes = {name: getattr(value, "to_dict", lambda value=value: value)() for name, value in changes.items()}
    with pytest.raises(ValueError, match=r"target_|test_error"):
        Card.from_dict(fields | changes)
