"""Model files whose card has random wrong fields: they load and answer, or are refused with a reason."""

import copy

import pytest
import torch

from equivariant_transformers.data import ImageSet
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.training import Config, checkpoint
from equivariant_transformers.training.checkpoint import CheckpointError

VALUES = [
    None, True, False, 0, -1, 1, 2, 3, 24, 1024, 10**6, 10**9, 10**400, 0.0, 0.5, -1.0, 1e-300, 1e300, float("nan"),
    float("inf"), "", "x", "z2cnn", "capsule", "softmax", "direct", "log_polar", "rotation", "\x1b[31m", "x" * 10**5,
    [], [0], [0, 0], [24, 24], [1024, 1024], [10**6, 10**6], [1.0], [1.0] * 3, [0.0] * 3, [float("nan")] * 3, ["a"],
    ["a", "b"], ["x"] * 10**4, ["rotation"], ["rotation"] * 2, ["rotation"] * 10**3, ["rotation=1"], ["junk=1"], [None],
    [[]], {}, {"a": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    """The tensors and the card of a small network."""
    images = torch.zeros(2, 3, 24, 24, dtype=torch.uint8)
    data = ImageSet(
        images=images, labels=torch.arange(2), name="blank", classes=("a", "b"), mean=(9.0,) * 3, std=(5.0,) * 3
    )
    card = Card.of(Config(network="resnet10", layers=("rotation",), augment=("rotation=1",)), data)
    torch.manual_seed(0)
    return card.build().state_dict(), card.to_dict()


def test_cards(fuzz, model, tmp_path):
    tensors, fields = model
    path = tmp_path / "model.safetensors"

    def check(rng):
        card = copy.deepcopy(fields)
        for _ in range(rng.choice([1, 1, 2, 3])):
            table = card["config"] if rng.random() < 0.5 and isinstance(card.get("config"), dict) else card
            name = rng.choice([*(table or ["x"]), "nonsense"])
            if rng.random() < 0.1:
                table.pop(name, None)
            else:
                table[name] = rng.choice(VALUES)
        checkpoint.write(path, tensors, {"card": card})
        classifier = Classifier.load(path)
        shape = (1, classifier.card.in_channels, *classifier.card.size)
        if max(shape) <= 24:
            with torch.no_grad():
                assert classifier(torch.zeros(shape, dtype=torch.uint8)).isfinite().all()

    fuzz(check, cases=40, allowed=(CheckpointError,))


def test_tensors(fuzz, model, tmp_path):
    tensors, fields = model
    path = tmp_path / "model.safetensors"

    def check(rng):
        changed = dict(tensors)
        name = rng.choice(list(changed))
        value = changed.pop(name)
        if (what := rng.randrange(5)) == 0:
            changed["nonsense" * rng.randrange(1, 50)] = value
        elif what == 1:
            changed[name] = value.repeat(2) if value.ndim < 2 else value[:, :0]
        elif what == 2:
            changed[name] = value.flatten()[:0]
        elif what == 3:
            changed[name] = torch.zeros(())
        checkpoint.write(path, changed, {"card": fields})
        Classifier.load(path)

    fuzz(check, cases=15, allowed=(CheckpointError,))
