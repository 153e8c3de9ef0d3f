"""Training with the alignment loss: it needs no labels, changes nothing where it is not asked for, and turns back."""

import dataclasses

import pytest
import torch
from oriented import arrows, median_error
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.nn.alignment import Aligned
from equivariant_transformers.training import Config, train
from equivariant_transformers.training.calibrating import calibrated
from equivariant_transformers.training.checkpoint import CheckpointError
from equivariant_transformers.training.job import make_job
from equivariant_transformers.training.optimization import Optimization

CONFIG = Config(
    dataset="arrows",
    network="resnet10",
    layers=("rotation",),
    predictor="posterior",
    augment=("rotation=0.26", "dilation=0.1"),
    alignment=1.0,
    epochs=12,
    batch_size=16,
    keep="last",
    device="cpu",
)


@pytest.fixture(scope="module")
def splits():
    return et.data.Splits(arrows(240, 0), arrows(32, 1), arrows(32, 2))


def small(in_channels, classes):
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, classes)
    )


def test_a_network_is_trained_to_turn_images_back(splits):
    job = make_job(CONFIG, splits, network=small)
    before = job.module.state_dict()["canonicalizer.layers.0.predictor.head.weight"].clone()
    (result,) = train([job])
    losses = [entry["loss"] for entry in result.history]
    assert losses[-1] < losses[0] - 0.7
    assert not torch.equal(before, job.module.canonicalizer.layers[0].predictor.head.weight)
    assert median_error(job.module.canonicalizer, splits.test) < 15


def test_the_class_loss_does_not_reach_the_predictor_for_photographs(splits):
    gradients = []
    for labels in (torch.zeros(16, dtype=torch.long), torch.ones(16, dtype=torch.long)):
        job = make_job(CONFIG, splits, network=small)
        optimization = Optimization(job.module, job.train, CONFIG, job.augmentation)
        torch.manual_seed(3)
        loss = optimization._loss(optimization.network(job.train.batch(job.train.epoch(0)[0])[0]), labels)
        loss.backward()
        gradients.append((job.module.canonicalizer.layers[0].predictor.head.weight.grad, loss.item()))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert gradients[0][1] != gradients[1][1]


def test_without_alignment_nothing_is_wrapped(splits):
    config = CONFIG.replace(alignment=0.0, augment=(), predictor="consistent")
    job = make_job(config, splits, network=small)
    assert Optimization(job.module, job.train, config, job.augmentation).network is job.module
    assert config.diverged_loss == 50
    assert CONFIG.diverged_loss == 100


def test_a_run_with_alignment_resumes_to_the_same_bits(splits, tmp_path):
    config = CONFIG.replace(epochs=2, ema_decay=0.9)
    whole = make_job(config, splits, network=small)
    train([whole])
    parts = make_job(config.replace(epochs=1), splits, network=small, directory=tmp_path)
    train([parts])
    parts = make_job(config, splits, network=small, directory=tmp_path)
    train([parts])
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, parts.module.state_dict()[name]), name
    with pytest.raises(CheckpointError, match=r"alignment is 1\.0 in the file and 0\.5 in this run"):
        train([make_job(config.replace(alignment=0.5), splits, network=small, directory=tmp_path)])


@pytest.mark.parametrize("predictor", ["posterior", "consistent"])
def test_a_batch_of_one_image_trains(predictor, splits):
    config = CONFIG.replace(predictor=predictor, batch_size=1, epochs=1)
    few = et.data.Splits(*(part.take(torch.arange(2)) for part in splits))
    (result,) = train([make_job(config, few, network=small)])
    assert result.failure is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alignment": 1.0}, "alignment must be 0 without layers and augment, got 1.0"),
        ({"alignment": 1.0, "layers": ("rotation",)}, "alignment must be 0 without augment, got 1.0"),
        ({"alignment": -1.0}, "alignment must be at least 0, got -1.0"),
        ({"alignment": "much"}, "alignment takes a number, got 'much'"),
    ],
)
def test_alignment_needs_layers_and_augmentation(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**fields)


def test_a_predictor_that_learns_nothing_is_refused(splits):
    with pytest.raises(ValueError, match="learns from the alignment loss alone: set augment and alignment"):
        make_job(CONFIG.replace(alignment=0.0), splits)
    with pytest.raises(TypeError, match="needs a Canonicalized network, got a Linear"):
        Aligned(nn.Linear(1, 1))


def test_layers_are_calibrated_on_the_validation_images_at_the_end_of_each_epoch(splits):
    noise = splits._replace(validation=dataclasses.replace(splits.validation, images=any_images(32)))
    job = make_job(CONFIG.replace(epochs=1, learning_rate=1e-6), noise, network=small)
    head = job.module.canonicalizer.layers[0].predictor.head.weight
    nn.init.normal_(head, std=0.7, generator=torch.Generator().manual_seed(0))
    kept = []
    job.on_keep = lambda weights, result: kept.append((weights["canonicalizer.layers.0.predictor.head.weight"], result))
    optimization_weights = head.detach().clone()
    (result,) = train([job])
    (factor,) = result.factors
    assert factor < 1
    torch.testing.assert_close(kept[0][0], optimization_weights * factor, rtol=1e-3, atol=1e-3)
    assert et.calibrate(job.module.canonicalizer, noise.validation.normalise(noise.validation.images)) == (1.0,)


def any_images(count):
    return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_turned_validation_images_calibrate_nothing(splits):
    job = make_job(CONFIG.replace(epochs=1, learning_rate=1e-6), splits, network=small)
    canonicalizer = job.module.canonicalizer
    nn.init.normal_(canonicalizer.layers[0].predictor.head.weight, std=100.0)
    with calibrated(job.module, job.validation) as factors:
        assert factors == ()
    (factor,) = et.calibrate(canonicalizer, splits.validation.normalise(splits.validation.images))
    assert factor < 1
