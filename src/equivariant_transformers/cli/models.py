"""The models that commands take: files, and those that come with the library."""

from __future__ import annotations

from equivariant_transformers.classifier import Classifier
from equivariant_transformers.cli import console
from equivariant_transformers.pretrained import find

HELP = "A model file, or the name of a model that comes with the library."


def load(model: str) -> Classifier:
    """The model in a file or of a name; a name that is not known is wrong usage."""
    with console.usage():
        return find(model)
