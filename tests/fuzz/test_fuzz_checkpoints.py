"""Checkpoints and model files that are damaged or wrong: each is refused by a CheckpointError, or reads as it was."""

import json
import math
import time

import pytest
import torch
from small import CONFIG, bars, job

from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.training import CHECKPOINT, Config, Stopped, checkpoint, is_finished, train
from equivariant_transformers.training.checkpoint import CheckpointError


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The bytes of the checkpoints of a finished and of an interrupted run."""
    folder = tmp_path_factory.mktemp("runs")
    train([job(CONFIG, folder / "finished")])
    with pytest.raises(Stopped):
        train([job(CONFIG, folder / "middle")], deadline=time.monotonic())
    return [(folder / name / CHECKPOINT).read_bytes() for name in ("finished", "middle")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The bytes of a model file."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    card = Card.of(Config(layers=("x_shear",)), bars(4, 0))
    Classifier(card.build(), card).save(path)
    return path.read_bytes()


def damage(random, content):
    """Return `content` after a flipped bit, a cut, a changed, repeated or lost stretch, or with more at its end."""
    header = 8 + int.from_bytes(content[:8], "little")
    place = random.randrange(random.choice((header, len(content))))
    length = random.choice((1, 8, 512, 4096))
    kind = random.randrange(6)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + bytes(len(content[place : place + length])) + content[place + length :]
    if kind == 2:
        return content[:place] + content[place + length :]
    if kind == 3:
        return content[:place] + content[place : place + length] + content[place:]
    if kind == 4:
        return content + random.randbytes(length)
    return content[:place] + bytes([content[place] ^ 1 << random.randrange(8)]) + content[place + 1 :]


def same(first, second):
    (tensors, description), (others, other) = first, second
    return (
        json.dumps(description) == json.dumps(other)
        and tensors.keys() == others.keys()
        and all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    )


def test_damaged_files_are_refused_or_read_as_they_were(fuzz, runs, model, tmp_path):
    path = tmp_path / "file"
    whole = {}
    for content in (*runs, model):
        path.write_bytes(content)
        tensors, description = checkpoint.read(path)
        whole[content] = {name: tensor.clone() for name, tensor in tensors.items()}, description

    def check(random):
        content = random.choice((*runs, model))
        path.write_bytes(damage(random, content))
        assert same(checkpoint.read(path), whole[content])

    fuzz(check, cases=1000, allowed=(CheckpointError,))


def test_damaged_models_are_refused_or_load_as_they_were(fuzz, model, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(model)
    whole = Classifier.load(path)

    def check(random):
        path.write_bytes(damage(random, model))
        loaded = Classifier.load(path)
        assert loaded.card == whole.card
        assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in whole.state_dict().items())

    fuzz(check, cases=200, allowed=(CheckpointError,))


def nonsense(random, depth=2):
    """Return a random JSON value."""
    plain = [
        *(None, True, False, 0, 1, -1, 2, 4, 99, 2**70, -(10**30), 0.0, 0.5, 1e300, math.nan, math.inf, -math.inf),
        *("", "best", "last", "x_shear", "rotation=1", "\0", "é", "none"),
    ]
    kind = random.randrange(6) if depth else 5
    if kind == 0:
        return [nonsense(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == 1:
        return {random.choice(("loss", "config", "seed", "")): nonsense(random, depth - 1) for _ in range(2)}
    return random.choice(plain)


def containers(value):
    """Yield every list and object inside a JSON value, itself included."""
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def confuse(random, description):
    """Change, remove or add an entry somewhere in `description`."""
    place = random.choice([container for container in containers(description) if container])
    name = random.choice([*place] if isinstance(place, dict) else range(len(place)))
    kind = random.randrange(4)
    if kind == 0:
        del place[name]
    elif kind == 1 and isinstance(place, dict):
        place[random.choice(("", "more", "epochs", "step"))] = nonsense(random)
    else:
        place[name] = nonsense(random)


def confuse_tensors(random, tensors):
    """Change the values, the type, the shape or the name of a tensor, or remove it."""
    name = random.choice(sorted(tensors))
    kind = random.randrange(6)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[random.choice(("more", "model/more", name + "x", "average/0.bias"))] = tensors[name].clone()
    elif kind == 2:
        tensors[name] = tensors[name].to(random.choice((torch.float16, torch.bfloat16, torch.int32, torch.bool)))
    elif kind == 3:
        tensors[name] = tensors[name].reshape(-1)[: random.randrange(4)]
    elif kind == 4:
        tensors[name] = tensors[name][None]
    else:
        tensors[name] = tensors[name] * math.nan


def test_wrong_states_are_refused_and_left_alone(fuzz, runs, tmp_path):
    """An accepted state leads to the same result, or to NaN that a run in the middle of an epoch can have."""
    path = tmp_path / CHECKPOINT
    whole = job(directory=None)
    (expected,) = train([whole])

    def check(random):
        path.write_bytes(random.choice(runs))
        tensors, description = checkpoint.read(path)
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        if random.random() < 0.5:
            confuse(random, description)
        else:
            confuse_tensors(random, tensors)
        checkpoint.write(path, tensors, description)
        before = path.read_bytes()
        finished = is_finished(path, job())
        resumed = job(directory=tmp_path)
        try:
            (result,) = train([resumed])
        except CheckpointError:
            assert not finished
            assert path.read_bytes() == before
            raise
        if result.failure and any(tensor.isnan().any() for tensor in tensors.values()):
            return
        assert (result.best_epoch, result.test_error) == (expected.best_epoch, expected.test_error)
        for name, tensor in whole.module.state_dict().items():
            assert torch.equal(resumed.module.state_dict()[name], tensor)

    fuzz(check, cases=100, allowed=(CheckpointError,))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of a card without classes
def test_wrong_models_are_refused(fuzz, model, tmp_path):
    path = tmp_path / "model.safetensors"

    def check(random):
        path.write_bytes(model)
        tensors, description = checkpoint.read(path)
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        if random.random() < 0.7:
            confuse(random, description)
        else:
            confuse_tensors(random, tensors)
        checkpoint.write(path, tensors, description)
        Classifier.load(path)

    fuzz(check, cases=100, allowed=(CheckpointError,))
