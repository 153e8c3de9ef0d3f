"""Settings of a run, shared by flags, YAML files, checkpoints and result files."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typing_extensions import Doc, Self

from equivariant_transformers.limits import MOST_ITERATIONS, MOST_LAYERS, MOST_SIDE, MOST_TTA
from equivariant_transformers.models.backbones import check_pretrained
from equivariant_transformers.nn.augment import Augmentation, parse_max_theta
from equivariant_transformers.text import quote
from equivariant_transformers.training.aliases import current_fields

TaskName = Literal["classification", "multilabel", "regression"]
Precision = Literal["float32", "bfloat16"]
Fill = Literal["border", "black"]
Keep = Literal["best", "last"]
ClassWeights = Literal["equal", "balanced"]

_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", tuple: "a list of names"}
_MOST = {
    "examples": 10**9,
    "copies": 10_000,
    "size": MOST_SIDE,
    "iterations": MOST_ITERATIONS,
    "tta": MOST_TTA,
    "epochs": 10**6,
    "patience": 10**6,
    "batch_size": 10**6,
}
_LONGEST_NAME = 4096


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run: data, network, optimization, device. The defaults are the paper's for Projective MNIST.

    A ValueError is raised for a field of the wrong type, and for a number that is not finite or out of bounds: more
    than 32 layers or iterations, 256 predictions per image, or a million epochs or images per step.

    >>> Config(layers=("x_shear",)).replace(seed=3).seed
    3
    """

    dataset: Annotated[
        str,
        Doc("Name of a data set of the library, or the path of a folder of images or of a CSV file."),
    ] = "projective-mnist"
    examples: Annotated[int | None, Doc("Training images to use; None for the data set's own number.")] = None
    copies: Annotated[int, Doc("Transformed copies of each training image, if the data set generates them.")] = 1
    size: Annotated[
        int | None,
        Doc("Side in pixels that the images of a folder are resized to; None to choose it from the images."),
    ] = None
    data_seed: Annotated[int, Doc("Random seed for generating and splitting the data set.")] = 0

    task: Annotated[
        TaskName,
        Doc("Task: classification, multilabel or regression; the last two need a row of numbers per image."),
    ] = "classification"
    network: Annotated[str, Doc("Classifier: a name, timm:NAME, torchvision:NAME, or your own module:function.")] = (
        "z2cnn"
    )
    pretrained: Annotated[
        bool,
        Doc("Start from the pretrained weights of timm or torchvision, which are downloaded unless they are cached."),
    ] = False
    layers: Annotated[tuple[str, ...], Doc("Charts of the transformer layers, in order.")] = ()
    predictor: Annotated[
        str,
        Doc(
            "Pose predictor: consistent, posterior (photographs), centre (cartesian alone), softmax, or direct (a "
            "Spatial Transformer)."
        ),
    ] = "consistent"
    iterations: Annotated[
        int,
        Doc("Number of times the layers are run on their own result, with the same weights."),
    ] = 1
    chart: Annotated[str | None, Doc("Coordinates of the classifier's input; None for the image itself.")] = None
    fill: Annotated[Fill, Doc("Fill value outside an image: the mean of its border, or black.")] = "border"
    dropout: Annotated[float, Doc("Dropout rate.")] = 0.3
    pose_noise: Annotated[
        float,
        Doc("Pose noise in training, as a share of the range of each chart; 0.015 helped without augmentation."),
    ] = 0.0
    augment: Annotated[
        tuple[str, ...],
        Doc("Random augmentation in training, as groups and ranges: rotation=3.14,dilation=0.2."),
    ] = ()
    alignment: Annotated[
        float,
        Doc("Weight of the label-free alignment loss, for upright training images; it needs layers and augment."),
    ] = 0.0
    tta: Annotated[
        int,
        Doc("Test-time augmentation: predictions per image to average over, with half the range of training."),
    ] = 1

    epochs: Annotated[int, Doc("Epochs of training.")] = 300
    batch_size: Annotated[int, Doc("Images per step, over all processes.")] = 128
    patience: Annotated[
        int | None,
        Doc("Epochs without a lower validation error after which training ends; None to train for all epochs."),
    ] = None
    learning_rate: Annotated[float, Doc("Learning rate of Adam with AMSGrad in the first epoch.")] = 2e-3
    warmup: Annotated[int, Doc("Epochs in which the learning rate rises linearly to its value.")] = 0
    lr_decay: Annotated[float, Doc("Factor of the learning rate after each epoch.")] = 0.99
    weight_decay: Annotated[float, Doc("L2 penalty on the weights.")] = 0.0
    ema_decay: Annotated[
        float,
        Doc("Decay per step of the exponential moving average of the weights that is evaluated; 0 for no average."),
    ] = 0.0
    class_weights: Annotated[
        ClassWeights,
        Doc("Weights of the classes in the loss: equal, or balanced by their numbers of training images."),
    ] = "equal"
    keep: Annotated[
        Keep,
        Doc("Weights to keep and test: those of the best epoch on validation data, or of the last epoch."),
    ] = "best"
    seed: Annotated[int, Doc("Random seed for weights, data order, dropout, augmentation and pose noise.")] = 0

    device: Annotated[str, Doc("A torch device, or auto: the GPU if there is one.")] = "auto"
    precision: Annotated[
        Precision,
        Doc("bfloat16 runs convolutions in half precision; the geometry stays in float32."),
    ] = "float32"
    compile: Annotated[bool, Doc("Compile the network: about a minute at the start, faster steps afterwards.")] = False

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            self._check_type(name)
        for name, most in _MOST.items():
            value = getattr(self, name)
            self._check(name, value is None or value >= 1, "at least 1")
            self._check(name, value is None or value <= most, f"at most {most:,}")
        for name in ("seed", "data_seed"):  # seeds derived from these must fit into 64 bits
            self._check(name, abs(getattr(self, name)) <= 2**40, "from -2**40 to 2**40")
        check_pretrained(self.network, self.pretrained)
        self._check("tta", self.tta == 1 or bool(self.augment), "1 without augment")
        Augmentation(parse_max_theta(self.augment))  # raises an error that names the item
        self._check("alignment", self.alignment >= 0, "at least 0")
        needed = [name for name in ("layers", "augment") if not getattr(self, name)]
        self._check("alignment", not (self.alignment and needed), f"0 without {' and '.join(needed)}")
        self._check("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        self._check("pose_noise", 0 <= self.pose_noise < 1, "in [0, 1)")
        self._check("learning_rate", self.learning_rate > 0, "positive")
        self._check("warmup", 0 <= self.warmup <= _MOST["epochs"], f"from 0 to {_MOST['epochs']:,}")
        self._check("lr_decay", 0 < self.lr_decay <= 1, "in (0, 1]")
        self._check("ema_decay", 0 <= self.ema_decay < 1, "in [0, 1)")
        self._check("weight_decay", self.weight_decay >= 0, "at least 0")
        self._check("task", self.task in get_args(TaskName), " or ".join(get_args(TaskName)))
        self._check("fill", self.fill in get_args(Fill), " or ".join(get_args(Fill)))
        self._check("keep", self.keep in get_args(Keep), " or ".join(get_args(Keep)))
        self._check("class_weights", self.class_weights in get_args(ClassWeights), " or ".join(get_args(ClassWeights)))
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
            self._check(name, longest <= _LONGEST_NAME, f"at most {_LONGEST_NAME:,} characters")

    def _check(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{name} must be {allowed}, got {quote(getattr(self, name))}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @property
    def diverged_loss(self) -> float:
        """Mean loss from which on a run counts as diverged: far above chance for the classes and for each layer."""
        return 50.0 * (1 + self.alignment * len(self.layers) * self.iterations)

    def learning_rate_in(self, epoch: int) -> float:
        """Return the learning rate in an epoch, counted from 0.

        >>> Config(learning_rate=1.0, lr_decay=0.5).learning_rate_in(2)
        0.25
        >>> [Config(learning_rate=1.0, lr_decay=1.0, warmup=3).learning_rate_in(epoch) for epoch in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
        """
        rate = self.learning_rate * self.lr_decay**epoch
        return rate * (epoch + 1) / (self.warmup + 1) if epoch < self.warmup else rate

    def out_of_patience(self, validation_errors: Sequence[float]) -> bool:
        """Return whether training ends after epochs with these validation errors.

        >>> Config(patience=2).out_of_patience([9.0, 5.0, 5.0, 6.0])
        True
        """
        if self.patience is None or not validation_errors:
            return False
        return len(validation_errors) - 1 - validation_errors.index(min(validation_errors)) >= self.patience

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON and YAML."""
        return {**dataclasses.asdict(self), "layers": list(self.layers), "augment": list(self.augment)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Return the config with these `fields`. Other fields have their defaults."""
        if not isinstance(fields, dict):
            raise ValueError(f"a config must be a mapping from fields to values, got {quote(fields)}")
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
def help_of(field: str) -> str:
    """Return the description of a field of `Config`, as shown by flags and the documentation.

    >>> help_of("epochs")
    'Epochs of training.'
    """
    (text,) = (
        note for note in get_type_hints(Config, include_extras=True)[field].__metadata__ if isinstance(note, Doc)
    )
    return text.documentation


@cache
def kind_of(field: str) -> tuple[Any, bool]:
    """Return the plain type of a field of `Config`, and whether the field can also be None."""
    kind = get_type_hints(Config)[field]
    optional = NoneType in get_args(kind)
    if optional:
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    origin = get_origin(kind)
    return str if origin is Literal else origin or kind, optional
