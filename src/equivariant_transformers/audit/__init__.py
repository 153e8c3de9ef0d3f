"""Measurements of equivariance and invariance for any layer, stack or model."""

from equivariant_transformers.audit.frames import FrameConsistency, frame_consistency
from equivariant_transformers.audit.measure import assert_equivariant, invariance, self_consistency
from equivariant_transformers.audit.results import Invariance, SelfConsistency

__all__ = [
    "FrameConsistency",
    "Invariance",
    "SelfConsistency",
    "assert_equivariant",
    "frame_consistency",
    "invariance",
    "self_consistency",
]
