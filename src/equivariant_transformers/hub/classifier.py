"""Trained network with everything that is needed to use it, in one file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Self

from equivariant_transformers.data.imageset import ImageSet, check_normalisation, scale_and_shift
from equivariant_transformers.limits import MOST_CHANNELS, MOST_CLASSES, MOST_SIDE
from equivariant_transformers.models import NETWORKS, Network
from equivariant_transformers.models.backbones import OwnNetworkError
from equivariant_transformers.nn.augment import TTA, Augmentation, check_tta, parse_max_theta
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.nn.poses import SeveralPoses, check_poses
from equivariant_transformers.text import quote
from equivariant_transformers.training import checkpoint
from equivariant_transformers.training.aliases import current_fields, current_weights
from equivariant_transformers.training.config import Config
from equivariant_transformers.training.job import build_network
from equivariant_transformers.training.tasks import TASKS, Task, target_statistics

if TYPE_CHECKING:
    from PIL.Image import Image

MISFITS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors for a card whose fields have wrong types, or do not fit each other or the weights."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Description of a trained network, without its weights. Errors are in per cent, as in `training.Result`.

    Images have at most 1024 channels and 1024 x 1024 pixels, and there are at most 100,000 classes. Other values, and a
    mean or a standard deviation that cannot normalise an image, raise a ValueError.
    """

    config: Config
    in_channels: int
    size: tuple[int, int]
    """(height, width) of the images."""
    classes: tuple[str, ...]
    """Names of the classes, labels or values."""
    mean: tuple[float, ...]
    """Mean of each channel, on the scale of 0 to 255."""
    std: tuple[float, ...]
    fill: float | None
    """Fill value outside the normalised images; None for the mean of each image's border."""
    data: str
    """Name of the data set."""
    origin: str
    """Source of the images."""
    labels: str | None = None
    """Hash of the labels of all images at the time of training; None if unknown."""
    validation_error: float | None = None
    test_error: float | None = None
    target_mean: tuple[float, ...] = ()
    """Mean of each value on the training images, for regression."""
    target_std: tuple[float, ...] = ()
    """Standard deviation of each value, likewise."""

    def __post_init__(self) -> None:
        sizes = {"in_channels": ((self.in_channels,), MOST_CHANNELS), "size": (self.size, MOST_SIDE)}
        for name, (values, most) in sizes.items():
            if not all(type(value) is int and 1 <= value <= most for value in values):
                raise ValueError(f"{name} must be from 1 to {most}, got {quote(getattr(self, name))}")
        if len(self.size) != 2:
            raise ValueError(f"size must be the height and the width of an image, got {quote(self.size)}")
        if not 1 <= len(self.classes) <= MOST_CLASSES:
            raise ValueError(f"a network must have 1 to {MOST_CLASSES:,} classes, got {len(self.classes):,}")
        for name in ("data", "origin", "labels"):
            self._check(
                name, isinstance(getattr(self, name), str) or (name == "labels" and self.labels is None), "a string"
            )
        self._check("classes", all(isinstance(name, str) for name in self.classes), "strings")
        check_normalisation(self.mean, self.std, self.in_channels)
        self._check("fill", self.fill is None or _is_number(self.fill), "a number or None")
        task = TASKS[self.config.task]
        for name in ("validation_error", "test_error"):
            error = getattr(self, name)
            fits = error is None or (_is_number(error) and 0 <= error <= task.most)
            self._check(name, fits, f"from 0 to {task.most:g} or None")
        columns = len(self.classes) if task.standardised else 0
        for name in ("target_mean", "target_std"):
            numbers = getattr(self, name)
            fits = len(numbers) == columns and all(map(_is_number, numbers))
            self._check(name, fits, f"{columns} finite numbers for the task {self.config.task}")
        self._check("target_std", all(number > 0 for number in self.target_std), "positive")

    def _check(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise ValueError(f"{name} must be {allowed}, got {quote(getattr(self, name))}")

    @classmethod
    def of(cls, config: Config, images: ImageSet) -> Self:
        """Return the card of a network that is to be trained with `config` on `images`."""
        target_mean, target_std = target_statistics(config, images)
        return cls(
            config=config,
            in_channels=images.images.shape[1],
            size=(images.images.shape[2], images.images.shape[3]),
            classes=images.classes,
            mean=images.mean,
            std=images.std,
            fill=images.black if config.fill == "black" else None,
            data=images.name,
            origin=images.origin,
            target_mean=target_mean,
            target_std=target_std,
        )

    def build(self, network: Network | None = None) -> Canonicalized:
        """Return the network, with random weights. A network of the user is passed as the function `network`."""
        return build_network(
            self.config,
            in_channels=self.in_channels,
            classes=len(self.classes),
            size=self.size,
            fill=self.fill,
            network=network,
        )

    def check(self, tensors: dict[str, Tensor]) -> None:
        """Raise an error unless `tensors` are weights of the network, before the network is allocated.

        The card of a damaged file can describe a network of any size; its tensors cannot.
        """
        try:
            with torch.device("meta"):
                module = self.build()
        except RuntimeError:
            if self.config.network in NETWORKS:
                raise
            return  # some networks of timm compute numbers while they are made
        check_weights(module, tensors)

    def write(self, path: str | Path, weights: Mapping[str, Tensor]) -> None:
        """Write a model file: the card and the weights of its network."""
        checkpoint.write(Path(path), dict(weights), {"card": self.to_dict()})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON."""
        return {**dataclasses.asdict(self), "config": self.config.to_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Return the card with these fields. A ValueError names fields that are missing, unknown or wrong."""
        if not isinstance(fields, dict):
            raise ValueError(f"a card must be a mapping from fields to values, got {quote(fields)}")
        fields = current_fields(fields)
        known = {field.name: field.default is not dataclasses.MISSING for field in dataclasses.fields(cls)}
        unknown = sorted(map(str, fields.keys() - known.keys()))
        missing = [name for name, has_default in known.items() if not has_default and name not in fields]
        if unknown or missing:
            raise ValueError(f"the card has missing fields {missing} and unknown fields {quote(unknown)}")
        listed = ("size", "classes", "mean", "std", "target_mean", "target_std")
        lists = {name: fields[name] for name in listed if name in fields}
        for name, value in lists.items():
            if not isinstance(value, (list, tuple)):
                raise ValueError(f"{name} must be a list, got {quote(value)}")
        made = {name: tuple(value) for name, value in lists.items()}
        return cls(**{**fields, **made, "config": Config.from_dict(fields["config"])})


def check_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise an error unless `tensors` are weights of `module`, which is on the meta device and gets these weights."""
    for name, tensor in module.state_dict().items():
        if name in tensors and tensors[name].is_floating_point() != tensor.is_floating_point():
            raise TypeError(f"{name} is {tensors[name].dtype}, not {tensor.dtype}")
    module.load_state_dict(tensors, assign=True)


def _is_number(value: object) -> bool:
    """Return whether `value` is a number that float32 can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 3e38


class Classifier(nn.Module):
    """Network and its card. The input is images as bytes, with the size and the channels of the card.

    The output is logits of the classes or labels, or, for regression, the values in their own units.

    >>> digits = ImageSet(images=torch.zeros(3, 1, 64, 64, dtype=torch.uint8), labels=torch.arange(3), name="blank")
    >>> card = Card.of(Config(layers=("x_shear",)), digits)
    >>> classifier = Classifier(card.build(), card).eval()
    >>> classifier(digits.images).shape, classifier.canonicalize(digits.images).names
    (torch.Size([3, 10]), ('x_shear',))
    """

    scale: Tensor
    shift: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, module: Canonicalized, card: Card) -> None:
        super().__init__()
        self.module = module
        self.card = card
        self.augmentation = Augmentation(parse_max_theta(card.config.augment))
        self.tta, self.poses = card.config.tta, 1
        device = next(module.parameters()).device
        for name, values in zip(("scale", "shift"), scale_and_shift(card.mean, card.std, device), strict=True):
            self.register_buffer(name, values.clone(), persistent=False)  # not parts of one tensor
        for name in ("target_mean", "target_std"):
            self.register_buffer(name, torch.tensor(getattr(card, name), device=device), persistent=False)

    @property
    def task(self) -> Task:
        """Task of the network."""
        return TASKS[self.card.config.task]

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(B, classes)`, or the values of a regression, for bytes `(B, C, H, W)`."""
        network: nn.Module = self.module if self.poses == 1 else SeveralPoses(self.module, self.poses)
        network = network if self.tta == 1 else TTA(network, self.augmentation, self.tta, self.task.average)
        outputs: Tensor = network(self.normalise(images))
        return outputs * self.target_std + self.target_mean if self.card.target_std else outputs

    def predict(self, images: Tensor) -> Tensor:
        """Return probabilities `(B, classes)`, or the values of a regression, for bytes `(B, C, H, W)`."""
        return self.task.predict(self(images))

    @property
    def tta(self) -> int:
        """Number of predictions per image to average over (test-time augmentation); can be set."""
        return self._tta

    @tta.setter
    def tta(self, count: int) -> None:
        check_tta(count, self.augmentation)
        self._tta = count

    @property
    def poses(self) -> int:
        """Number of poses in which each image is read (`SeveralPoses`); can be set."""
        return self._poses

    @poses.setter
    def poses(self, count: int) -> None:
        if count != 1 and self.card.config.task != "classification":
            raise ValueError(f"several poses need classes, but the model is for the task {self.card.config.task}")
        self._poses = check_poses(self.module, count)

    def canonicalize(self, images: Tensor) -> Canonicalization:
        """Return the result of the layers for bytes `(B, C, H, W)`; `to_bytes` undoes the normalisation."""
        pixels = self.normalise(images)
        if self.poses > 1:
            return SeveralPoses(self.module, self.poses).canonicalize(pixels)
        out: Canonicalization = self.module.canonicalizer(pixels)
        return out

    def prepare(self, image: str | Path | Image | Tensor | NDArray[Any]) -> Tensor:
        """Convert a file, a picture, a tensor `(C, H, W)` or an array `(H, W, C)` to bytes of the card's shape.

        The image is resized, keeps its aspect ratio, and is padded with its border pixels, like the images of a folder.
        """
        from equivariant_transformers.data import pictures

        size, channels = self.card.size, self.card.in_channels
        if isinstance(image, (str, Path)):
            return torch.tensor(pictures.read(Path(image), size, channels))
        return torch.tensor(pictures.fit(pictures.to_picture(image), size, channels))

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise bytes `(B, C, H, W)` for the network."""
        expected = (self.card.in_channels, *self.card.size)
        is_tensor = isinstance(images, Tensor)
        if not is_tensor or images.dtype != torch.uint8 or images.ndim != 4 or tuple(images.shape[1:]) != expected:
            found = f"{images.dtype} of shape {tuple(images.shape)}" if is_tensor else f"a {type(images).__name__}"
            raise ValueError(
                f"the network takes uint8 images (B, {', '.join(map(str, expected))}), got {found}; "
                "prepare(image)[None] makes them from a file, a picture, or an array of any size"
            )
        return images * self.scale + self.shift

    def to_bytes(self, images: Tensor) -> Tensor:
        """Convert normalised images `(B, C, H, W)`, such as canonical images, to bytes."""
        return ((images - self.shift) / self.scale).round().clamp(0, 255).to(torch.uint8)

    def save(self, path: str | Path) -> None:
        """Write the weights and the card into one safetensors file."""
        self.card.write(path, self.module.state_dict())

    @classmethod
    def load(cls, path: str | Path, *, network: Network | None = None) -> Self:
        """Load a file written by `save`, ready for use on the CPU. Any other file raises a `CheckpointError`.

        If the model was trained with a function of the user, `--network module:function`, pass this function as
        `network`. It is never imported because a file names it.
        """
        tensors, description = checkpoint.read(Path(path))
        for kind, what in (("canonicalizer", "a canonicalizer without a classifier"), ("network", "a network")):
            if kind in description:
                raise checkpoint.CheckpointError(f"{path} is {what}: load it in Python with et.hub.load_{kind}")
        if "card" not in description:
            raise checkpoint.CheckpointError(
                f"{path} is the checkpoint of a training run, not a model; load model.safetensors in the same folder"
            )
        try:
            card = Card.from_dict(description["card"])
            names = current_weights(tensors)
            tensors = {names[name]: tensor for name, tensor in tensors.items()}
            if network is None:
                card.check(tensors)
            with torch.random.fork_rng(devices=[]):
                module = card.build(network)
            module.load_state_dict(tensors)
            return cls(module, card).eval()
        except OwnNetworkError as error:
            raise checkpoint.CheckpointError(f"{path} cannot be loaded: {error}") from error
        except MISFITS as error:
            reason = " ".join(str(error).split())
            raise checkpoint.CheckpointError(
                f"{path} is not a model of this version of the library: {reason}"
            ) from error
