"""Entry points of `torch.hub`, one per pretrained network: `torch.hub.load(REPOSITORY, "projective_mnist")`.

`torch.hub.load(FOLDER, ..., source="local")` loads from a copy of the repository.
"""

import sys
from collections import abc as _abc
from pathlib import Path as _Path

sys.path.insert(0, str(_Path(__file__).parent / "src"))

import torch as _torch

import equivariant_transformers as _et
from equivariant_transformers.hub.canonicalizers import CanonicalizerCard as _CanonicalizerCard
from equivariant_transformers.hub.classifier import Classifier as _Classifier

dependencies = ["torch", "numpy", "safetensors"]


def canonicalizer(layers: _abc.Sequence[str], in_channels: int = 1, **options: object) -> _et.Canonicalizer:
    """Return a stack of layers with random weights, for the input of a network: see `et.Canonicalizer`."""
    return _et.Canonicalizer(layers, in_channels, **options)


def _entry(name: str) -> _abc.Callable[..., _torch.nn.Module]:
    def make(pretrained: bool = True) -> _torch.nn.Module:
        if pretrained:
            return _et.pretrained(name)
        card = _et.list_pretrained()[name]
        return card.build() if isinstance(card, _CanonicalizerCard) else _Classifier(card.build(), card)

    make.__doc__ = f"Return the network {name!r}, with the weights of the library or with random weights."
    return make


for _name in _et.list_pretrained():
    globals()[_name.replace("-", "_")] = _entry(_name)
