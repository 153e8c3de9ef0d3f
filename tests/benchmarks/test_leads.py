"""The script that tries ideas outside the library patches what it says, and keeps what it has measured."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from glyphs import glyphs

from equivariant_transformers.data import ImageSet, Loader, Splits
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.training import Config
from equivariant_transformers.training.job import make_job

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
leads = import_module("leads")
LAYERS = ("x_shear", "rotation")


@pytest.fixture
def splits():
    """As many glyphs as a batch needs."""
    images = (255 * glyphs(64)).to(torch.uint8).repeat(32, 1, 1, 1)
    labels = torch.arange(len(images)) % 10
    few = ImageSet(images=images, labels=labels, name="glyphs", mean=(16.0,), std=(56.0,))
    return Splits(few, few, few)


def features(splits, variant):
    """What the first predictor's trunk makes of the glyphs, patched or not."""
    job = make_job(Config(layers=LAYERS, predictor="softmax", fill="black"), splits)
    leads.VARIANTS[variant](job, splits)
    return job.module.canonicalizer.layers[0].predictor


def test_halving_keeps_what_is_constant_and_removes_the_finest_wave():
    constant, wave = torch.ones(1, 2, 8, 6), torch.tensor([1.0, -1.0]).repeat(4).reshape(1, 1, 8, 1)
    torch.testing.assert_close(leads.halve(constant, -1, (False, False)), constant[..., ::2])
    torch.testing.assert_close(leads.halve(wave, -2, (True, True)), torch.zeros(1, 1, 4, 1))


def test_anti_aliased_features_lie_where_strided_ones_do(splits):
    """Of an image without detail they are the same, apart from the ends."""
    x = torch.linspace(-1, 1, 64).expand(2, 1, 64, 64).clone()
    plain, patched = features(splits, "as it is").trunk.eval(), features(splits, "anti-aliased strides").trunk.eval()
    ours, theirs = (trunk(x).images()[..., 3:-3, 3:-3] for trunk in (patched, plain))
    torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0)


def test_fill_padding_makes_the_fill_value_the_zero_of_the_features(splits):
    predictor = features(splits, "fill padding").eval()
    x = torch.rand(2, 1, 1, 64, 64)
    x[..., :8, :8] = 0.0
    torch.testing.assert_close(predictor(x - 0.3).heatmaps[0], predictor(x + 0.7).heatmaps[0])


@pytest.mark.parametrize("variant", ["distilled from three", "distilled from three, separate augmentation"])
def test_a_student_is_shown_the_mean_of_its_teachers(splits, monkeypatch, variant):
    monkeypatch.setattr(leads, "train", lambda _: None)
    job = make_job(Config(layers=LAYERS, predictor="softmax", fill="black"), splits)
    leads.VARIANTS[variant](job, splits)
    images = splits.train.normalise(splits.train.images[:4])
    shown = job.module.train()(images)[:, 1].softmax(1)
    probabilities = [(teacher(images) / leads.WARMTH).softmax(1) for teacher in job.module.teachers]
    torch.testing.assert_close(shown, torch.stack(probabilities).mean(0))
    assert {name.split(".")[0] for name in job.module.state_dict()} == {"network"}  # teachers are not kept


def test_rows_are_run_once(splits, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ET_COMMIT", "0123456")
    monkeypatch.setattr(leads, "load_data", lambda *_: splits)
    monkeypatch.setattr(leads, "eight_copies", lambda *_: Loader(splits.validation, batch_size=64))
    monkeypatch.setattr(sys, "argv", ["leads.py", "--variant", "as it is", "--variant", "three peers", "--epochs", "1"])
    leads.main()
    assert [row["variant"] for row in json.loads(leads.OUT.read_text())["rows"]] == ["as it is", "three peers"]
    capsys.readouterr()
    leads.main()
    assert not capsys.readouterr().out


@pytest.mark.parametrize(("options", "tta"), [([], 1), (["--tta", "3"], 3)])
def test_a_model_is_tested_with_test_time_augmentation_and_nothing_is_trained(
    splits, monkeypatch, tmp_path, capsys, options, tta
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(leads, "load_data", lambda *_: splits)
    few = splits.validation.take(torch.arange(16))
    monkeypatch.setattr(leads, "eight_copies", lambda *_: Loader(few, batch_size=16))
    seen, forward = [], Canonicalized.forward
    monkeypatch.setattr(Canonicalized, "forward", lambda *a: seen.append(len(a[1])) or forward(*a))
    monkeypatch.setattr(sys, "argv", ["leads.py", "--model", "projective-mnist-softmax", *options])
    leads.main()
    name, error = capsys.readouterr().out.split()
    assert (name, sum(seen)) == ("projective-mnist-softmax", 16 * tta)
    assert 0 <= float(error) <= 100
    assert not leads.OUT.exists()
