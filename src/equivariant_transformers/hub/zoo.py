"""Trained networks and canonicalizers that are part of the library."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equivariant_transformers.geometry.groups import lookup

if TYPE_CHECKING:  # imported on demand: these import data sets and the trainer
    from equivariant_transformers.hub.canonicalizers import CanonicalizerCard
    from equivariant_transformers.hub.classifier import Card, Classifier
    from equivariant_transformers.hub.networks import NetworkCard
    from equivariant_transformers.models import Network
    from equivariant_transformers.nn.canonicalizer import Canonicalizer

LICENCE = "MIT"
FOLDER = resources.files(__package__).joinpath("weights")


def pretrained(name: str) -> Classifier | Canonicalizer:
    """Return the trained network or canonicalizer `name`, ready for use on the CPU; `list_pretrained` lists them."""
    from equivariant_transformers.hub.canonicalizers import CanonicalizerCard, load_canonicalizer
    from equivariant_transformers.hub.classifier import Classifier

    card = lookup(list_pretrained(), name, "pretrained model")
    with resources.as_file(FOLDER.joinpath(f"{name}.safetensors")) as path:
        return load_canonicalizer(path) if isinstance(card, CanonicalizerCard) else Classifier.load(path)


def list_pretrained() -> dict[str, Card | CanonicalizerCard]:
    """Return the cards of all pretrained networks and canonicalizers by name: data, settings, measured errors."""
    from equivariant_transformers.hub.canonicalizers import KEY, CanonicalizerCard
    from equivariant_transformers.hub.classifier import Card

    names = sorted(file.name.removesuffix(".json") for file in FOLDER.iterdir() if file.name.endswith(".json"))
    cards: dict[str, Card | CanonicalizerCard] = {}
    for name in names:
        fields = json.loads(FOLDER.joinpath(f"{name}.json").read_text(encoding="utf-8"))
        del fields["licence"]
        cards[name] = CanonicalizerCard.from_dict(fields[KEY]) if KEY in fields else Card.from_dict(fields)
    return cards


def find(model: str | Path, network: Network | None = None) -> Classifier:
    """Return the network in the file `model`, or the pretrained network of that name.

    The file of a network of the user needs its function `network`, see `Classifier.load`.
    """
    from equivariant_transformers.hub.classifier import Classifier

    path = Path(model)
    if path.is_dir() and str(model) not in list_pretrained():
        raise ValueError(f"{model} is a folder; give the model file in it, such as {path / 'model.safetensors'}")
    is_name = path.name == str(model) and not path.suffix and not path.is_file()
    if not is_name:
        return Classifier.load(path, network=network)
    found = pretrained(str(model))
    if not isinstance(found, Classifier):
        raise ValueError(f"{model} is a canonicalizer without a classifier: load it in Python with et.pretrained")
    return found


def find_canonicalizer(model: str | Path) -> tuple[Canonicalizer, CanonicalizerCard] | None:
    """Return the canonicalizer in the file `model`, or the pretrained one of that name, with its card.

    Return None for any other file or name.
    """
    from equivariant_transformers.hub.canonicalizers import KEY, CanonicalizerCard, read_canonicalizer
    from equivariant_transformers.training import checkpoint

    path = Path(model)
    if path.is_file():
        return read_canonicalizer(path) if KEY in checkpoint.read(path)[1] else None
    card = list_pretrained().get(str(model))
    if not isinstance(card, CanonicalizerCard):
        return None
    with resources.as_file(FOLDER.joinpath(f"{model}.safetensors")) as file:
        return read_canonicalizer(file)


def describe(card: Card | CanonicalizerCard | NetworkCard) -> str:
    """Return a card and its licence as readable JSON."""
    from equivariant_transformers.hub import canonicalizers, networks

    fields = card.to_dict()
    if isinstance(card, canonicalizers.CanonicalizerCard):
        fields = {canonicalizers.KEY: fields}
    elif isinstance(card, networks.NetworkCard):
        fields = {networks.KEY: fields}
    return json.dumps({"licence": LICENCE, **fields}, indent=1) + "\n"


def install(file: str | Path, name: str, **measured: Any) -> Card:
    """Add the network in `file` to the pretrained networks and return its card.

    Fields of the card that were unknown when the file was written can be passed: `test_error=3.61`.
    """
    from equivariant_transformers.hub.classifier import Classifier

    classifier = Classifier.load(file)
    card = classifier.card = dataclasses.replace(classifier.card, **measured)
    for field in ("validation_error", "test_error"):
        if getattr(card, field) is None:
            raise ValueError(f"the card of {file} has no {field}: measure it and pass it, as in {field}=3.61")
    folder = Path(str(FOLDER))
    classifier.save(folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(describe(card), encoding="utf-8")
    return card


def install_canonicalizer(file: str | Path, name: str, **measured: Any) -> CanonicalizerCard:
    """Add the canonicalizer in `file` to the pretrained ones and return its card, with `measured` in its `training`."""
    from equivariant_transformers.hub.canonicalizers import read_canonicalizer

    canonicalizer, card = read_canonicalizer(file)
    card = dataclasses.replace(card, training={**card.training, **measured})
    folder = Path(str(FOLDER))
    card.write(folder / f"{name}.safetensors", canonicalizer.state_dict())
    (folder / f"{name}.json").write_text(describe(card), encoding="utf-8")
    return card
