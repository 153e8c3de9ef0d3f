"""Modules: pose predictors, layers, stacks of layers in front of any network, and augmentation."""

from equivariant_transformers.nn.alignment import alignment_loss
from equivariant_transformers.nn.augment import TTA, Augmentation, Augmented
from equivariant_transformers.nn.calibration import calibrate
from equivariant_transformers.nn.canonicalization import Canonicalization, Step
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer
from equivariant_transformers.nn.layers import ChartSampler, EquivariantTransformer, SpatialTransformer
from equivariant_transformers.nn.poses import SeveralPoses
from equivariant_transformers.nn.prediction import Prediction
from equivariant_transformers.nn.predictors import PREDICTORS

__all__ = [
    "PREDICTORS",
    "TTA",
    "Augmentation",
    "Augmented",
    "Canonicalization",
    "Canonicalized",
    "Canonicalizer",
    "ChartSampler",
    "EquivariantTransformer",
    "Prediction",
    "SeveralPoses",
    "SpatialTransformer",
    "Step",
    "alignment_loss",
    "calibrate",
]
