"""Training and evaluation work for any number of images, on a CPU and on a GPU."""

import copy
import dataclasses
import json

import pytest
import torch
from PIL import Image
from small import CONFIG, bars, network

from equivariant_transformers.cli import main
from equivariant_transformers.data import Loader, Splits
from equivariant_transformers.models import NETWORKS
from equivariant_transformers.training import Config, train
from equivariant_transformers.training.cuda_graph import rehearse
from equivariant_transformers.training.job import make_job
from equivariant_transformers.training.optimization import Evaluation, Optimization

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def loader(count, batch_size=16):
    return Loader(bars(count, 0), batch_size=min(batch_size, count))


@pytest.mark.parametrize("count", [1, 16, 33, 48])
def test_a_rehearsal_stays_inside_the_epoch_and_leaves_no_trace(count):
    run = Optimization(network(0), loader(count), CONFIG.replace(ema_decay=0.9))
    before = copy.deepcopy(run.state())
    rehearse(run._work, run._restore)
    after = run.state()
    assert after.keys() == before.keys()
    for name in before.keys() - {"random/cpu"}:
        assert torch.equal(before[name], after[name]), name
    assert run.position == 0


@pytest.mark.parametrize("count", [1, 16, 33, 48])
def test_a_rehearsed_evaluation_starts_from_nothing(count):
    evaluation = Evaluation(network(0), loader(count), CONFIG, capture=False)
    expected = evaluation.error()
    evaluation._rewind()
    rehearse(evaluation._add, evaluation._rewind)
    assert (evaluation.position, evaluation.errors) == (0, 0)
    assert evaluation.error() == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_trains_on_one_image(name, device):
    config = Config(network=name, layers=("rotation",), epochs=2, device=device)
    part = enlarged(bars(1, 0)).to(device)
    (result,) = train([make_job(config, Splits(part, part, part))])
    assert result.failure is None
    assert result.test_error in (0, 100)


def test_balanced_classes_weigh_the_same():
    labels = torch.tensor([0] * 6 + [1] * 2 + [3])
    part = dataclasses.replace(bars(9, 0), labels=labels)
    logits = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    config = Config(network="resnet10", class_weights="balanced")
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    expected = torch.stack([each[labels == label].mean() for label in (0, 1, 3)]).mean()
    torch.testing.assert_close(make_job(config, Splits(part, part, part)).loss(logits, labels), expected)
    with pytest.raises(ValueError, match="class_weights must be equal for the network capsule"):
        make_job(config.replace(network="capsule"), Splits(enlarged(part), enlarged(part), enlarged(part)))


def enlarged(part):
    """Return `part` at 64 x 64 pixels, which every network takes."""
    return dataclasses.replace(part, images=part.images.repeat_interleave(8, 2).repeat_interleave(8, 3))


def folder_of(count, path):
    """Write `count` pictures of three classes: noise of three brightnesses."""
    generator = torch.Generator().manual_seed(count)
    for index in range(count):
        pixels = torch.randint(60 * (index % 3), 60 * (index % 3) + 100, (24, 32, 3), generator=generator)
        file = path / "abc"[index % 3] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(file)
    return path


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (3, ()),
        (6, ()),
        *(pytest.param(n, o, marks=pytest.mark.cuda) for n in (6, 60, 600) for o in ((), ("--compile",))),
        pytest.param(60, ("--memory", "0.0001"), marks=pytest.mark.cuda),  # streamed from disk
    ],
)
@pytest.mark.filterwarnings("ignore:no training image has the class:UserWarning")  # one of three images is trained on
def test_a_folder_of_any_size_trains_and_evaluates(count, options, tmp_path, capsys):
    folder = folder_of(count, tmp_path / "pictures")
    out = tmp_path / "run"
    arguments = ["train", str(folder), "--layers", "rotation", "--epochs", "2", "--out", str(out), "--json", *options]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 <= result["test_error"] <= 100
    assert main(["evaluate", str(out / "model.safetensors"), "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["test_error"] == pytest.approx(result["test_error"])
