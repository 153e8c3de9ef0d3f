"""Equivariant Transformers: image layers whose output does not change when the input is transformed.

>>> import equivariant_transformers as et
>>> et.group("rotation").matrix(0.0).shape
torch.Size([3, 3])
"""

import importlib
from typing import TYPE_CHECKING, Any

from equivariant_transformers.audit import (
    FrameConsistency,
    Invariance,
    SelfConsistency,
    assert_equivariant,
    frame_consistency,
    invariance,
    self_consistency,
)
from equivariant_transformers.geometry import CHARTS, GROUPS, RADIAL_LENS, Chart, Group, Warp, chart, derive, group
from equivariant_transformers.nn import (
    PREDICTORS,
    Augmentation,
    Canonicalization,
    Canonicalized,
    Canonicalizer,
    EquivariantTransformer,
    SeveralPoses,
    SpatialTransformer,
    alignment_loss,
    calibrate,
)

if TYPE_CHECKING:
    from equivariant_transformers import data, hub, models, training
    from equivariant_transformers.discovery import Discovery, discover
    from equivariant_transformers.hub import list_pretrained, pretrained
    from equivariant_transformers.models.legacy import load_2019

__all__ = [
    "CHARTS",
    "GROUPS",
    "PREDICTORS",
    "RADIAL_LENS",
    "Augmentation",
    "Canonicalization",
    "Canonicalized",
    "Canonicalizer",
    "Chart",
    "Discovery",
    "EquivariantTransformer",
    "FrameConsistency",
    "Group",
    "Invariance",
    "SelfConsistency",
    "SeveralPoses",
    "SpatialTransformer",
    "Warp",
    "alignment_loss",
    "assert_equivariant",
    "calibrate",
    "chart",
    "data",
    "derive",
    "discover",
    "frame_consistency",
    "group",
    "hub",
    "invariance",
    "list_pretrained",
    "load_2019",
    "models",
    "pretrained",
    "self_consistency",
    "training",
]
__version__ = "0.1.0"

_PACKAGES = ("data", "hub", "models", "training")
_NAMES = {
    "Discovery": "discovery",
    "discover": "discovery",
    "list_pretrained": "hub",
    "load_2019": "models.legacy",
    "pretrained": "hub",
}


def __getattr__(name: str) -> Any:
    """Load a subpackage, or the subpackage of a name, when it is first used."""
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
