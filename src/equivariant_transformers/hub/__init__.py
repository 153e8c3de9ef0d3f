"""Trained networks with their cards: saving, loading, export and publication."""

from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.hub.zoo import list_pretrained, pretrained

__all__ = ["Card", "Classifier", "list_pretrained", "pretrained"]
