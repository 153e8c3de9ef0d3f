"""Equivariant Transformers: image layers whose output does not change when the input is transformed.

>>> import equivariant_transformers as et
>>> et.group("rotation").matrix(0.0).shape
torch.Size([3, 3])
"""

import importlib
from types import ModuleType

from equivariant_transformers.audit import assert_equivariant, invariance, self_consistency
from equivariant_transformers.charts import CHARTS, Chart, chart
from equivariant_transformers.derive import derive
from equivariant_transformers.groups import GROUPS, RADIAL_LENS, Group, group
from equivariant_transformers.layers import (
    Canonicalization,
    Canonicalized,
    Canonicalizer,
    EquivariantTransformer,
    SpatialTransformer,
)
from equivariant_transformers.legacy import load_2019
from equivariant_transformers.measurements import Invariance, SelfConsistency
from equivariant_transformers.pose import PREDICTORS
from equivariant_transformers.pretrained import list_pretrained, pretrained
from equivariant_transformers.warp import Warp

__all__ = [
    "CHARTS",
    "GROUPS",
    "PREDICTORS",
    "RADIAL_LENS",
    "Canonicalization",
    "Canonicalized",
    "Canonicalizer",
    "Chart",
    "EquivariantTransformer",
    "Group",
    "Invariance",
    "SelfConsistency",
    "SpatialTransformer",
    "Warp",
    "assert_equivariant",
    "chart",
    "derive",
    "group",
    "invariance",
    "list_pretrained",
    "load_2019",
    "pretrained",
    "self_consistency",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """The subpackage `data`, loaded when it is first asked for."""
    if name == "data":
        return importlib.import_module("equivariant_transformers.data")
    raise AttributeError(f"module 'equivariant_transformers' has no attribute {name!r}")
