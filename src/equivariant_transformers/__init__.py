"""Equivariant Transformers: image layers whose output does not change when the input is transformed.

>>> import equivariant_transformers as et
>>> et.group("rotation").matrix(0.0).shape
torch.Size([3, 3])
"""

from equivariant_transformers.charts import CHARTS, Chart, chart
from equivariant_transformers.derive import derive
from equivariant_transformers.groups import GROUPS, RADIAL_LENS, Group, group
from equivariant_transformers.warp import Warp

__all__ = [
    "CHARTS",
    "GROUPS",
    "RADIAL_LENS",
    "Chart",
    "Group",
    "Warp",
    "chart",
    "derive",
    "group",
]
__version__ = "0.1.0"
