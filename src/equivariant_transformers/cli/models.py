"""The models that commands take: files, and those that come with the library."""

from __future__ import annotations

from equivariant_transformers.cli import console
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.zoo import find
from equivariant_transformers.nn.augment import Looking

HELP = "A model file, or the name of a model that comes with the library."
LOOKS = "Average over so many views of each image; as in training if not given."


def load(model: str, looks: int | None = None) -> Classifier:
    """The model in a file or of a name, with as many `looks`; what is not known or cannot be is wrong usage."""
    with console.usage():
        classifier = find(model)
        if looks is not None and isinstance(classifier.module, Looking):
            classifier.module.looks = looks
        elif looks not in (None, 1):
            raise ValueError(f"looks go half as far as the random views of training, and {model} had none")
        return classifier
