"""Everything that decides what a run does, in one value that can be written down."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typing_extensions import Self

from equivariant_transformers.limits import MOST_ITERATIONS, MOST_LAYERS, MOST_TTA
from equivariant_transformers.nn.augment import Augmentation, parse_max_theta
from equivariant_transformers.text import quote
from equivariant_transformers.training.aliases import current_fields

Precision = Literal["float32", "bfloat16"]
Fill = Literal["border", "black"]
Keep = Literal["best", "last"]

_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", tuple: "a list of names"}
_MOST = {
    "examples": 10**9,
    "copies": 10_000,
    "iterations": MOST_ITERATIONS,
    "tta": MOST_TTA,
    "epochs": 10**6,
    "batch_size": 10**6,
}
_LONGEST_NAME = 4096


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run: data, network, optimisation, machine. The defaults are the paper's protocol on Projective MNIST.

    A field of another type, and a number that is not finite or beyond all reason (more than 32 layers or passes, 256
    looks, a million epochs or images a step), raise a ValueError.

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
    fill: Fill = "border"
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
        for name in self.__dataclass_fields__:
            self._check_type(name)
        for name, most in _MOST.items():
            value = getattr(self, name)
            self._check(name, value is None or value >= 1, "at least 1")
            self._check(name, value is None or value <= most, f"at most {most:,}")
        for name in ("seed", "data_seed"):  # with which the seeds made of them fit into 64 bits
            self._check(name, abs(getattr(self, name)) <= 2**40, "from -2**40 to 2**40")
        self._check("tta", self.tta == 1 or bool(self.augment), "1 without augment")
        Augmentation(parse_max_theta(self.augment))  # raises an error that names the item
        self._check("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        self._check("pose_noise", 0 <= self.pose_noise < 1, "in [0, 1)")
        self._check("learning_rate", self.learning_rate > 0, "positive")
        self._check("lr_decay", 0 < self.lr_decay <= 1, "in (0, 1]")
        self._check("ema_decay", 0 <= self.ema_decay < 1, "in [0, 1)")
        self._check("weight_decay", self.weight_decay >= 0, "at least 0")
        self._check("fill", self.fill in get_args(Fill), " or ".join(get_args(Fill)))
        self._check("keep", self.keep in get_args(Keep), " or ".join(get_args(Keep)))
        self._check("precision", self.precision in get_args(Precision), " or ".join(get_args(Precision)))

    def _check_type(self, name: str) -> None:
        kind, optional = kind_of(name)
        value = getattr(self, name)
        if optional and value is None:
            return
        allowed = {float: (float, int), tuple: (tuple, list)}.get(kind, (kind,))
        fits = isinstance(value, allowed) and (kind is bool or not isinstance(value, bool))
        if kind is tuple and fits:
            fits = _are_texts(value)
        if not fits:
            raise ValueError(f"{name} takes {_WANTED[kind]}, got {quote(value)}")
        if kind is float:
            self._check(name, abs(value) <= sys.float_info.max, "finite")
        elif kind is tuple:
            self._check(name, len(value) <= MOST_LAYERS, f"at most {MOST_LAYERS} names")
        if kind in (str, tuple):
            longest = max(map(len, value if kind is tuple else [value]), default=0)
            self._check(name, longest <= _LONGEST_NAME, f"shorter than {_LONGEST_NAME:,} characters")

    def _check(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{name} must be {allowed}, got {quote(getattr(self, name))}")

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
        if not isinstance(fields, dict):
            raise ValueError(f"a config is a table of fields, got {quote(fields)}")
        fields = current_fields(fields)
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(map(str, fields.keys() - known))
        if unknown:
            raise ValueError(f"unknown fields {quote(unknown)}; a config has {sorted(known)}")
        names = {field: value for field, value in fields.items() if isinstance(value, list) and _are_texts(value)}
        lists: dict[str, Any] = {field: tuple(value) for field, value in names.items()}
        return cls(**{**fields, **lists})


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


@cache
def kind_of(field: str) -> tuple[Any, bool]:
    """Return the plain type of a field of `Config`, and whether the field can also be None."""
    kind = get_type_hints(Config)[field]
    optional = NoneType in get_args(kind)
    if optional:
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    origin = get_origin(kind)
    return str if origin is Literal else origin or kind, optional
