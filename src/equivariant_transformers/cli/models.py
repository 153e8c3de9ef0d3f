"""Models that commands take: model files and pretrained models."""

from __future__ import annotations

from equivariant_transformers.cli import console
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.zoo import find

HELP = "Model file, or name of a pretrained model."
TTA = "Number of predictions per image to average over (test-time augmentation); the model's own by default."


def load(model: str, tta: int | None = None) -> Classifier:
    """Return a model by file or name, with its `tta` replaced if given. An error is a usage error."""
    with console.usage():
        classifier = find(model)
        if tta is not None:
            classifier.tta = tta
        return classifier
