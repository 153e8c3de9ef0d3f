"""Trained networks with their cards: save, load, export and publish them."""

from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.hub.zoo import list_pretrained, pretrained

__all__ = ["Card", "Classifier", "list_pretrained", "pretrained"]
