"""Networks behind a canonicalizer in files, with a card from which they are rebuilt."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.hub.classifier import MISFITS, check_weights
from equivariant_transformers.hub.layers import ChartCard, LayerCard
from equivariant_transformers.limits import MOST_CHANNELS, MOST_CLASSES, MOST_LAYERS, MOST_SIDE
from equivariant_transformers.models.backbones import NETWORKS, Network, OwnNetworkError, check_name, make_backbone
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer
from equivariant_transformers.nn.modes import evaluating
from equivariant_transformers.text import quote
from equivariant_transformers.training import checkpoint

KEY = "network"
"""Entry of a file's description that holds the card."""


@dataclass(frozen=True, kw_only=True)
class NetworkCard:
    """Description of a `Canonicalized` network without its weights.

    At most 32 layers, 1024 channels, 1024 x 1024 pixels and 100,000 outputs. Other values raise a ValueError.
    """

    backbone: str
    """Name of the backbone: one of `models.NETWORKS`, `timm:NAME`, `torchvision:NAME` or `module:function`."""
    options: Mapping[str, Any]
    """Further arguments of a backbone of `models.NETWORKS`, as values of JSON."""
    in_channels: int
    size: tuple[int, int]
    """(height, width) of the images for which the network was checked."""
    outputs: int
    layers: tuple[LayerCard, ...]
    chart: ChartCard | None
    """Coordinates of the input of the backbone; None for pixels."""
    fill: float | None = None
    iterations: int = 1
    min_confidence: float | None = None
    pose_noise: float = 0.0
    training: Mapping[str, Any] = field(default_factory=dict)
    """Data and settings of the training, and measured errors, as values of JSON."""

    def __post_init__(self) -> None:
        check_name(self.backbone)
        if len(self.size) != 2:
            raise ValueError(f"size must be the height and the width of an image, got {quote(self.size)}")
        limits = {"in_channels": MOST_CHANNELS, "outputs": MOST_CLASSES}
        for name, most in limits.items():
            whole_number(name, getattr(self, name), most=most)
        for side in self.size:
            whole_number("size", side, most=MOST_SIDE)
        if len(self.layers) > MOST_LAYERS:
            raise ValueError(f"a network has at most {MOST_LAYERS} layers, got {len(self.layers)}")
        for name in ("options", "training"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name} must map names to values, got {quote(getattr(self, name))}")
        if self.options and self.backbone not in NETWORKS:
            raise ValueError(f"only the backbones {', '.join(NETWORKS)} have options, got {quote(self.backbone)}")

    @classmethod
    def of(
        cls,
        model: Canonicalized,
        backbone: str,
        *,
        size: tuple[int, int],
        options: Mapping[str, Any] | None = None,
        network: Network | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the card of `model`, after a check that the card rebuilds it.

        The network that the card describes gets the weights of `model`. If its output for a random image differs in
        any bit, or if a layer has a chart or a predictor that is not in the library, a ValueError is raised.

        Args:
            model: network whose backbone takes the number of input channels and returns `(B, outputs)`.
            backbone: name of the backbone, see `NetworkCard.backbone`.
            size: (height, width) of the images.
            options: further arguments of a backbone of `models.NETWORKS`.
            network: function of a backbone `module:function`.
            training: how the network was trained, as values of JSON.

        >>> from equivariant_transformers.models import build
        >>> model = build("resnet10", layers=["rotation"], in_channels=3, size=(32, 32))
        >>> NetworkCard.of(model, "resnet10", size=(32, 32)).outputs
        10
        """
        canonicalizer, chart = model.canonicalizer, model.chart
        if not isinstance(canonicalizer, Canonicalizer):
            raise ValueError(f"a file holds a Canonicalizer, got {type(canonicalizer).__name__}")
        weight = next((part for part in model.parameters() if part.is_floating_point()), torch.zeros(()))
        probe = torch.rand(1, canonicalizer.in_channels, *size, generator=torch.Generator().manual_seed(0))
        probe = probe.to(weight)
        with evaluating(model):
            expected = model(probe)
        if not isinstance(expected, Tensor) or expected.ndim != 2:
            found = tuple(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
            raise ValueError(f"the network must return a tensor (B, outputs), got {found}")
        card = cls(
            backbone=backbone,
            options=dict(options or {}),
            in_channels=canonicalizer.in_channels,
            size=(size[0], size[1]),
            outputs=expected.shape[1],
            layers=tuple(LayerCard.of(layer) for layer in canonicalizer.layers),  # type: ignore[arg-type]
            chart=None if chart is None else ChartCard.of(chart.sampled),
            fill=canonicalizer.fill,
            iterations=canonicalizer.iterations,
            min_confidence=canonicalizer.min_confidence,
            pose_noise=canonicalizer.pose_noise,
            training=dict(training or {}),
        )
        card = cls.from_dict(card.to_dict())  # as it will be read
        advice = "check the name of the backbone, its options, and that its modules were not changed"
        try:
            copy = card.load(model.state_dict(), network).to(weight.device)
            with torch.no_grad():
                same = torch.equal(copy(probe), expected)
        except OwnNetworkError:
            raise
        except MISFITS as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{backbone} does not rebuild this network: {reason}; {advice}") from error
        if not same:
            raise ValueError(f"{backbone} rebuilds a network with other outputs for the same weights; {advice}")
        return card

    def build(self, network: Network | None = None) -> Canonicalized:
        """Return the network, with random weights. A backbone of the user is passed as the function `network`."""
        chart = None if self.chart is None else self.chart.build()
        channels = self.in_channels * (1 if chart is None else chart.sheets)
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()
        }
        backbone = make_backbone(self.backbone if network is None else network, channels, self.outputs, **options)
        canonicalizer = Canonicalizer(
            [layer.build(self.in_channels) for layer in self.layers],
            self.in_channels,
            fill=self.fill,
            iterations=self.iterations,
            min_confidence=self.min_confidence,
            pose_noise=self.pose_noise,
        )
        return Canonicalized(backbone, canonicalizer, chart)

    def load(self, tensors: Mapping[str, Tensor], network: Network | None = None) -> Canonicalized:
        """Return the network with the weights `tensors`, in their dtype, in evaluation mode."""
        if network is None:
            self._check(tensors)
        dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
        with torch.random.fork_rng(devices=[]):
            module = self.build(network).to(dtype)
        module.load_state_dict(tensors)
        return module.eval()

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise an error unless `tensors` are weights of the network, before the network is allocated."""
        try:
            with torch.device("meta"):
                module = self.build()
        except RuntimeError:
            if self.backbone in NETWORKS:
                raise
            return  # some networks of timm compute numbers while they are made
        check_weights(module, tensors)

    def write(self, path: str | Path, weights: Mapping[str, Tensor]) -> None:
        """Write a file with the card and the weights of its network, and a checksum of both."""
        checkpoint.write(Path(path), dict(weights), {KEY: self.to_dict()})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON. A TypeError is raised if options or `training` have other values."""
        fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return fields

    @classmethod
    def from_dict(cls, fields: Any) -> Self:
        """Return the card with these fields. One of `MISFITS` is raised for wrong fields."""
        if not isinstance(fields, dict):
            raise ValueError(f"a card must be a mapping from fields to values, got {quote(fields)}")
        chart = fields["chart"]
        made = {
            "size": tuple(fields["size"]),
            "layers": tuple(LayerCard.from_dict(layer) for layer in fields["layers"]),
            "chart": None if chart is None else ChartCard.from_dict(chart),
        }
        return cls(**{**fields, **made})


def save_network(model: Canonicalized, path: str | Path, backbone: str, **about: Any) -> NetworkCard:
    """Write a network into one safetensors file with a checksum, atomically, and return its card.

    `about` are the further arguments of `NetworkCard.of`: `size`, and where needed `options`, `network`, `training`.
    """
    card = NetworkCard.of(model, backbone, **about)
    card.write(path, model.state_dict())
    return card


def load_network(path: str | Path, *, network: Network | None = None) -> Canonicalized:
    """Load a file written by `save_network`, ready for use on the CPU. Any other file raises a `CheckpointError`.

    If its backbone is a function of the user, `module:function`, pass this function as `network`. It is never imported
    because a file names it.
    """
    return read_network(path, network)[0]


def read_network(path: str | Path, network: Network | None = None) -> tuple[Canonicalized, NetworkCard]:
    """Return the network in a file and its card."""
    tensors, description = checkpoint.read(Path(path), needs_checksum=True)
    if KEY not in description:
        raise checkpoint.CheckpointError(f"{path} was not written by save_network, but is another file of the library")
    try:
        card = NetworkCard.from_dict(description[KEY])
        return card.load(tensors, network), card
    except OwnNetworkError as error:
        raise checkpoint.CheckpointError(f"{path} cannot be loaded: {error}") from error
    except MISFITS as error:
        reason = " ".join(str(error).split())
        raise checkpoint.CheckpointError(f"{path} is not a network of this version of the library: {reason}") from error
