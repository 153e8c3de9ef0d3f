"""Trained canonicalizers in files, for use in front of any network."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.hub.classifier import MISFITS, check_weights
from equivariant_transformers.limits import MOST_CHANNELS, MOST_LAYERS
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer
from equivariant_transformers.nn.layers import EquivariantTransformer, make_layer
from equivariant_transformers.nn.predictors import PREDICTORS
from equivariant_transformers.text import quote
from equivariant_transformers.training import checkpoint

KEY = "canonicalizer"
"""Entry of a file's description that holds the card."""
_LISTED = ("layers", "predictor")  # fields that are tuples, and lists in JSON


@dataclass(frozen=True, kw_only=True)
class CanonicalizerCard:
    """Description of a canonicalizer whose layers are given by name, without its weights.

    At most 32 layers, 1024 channels of images and 1024 features of a predictor. Other values raise a ValueError.
    """

    layers: tuple[str, ...]
    predictor: str | tuple[str, ...]
    """Name of the predictor of all layers, or one name per layer if they differ."""
    channels: int
    """Features of the predictors."""
    in_channels: int
    fill: float | None
    """Fill value outside the images; None for the mean of each image's border."""
    iterations: int = 1
    min_confidence: float | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    """Data and settings of the training, and measured errors, as values of JSON."""

    def __post_init__(self) -> None:
        for name in ("channels", "in_channels"):
            whole_number(name, getattr(self, name), most=MOST_CHANNELS)
        if not (1 <= len(self.layers) <= MOST_LAYERS and all(isinstance(name, str) for name in self.layers)):
            raise ValueError(f"layers must be 1 to {MOST_LAYERS} names, got {quote(self.layers)}")
        if not isinstance(self.predictor, str) and len(self.predictor) != len(self.layers):
            raise ValueError(f"predictor must be a name, or a name per layer, got {quote(self.predictor)}")
        if not isinstance(self.training, Mapping):
            raise ValueError(f"training must map names to values, got {quote(self.training)}")

    @classmethod
    def of(cls, canonicalizer: Canonicalizer, training: Mapping[str, Any] | None = None) -> Self:
        """Return the card of `canonicalizer`. A ValueError is raised for layers that no name describes.

        >>> CanonicalizerCard.of(Canonicalizer(["rotation"], in_channels=3)).predictor
        'posterior'
        """
        if not isinstance(canonicalizer, Canonicalizer):
            hint = {
                Canonicalized: "pass network.canonicalizer",
                EquivariantTransformer: "pass et.Canonicalizer([layer])",
            }
            what = f"a canonicalizer is needed, got a {type(canonicalizer).__name__}"
            raise TypeError("; ".join([what, *(word for kind, word in hint.items() if type(canonicalizer) is kind)]))
        names = {kind: name for name, kind in PREDICTORS.items()}
        layers: Any = list(canonicalizer.layers)
        predictors = [names.get(type(layer.predictor), "") for layer in layers]
        convolutions = [part for layer in layers for part in layer.predictor.modules() if isinstance(part, nn.Conv2d)]
        if "" in predictors or not convolutions:
            raise ValueError("a canonicalizer in a file needs layers, with predictors of the library")
        card = cls(
            layers=tuple(layer.chart.name for layer in layers),
            predictor=predictors[0] if len({*predictors}) == 1 else tuple(predictors),
            channels=convolutions[0].out_channels,
            in_channels=canonicalizer.in_channels,
            fill=canonicalizer.fill,
            iterations=canonicalizer.iterations,
            min_confidence=canonicalizer.min_confidence,
            training=training or {},
        )
        with torch.device("meta"):
            made: Any = card.build()
        for layer, copy in zip(layers, made.layers, strict=True):
            if (layer.chart, layer.sampled, layer.pose_ranges) != (copy.chart, copy.sampled, copy.pose_ranges):
                raise ValueError(f"the layer {layer.chart.name!r} differs from the layer of this name: give it by name")
        check_weights(made, canonicalizer.state_dict())
        return card

    def build(self) -> Canonicalizer:
        """Return the canonicalizer, with random weights."""
        predictors = (self.predictor,) * len(self.layers) if isinstance(self.predictor, str) else self.predictor
        return Canonicalizer(
            [
                make_layer(name, self.in_channels, predictor=predictor, channels=self.channels)
                for name, predictor in zip(self.layers, predictors, strict=True)
            ],
            self.in_channels,
            fill=self.fill,
            iterations=self.iterations,
            min_confidence=self.min_confidence,
        )

    def write(self, path: str | Path, weights: Mapping[str, Tensor]) -> None:
        """Write a file with the card and the weights of its canonicalizer."""
        checkpoint.write(Path(path), dict(weights), {KEY: self.to_dict()})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON. A TypeError is raised if `training` has other values."""
        fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return fields

    @classmethod
    def from_dict(cls, fields: Any) -> Self:
        """Return the card with these fields. A ValueError or TypeError is raised for wrong fields."""
        if not isinstance(fields, dict) or not isinstance(fields.get("layers"), list):
            raise ValueError(f"a card must be a mapping with a list of layers, got {quote(fields)}")
        listed = {name: tuple(value) for name, value in fields.items() if isinstance(value, list) and name in _LISTED}
        return cls(**{**fields, **listed})


def save_canonicalizer(
    canonicalizer: Canonicalizer, path: str | Path, training: Mapping[str, Any] | None = None
) -> None:
    """Write a canonicalizer into one safetensors file with a checksum, atomically.

    Args:
        canonicalizer: canonicalizer whose layers were given by name.
        path: path of the file.
        training: how it was trained, as values of JSON.
    """
    CanonicalizerCard.of(canonicalizer, training).write(path, canonicalizer.state_dict())


def load_canonicalizer(path: str | Path) -> Canonicalizer:
    """Load a file written by `save_canonicalizer`, ready for use on the CPU. Any other file raises a `CheckpointError`.

    `et.Canonicalized(backbone, load_canonicalizer(path))` puts it in front of a network.
    """
    return read_canonicalizer(path)[0]


def read_canonicalizer(path: str | Path) -> tuple[Canonicalizer, CanonicalizerCard]:
    """Return the canonicalizer in a file and its card."""
    tensors, description = checkpoint.read(Path(path), needs_checksum=True)
    if KEY not in description:
        kinds = {
            "card": "a classifier: Classifier.load(path).module.canonicalizer",
            "network": "a network: et.hub.load_network(path).canonicalizer",
        }
        kind = next((kind for key, kind in kinds.items() if key in description), "a training run")
        raise checkpoint.CheckpointError(f"{path} does not hold a canonicalizer; it holds {kind}")
    try:
        card = CanonicalizerCard.from_dict(description[KEY])
        with torch.device("meta"):
            check_weights(card.build(), tensors)
        with torch.random.fork_rng(devices=[]):
            canonicalizer = card.build()
        canonicalizer.load_state_dict(tensors)
    except MISFITS as error:
        reason = " ".join(str(error).split())
        raise checkpoint.CheckpointError(
            f"{path} is not a canonicalizer of this version of the library: {reason}"
        ) from error
    return canonicalizer.eval(), card
