"""Trained networks and canonicalizers with their cards: saving, loading, export and publication."""

from equivariant_transformers.hub.canonicalizers import CanonicalizerCard, load_canonicalizer, save_canonicalizer
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.hub.networks import NetworkCard, load_network, save_network
from equivariant_transformers.hub.zoo import list_pretrained, pretrained

__all__ = [
    "CanonicalizerCard",
    "Card",
    "Classifier",
    "NetworkCard",
    "list_pretrained",
    "load_canonicalizer",
    "load_network",
    "pretrained",
    "save_canonicalizer",
    "save_network",
]
