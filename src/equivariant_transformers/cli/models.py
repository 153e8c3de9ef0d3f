"""Models that commands take: model files and pretrained models."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from equivariant_transformers.cli import console
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.zoo import find
from equivariant_transformers.models import Network, check_name, import_network, is_own

HELP = "Model file, or name of a pretrained model."
TTA = "Number of predictions per image to average over (test-time augmentation); the model's own by default."
POSES = "Number of likely poses in which each image is read, for models with layers for photographs."


NetworkFlag = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="Function that made the model's network, if it is your own."),
]


def own_network(name: str | None) -> Network | None:
    """Import the network `module:function` that was given on the command line, also from the current folder.

    Return None for any other network.
    """
    if name is None or not is_own(name):
        return None
    with console.usage():
        check_name(name)
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            return import_network(name)
        except ImportError as error:
            raise ValueError(f"--network {name} cannot be imported: {error}") from error


def load(
    model: str, tta: int | None = None, *, poses: int = 1, network: str | None = None, any_task: bool = True
) -> Classifier:
    """Return a model by file or name, with its `tta` replaced if given. An error is a usage error.

    Unless `any_task`, the model must be for classification.
    """
    own = own_network(network)
    with console.usage():
        classifier = find(model, own)
        task = classifier.card.config.task
        if not any_task and task != "classification":
            raise ValueError(f"{model} is for the task {task}; this command needs a model for classification")
        if tta is not None:
            classifier.tta = tta
        classifier.poses = poses
        return classifier
