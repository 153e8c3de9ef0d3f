"""Everything that decides what a run does, in one value that can be written down."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from typing_extensions import Self

from equivariant_transformers.training.aliases import current_fields

Precision = Literal["float32", "bfloat16"]
Background = Literal["border", "black"]
Keep = Literal["best", "last"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run: data, network, optimisation, machine. The defaults are the paper's protocol on Projective MNIST.

    >>> Config(layers=("x_shear",)).replace(seed=3).seed
    3
    """

    dataset: str = "projective-mnist"
    """Name of a data set of the library, or the path of a folder of images."""
    examples: int | None = None
    """Training images to use; None for the data set's own number."""
    copies: int = 1
    """Versions of each training image, where the data set makes several."""
    data_seed: int = 0
    """Of what is drawn at random when the data set is made or split."""

    network: str = "z2cnn"
    """Name of the classifier."""
    layers: tuple[str, ...] = ()
    """Charts of the transformer layers, first one first."""
    predictor: str = "consistent"
    """How the layers read a pose: consistent, softmax, or direct (a Spatial Transformer)."""
    iterations: int = 1
    """How often the layers are run, with the same weights, on their own result."""
    chart: str | None = None
    """Coordinates in which the classifier looks at the image; None for the image itself."""
    fill: Background = "border"
    """What lies outside an image: the mean of its border, or black."""
    dropout: float = 0.3
    """The share of features that training leaves out."""
    pose_noise: float = 0.0
    """Noise on the poses in training, as a share of the range of each chart; without views 0.015 helped."""
    augment: tuple[str, ...] = ()
    """Groups that move the training images at random, and how far: rotation=3.14,dilation=0.2."""

    tta: int = 1
    """In evaluation, over how many views of an image, half as far as those of training, the answers are averaged."""

    epochs: int = 300
    """Passes through the training images."""
    batch_size: int = 128
    """Images a step, over all processes."""
    learning_rate: float = 2e-3
    """In the first epoch, of Adam with AMSGrad."""
    lr_decay: float = 0.99
    """What the learning rate is multiplied by after each epoch."""
    weight_decay: float = 0.0
    """How strongly weights are drawn to zero, as an L2 penalty."""
    ema_decay: float = 0.0
    """Evaluate a running average of the weights that keeps this share of itself at each step; 0 for the weights."""
    keep: Keep = "best"
    """Which epoch's weights are kept and tested: the best on validation data, or the last."""
    seed: int = 0
    """Of the weights, the order of the images, dropout, views and jitter."""

    device: str = "auto"
    """A torch device, or auto: the GPU if there is one."""
    precision: Precision = "float32"
    """bfloat16 runs convolutions in half precision; the geometry stays in float32."""
    compile: bool = False
    """Compile the network: a minute at the start, faster steps afterwards."""

    def __post_init__(self) -> None:
        for name in ("copies", "iterations", "tta", "epochs", "batch_size"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("seed", "data_seed"):  # with which the seeds made of them fit into 64 bits
            self._check(name, abs(getattr(self, name)) <= 2**40, "from -2**40 to 2**40")
        self._check("examples", self.examples is None or self.examples >= 1, "at least 1")
        self._check("tta", self.tta == 1 or bool(self.augment), "1 without views")
        self._check("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        self._check("pose_noise", 0 <= self.pose_noise < 1, "in [0, 1)")
        self._check("learning_rate", 0 < self.learning_rate < float("inf"), "positive")
        self._check("lr_decay", 0 < self.lr_decay <= 1, "in (0, 1]")
        self._check("ema_decay", 0 <= self.ema_decay < 1, "in [0, 1)")
        self._check("weight_decay", self.weight_decay >= 0, "at least 0")
        self._check("fill", self.fill in get_args(Background), " or ".join(get_args(Background)))
        self._check("keep", self.keep in get_args(Keep), " or ".join(get_args(Keep)))
        self._check("precision", self.precision in get_args(Precision), " or ".join(get_args(Precision)))

    def _check(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{name} must be {allowed}, got {getattr(self, name)!r}")

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def learning_rate_in(self, epoch: int) -> float:
        """Return the learning rate in an epoch, counted from 0.

        >>> Config(learning_rate=1.0, lr_decay=0.5).learning_rate_in(2)
        0.25
        """
        return self.learning_rate * self.lr_decay**epoch

    def to_dict(self) -> dict[str, Any]:
        """The fields, as JSON and YAML have them."""
        return {**dataclasses.asdict(self), "layers": list(self.layers), "augment": list(self.augment)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The config with these `fields`; the others keep their defaults."""
        fields = current_fields(fields)
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - known)
        if unknown:
            raise ValueError(f"unknown fields {unknown}; a config has {sorted(known)}")
        lists = {name: tuple(fields.get(name, ())) for name in ("layers", "augment")}
        return cls(**{**fields, **lists})
