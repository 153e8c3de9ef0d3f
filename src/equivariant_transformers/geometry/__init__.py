"""Groups, charts and warps of the plane. This package is independent of any network."""

from equivariant_transformers.geometry.atlas import CHARTS, chart
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.derivation.algorithm import derive
from equivariant_transformers.geometry.groups import GROUPS, RADIAL_LENS, Group, group
from equivariant_transformers.geometry.warp import Warp

__all__ = ["CHARTS", "GROUPS", "RADIAL_LENS", "Chart", "Group", "Warp", "chart", "derive", "group"]
