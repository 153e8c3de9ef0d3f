"""Descriptions of charts and layers as values of JSON, from which they are rebuilt."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import nn
from typing_extensions import Self

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.geometry.atlas import CHARTS
from equivariant_transformers.geometry.charts import Chart, Range
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.limits import MOST_CHANNELS, MOST_SIDE
from equivariant_transformers.nn.layers import EquivariantTransformer, Layer, SpatialTransformer
from equivariant_transformers.nn.predictors import PREDICTORS, DirectPredictor, SoftmaxPredictor
from equivariant_transformers.text import quote


@dataclass(frozen=True, kw_only=True)
class ChartCard:
    """Description of a chart of the library, perhaps with other ranges, origin, order or size."""

    name: str
    ranges: tuple[Range, Range]
    size: tuple[int, int]
    origin: tuple[float, float] | None
    order: int

    def __post_init__(self) -> None:
        lookup(CHARTS, self.name, "chart")
        whole_number("order", self.order, most=2)
        if len(self.size) != 2:
            raise ValueError(f"the size of a chart must be (height, width), got {quote(self.size)}")
        for samples in self.size:
            whole_number("the size of a chart", samples, most=MOST_SIDE)

    @classmethod
    def of(cls, chart: Chart) -> Self:
        """Return the card of `chart`. A ValueError is raised for charts that are not in the library."""
        known = CHARTS.get(chart.name)
        changes: dict[str, Any] = {
            "ranges": chart.ranges,
            "size": chart.size,
            "origin": chart.origin,
            "order": chart.order,
        }
        if known is None or known.replace(**changes) != chart:
            raise ValueError(
                f"a file cannot hold the chart {chart.name!r}: only charts of the library (et.CHARTS), perhaps with "
                "other ranges, origin, order or size, are rebuilt from their name. Save the state_dict of the network "
                "and the code that makes the chart instead"
            )
        return cls(name=chart.name, **changes)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Return the card with these fields, whose tuples are lists in JSON."""
        low_high = tuple((float(low), float(high)) for low, high in fields["ranges"])
        origin = fields["origin"]
        origin = None if origin is None else tuple(float(value) for value in origin)
        return cls(**{**fields, "ranges": low_high, "size": tuple(fields["size"]), "origin": origin})

    def build(self) -> Chart:
        """Return the chart."""
        return CHARTS[self.name].replace(ranges=self.ranges, size=self.size, origin=self.origin, order=self.order)


@dataclass(frozen=True, kw_only=True)
class LayerCard:
    """Description of a layer with a chart and a predictor of the library, without its weights."""

    chart: ChartCard
    predictor: str
    """Name in `PREDICTORS`. The layer of a `direct` predictor is a `SpatialTransformer`."""
    channels: int
    """Features of the predictor."""
    strides: tuple[int, int] | None = None
    """Strides of the convolutions of the paper's predictors; None for other predictors."""
    pose_ranges: tuple[Range, ...] | None = None
    """Limits of the pose, one pair per parameter."""

    def __post_init__(self) -> None:
        lookup(PREDICTORS, self.predictor, "predictor")
        whole_number("channels", self.channels, most=MOST_CHANNELS)
        if (self.strides is None) == self._has_strides:
            raise ValueError(f"the strides {quote(self.strides)} do not fit the predictor {self.predictor}")

    @property
    def _has_strides(self) -> bool:
        return PREDICTORS[self.predictor] in (SoftmaxPredictor, DirectPredictor)

    @classmethod
    def of(cls, layer: Layer) -> Self:
        """Return the card of `layer`. A ValueError is raised if its chart or predictor is not of the library."""
        names = {kind: name for name, kind in PREDICTORS.items()}
        predictor = names.get(type(layer.predictor))  # type: ignore[arg-type]
        if predictor is None:
            raise ValueError(
                f"a file cannot hold the predictor {type(layer.predictor).__name__} of the layer "
                f"{layer.chart.name!r}: only {', '.join(PREDICTORS)} are rebuilt from their name"
            )
        convolutions = [part for part in layer.predictor.modules() if isinstance(part, nn.Conv2d)]
        strides = None
        if PREDICTORS[predictor] in (SoftmaxPredictor, DirectPredictor):
            strides = (convolutions[0].stride[0], convolutions[1].stride[0])
        return cls(
            chart=ChartCard.of(layer.chart),
            predictor=predictor,
            channels=convolutions[0].out_channels,
            strides=strides,
            pose_ranges=layer.pose_ranges,
        )

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Return the card with these fields, whose tuples are lists in JSON."""
        strides, limits = fields["strides"], fields["pose_ranges"]
        return cls(
            **{
                **fields,
                "chart": ChartCard.from_dict(fields["chart"]),
                "strides": None
                if strides is None
                else tuple(whole_number("strides", step, most=8) for step in strides),
                "pose_ranges": None if limits is None else tuple((float(low), float(high)) for low, high in limits),
            }
        )

    def build(self, in_channels: int) -> Layer:
        """Return the layer, with random weights."""
        chart, kind = self.chart.build(), PREDICTORS[self.predictor]
        options: dict[str, Any] = {"channels": self.channels}
        if self.strides is not None:
            options["strides"] = self.strides
        predictor = kind(chart, in_channels, **options)
        layer = SpatialTransformer if kind is DirectPredictor else EquivariantTransformer
        return layer(chart, in_channels, predictor=predictor, pose_range=self.pose_ranges)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON."""
        return dataclasses.asdict(self)
