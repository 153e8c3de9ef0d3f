"""Modules with weights: pose predictors, layers, and stacks of them around any network."""

from equivariant_transformers.nn.layers import (
    Canonicalization,
    Canonicalized,
    Canonicalizer,
    EquivariantTransformer,
    SpatialTransformer,
)
from equivariant_transformers.nn.predictors import PREDICTORS

__all__ = [
    "PREDICTORS",
    "Canonicalization",
    "Canonicalized",
    "Canonicalizer",
    "EquivariantTransformer",
    "SpatialTransformer",
]
