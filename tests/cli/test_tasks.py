"""Multi-label classification and regression on the command line."""

import json

import pytest
import torch
from PIL import Image

from equivariant_transformers.cli import console, models
from equivariant_transformers.data import DATASETS, ImageSet, Source, Splits
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.training import Config

SMALL = ["--network", "z2cnn", "--epochs", 3, "--batch-size", 16, "--learning-rate", 0.01, "--device", "cpu"]


@pytest.fixture
def et(run):
    return run


def halves(count, seed, values):
    """Images whose left and right halves are bright or dark. The value counts the bright halves."""
    generator = torch.Generator().manual_seed(seed)
    present = (torch.rand(count, 2, generator=generator) < 0.5).float()
    images = torch.randint(40, (count, 1, 56, 56), generator=generator).float()
    images += 180 * present.repeat_interleave(28, 1)[:, None, None]
    labels = 100 + 10 * present.sum(1, keepdim=True) if values else present
    return ImageSet(
        images=images.to(torch.uint8),
        labels=labels,
        name="halves",
        mean=(100.0,),
        std=(100.0,),
        classes=("brightness",) if values else ("left", "right"),
    )


@pytest.fixture(autouse=True)
def data_sets(monkeypatch):
    for name, values in (("halves", False), ("brightness", True)):

        def load(values=values, progress=None):
            return Splits(*(halves(count, seed, values) for seed, count in enumerate((96, 16, 24))))

        source = Source(name=name, summary="halves", licence="none", download_bytes=0, load=load)
        monkeypatch.setitem(DATASETS, name, source)


@pytest.fixture
def picture(tmp_path):
    image = halves(12, 5, values=False)
    index = int((image.labels == torch.tensor([1.0, 0.0])).all(1).nonzero()[0])
    Image.fromarray(image.images[index, 0].numpy()).save(tmp_path / "left.png")
    return tmp_path / "left.png"


def test_multilabel_from_training_to_prediction(et, tmp_path, picture):
    out, err = et("train", "--dataset", "halves", "--task", "multilabel", *SMALL, "--out", tmp_path)
    assert "96/16/24 images, 2 labels, 56 x 56" in err
    assert "% of the labels with epoch" in out
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["label", "left", "right"]
    assert not (tmp_path / "confusion.png").exists()
    model = tmp_path / "model.safetensors"
    card = Classifier.load(model).card
    assert (card.config.task, card.classes) == ("multilabel", ("left", "right"))

    out, _ = et("evaluate", model, "--json")
    found = json.loads(out)
    assert found["test_error"] == pytest.approx(card.test_error)
    assert found["labels"]["left"]["images"] == int(halves(24, 2, values=False).labels[:, 0].sum())
    assert found["mean_average_precision"] > 90
    out, _ = et("evaluate", model)
    assert f"test error {card.test_error:.2f} % of the labels, mean average precision" in out
    assert "24 images of halves" in out

    out, _ = et("predict", model, picture)
    assert out.splitlines()[0].split() == ["image", "labels"]
    assert "left" in out.splitlines()[1].partition("png")[2]
    assert "right" not in out.splitlines()[1].partition("png")[2]
    (entry,) = json.loads(et("predict", model, picture, "--json").out)
    assert entry["labels"]["left"] > 0.5 > entry["labels"]["right"]


def test_regression_from_training_to_prediction(et, tmp_path, picture):
    arguments = ("--dataset", "brightness", "--task", "regression", *SMALL, "--epochs", 8, "--out", tmp_path)
    out, err = et("train", *arguments)
    assert "1 values, 56 x 56" in err
    assert "% of the variance with epoch" in out
    assert out.splitlines()[1].split() == ["value", "mean", "absolute", "error", "R2"]
    model = tmp_path / "model.safetensors"
    card = Classifier.load(model).card
    train = halves(96, 0, values=True)
    assert card.target_mean == pytest.approx((train.labels.mean().item(),))

    found = json.loads(et("evaluate", model, "--json").out)
    assert found["test_error"] == pytest.approx(card.test_error, rel=1e-3)
    assert found["values"]["brightness"]["mean_absolute_error"] < 3  # of values from 100 to 120
    assert found["values"]["brightness"]["r2"] > 0.8
    assert "mean R2 0." in et("evaluate", model).out
    (entry,) = json.loads(et("predict", model, picture, "--json").out)
    assert entry["values"]["brightness"] == pytest.approx(110, abs=6)
    head, row = et("predict", model, picture).out.splitlines()
    assert head.split() == ["image", "brightness"]
    assert float(row.split()[-1]) == pytest.approx(entry["values"]["brightness"], rel=1e-3)


@pytest.mark.parametrize(
    ("dataset", "task", "message"),
    [
        ("halves", "classification", "needs a class number per image, but halves has the numbers"),
        ("brightness", "multilabel", "needs targets 0 and 1, but halves has other numbers"),
    ],
)
def test_targets_of_another_task(et, tmp_path, dataset, task, message):
    _, err = et("train", "--dataset", dataset, "--task", task, *SMALL, "--out", tmp_path, code=1)
    assert message in err


def test_an_unknown_task(et, tmp_path):
    _, err = et("train", "--dataset", "halves", "--task", "detection", *SMALL, "--out", tmp_path, code=2)
    assert err == "error: task must be classification or multilabel or regression, got 'detection'\n"


def test_commands_for_classes_refuse_other_models(tmp_path):
    config, images = Config(task="multilabel", network="resnet10"), halves(4, 0, values=False)
    card = Card.of(config, images)
    Classifier(card.build(), card).save(tmp_path / "model.safetensors")
    with pytest.raises(console.Failure, match=r"is for the task multilabel; this command needs .* classification"):
        models.load(str(tmp_path / "model.safetensors"), any_task=False)


def test_a_model_is_not_evaluated_on_targets_of_another_task(et, tmp_path):
    et("train", "--dataset", "halves", "--task", "multilabel", *SMALL, "--epochs", 1, "--out", tmp_path)
    _, err = et("evaluate", tmp_path / "model.safetensors", "--dataset", "brightness", code=1)
    assert "needs targets 0 and 1" in err


@pytest.mark.parametrize(
    ("task", "values", "header"), [("multilabel", False, "left,right"), ("regression", True, "sum")]
)
def test_a_table_of_numbers_is_trained_evaluated_and_shown(et, tmp_path, task, values, header):
    images = halves(60, 0, values)
    rows = [f"path,{header}"]
    for number, (image, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{number}.png")
        rows.append(",".join([f"{number}.png", *map(str, label)]))
    table = tmp_path / "numbers.csv"
    table.write_text("\n".join(rows))
    out = tmp_path / "run"
    wrong = et("train", table, *SMALL, "--out", tmp_path / "wrong", code=1)
    assert "choose the task multilabel or regression" in wrong.err
    result = json.loads(et("train", table, *SMALL, "--task", task, "--out", out, "--json").out)
    assert result["test_error"] < 50
    found = json.loads(et("evaluate", out / "model.safetensors", "--json").out)
    assert found["test_error"] == pytest.approx(result["test_error"], abs=1e-3)
    assert header.split(",")[0] in et("predict", out / "model.safetensors", tmp_path / "0.png").out
    listed = et("data", "show", table, "--out", tmp_path / "sheet.png").out.splitlines()
    assert listed[0].split() == ["mean", "of", "train", "validation", "test"]
    assert [line.split()[0] for line in listed[1:-2]] == header.split(",")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert min(sheet.size) > 100
