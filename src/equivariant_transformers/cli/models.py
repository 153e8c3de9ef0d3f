"""The models that commands take: files, and those that come with the library."""

from __future__ import annotations

from equivariant_transformers.cli import console
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.zoo import find

HELP = "A model file, or the name of a model that comes with the library."
TTA = "Number of transformations per image to average over (test-time augmentation); the model's own by default."


def load(model: str, tta: int | None = None) -> Classifier:
    """Return the model in a file or of a name, with its `tta` changed if given; mistakes are wrong usage."""
    with console.usage():
        classifier = find(model)
        if tta is not None:
            classifier.tta = tta
        return classifier
