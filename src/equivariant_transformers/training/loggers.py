"""Logs of training. A logger is a function that is called with an `Epoch` after each epoch."""

from __future__ import annotations

import csv
import io
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers import install
from equivariant_transformers.data import ImageSet
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.data.imageset import scale_and_shift
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.training.config import Config

HISTORY = "history.csv"
"""File in the directory of a run with a row per epoch."""
_SHOWN = 8  # images


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """End of an epoch of a run."""

    name: str
    """Name of the job."""
    config: Config
    history: Sequence[dict[str, float]]
    """Figures of all epochs so far, also of those before the run was resumed."""
    module: nn.Module
    """Network that is evaluated, in evaluation mode."""
    directory: Path | None
    """Directory of the run."""

    @property
    def number(self) -> int:
        """Number of epochs so far."""
        return len(self.history)

    def rows(self) -> list[dict[str, float]]:
        """Return the figures of all epochs so far: number, loss, validation error, learning rate and seconds."""
        rates = (self.config.learning_rate_in(epoch) for epoch in range(self.number))
        return [
            {
                "epoch": number,
                "loss": entry["loss"],
                "validation_error": entry["validation_error"],
                "learning_rate": rate,
                "seconds": entry["seconds"],
            }
            for number, (entry, rate) in enumerate(zip(self.history, rates, strict=True), 1)
        ]


Logger = Callable[[Epoch], None]


class Guarded:
    """Loggers whose errors cannot end the training. The first error of each logger is a warning."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = loggers
        self.failed: set[int] = set()

    def __call__(self, epoch: Epoch) -> None:
        for index, logger in enumerate(self.loggers):
            try:
                logger(epoch)
            except Exception as error:
                if index not in self.failed:
                    self.failed.add(index)
                    what = getattr(logger, "__name__", type(logger).__name__)
                    reason = f"{type(error).__name__}: {error}"
                    warnings.warn(f"training continues, but the logger {what} failed: {reason}", stacklevel=2)


def write_history(epoch: Epoch) -> None:
    """Write the figures of all epochs so far to the directory of the run, if it has one.

    The whole file is written each time. After an interruption it holds the epochs of the resumed run, each once.
    """
    if epoch.directory is None:
        return
    rows = epoch.rows()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(epoch.directory / HISTORY) as file:
        file.write(text.getvalue().encode())


class Service(ABC):
    """Logger of the figures of each epoch, and of canonical images, to a service that keeps the earlier epochs.

    Args:
        directory: folder of the run.
        images: images of which the first are shown, with their canonical images below.
    """

    def __init__(self, directory: Path, images: ImageSet) -> None:
        self.directory = directory
        self.images = images
        self.opened = False
        self._api = self.load()

    @staticmethod
    @abstractmethod
    def load() -> Any:
        """Import and return what writes to the service. A ModuleNotFoundError has the command that installs it."""

    def __call__(self, epoch: Epoch) -> None:
        """Log the last epoch, or all epochs so far if the service has none of them."""
        first = epoch.number
        if not self.opened:
            first = first if self._open(epoch) else 1
            self.opened = True
        for row in epoch.rows()[first - 1 :]:
            number = int(row.pop("epoch"))
            self._write(number, row, canonical_images(epoch.module, self.images) if number == epoch.number else None)

    @abstractmethod
    def _open(self, epoch: Epoch) -> bool:
        """Open the log before its first epoch, and return whether it has the epochs before."""

    @abstractmethod
    def _write(self, number: int, figures: dict[str, float], picture: Tensor | None) -> None:
        """Log the figures of an epoch and a picture `(C, H, W)` of bytes."""


class TensorBoard(Service):
    """Logger that writes event files of TensorBoard to the folder `tensorboard` of the run."""

    _writer: Any = None

    @staticmethod
    def load() -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            message = f"the log tensorboard needs the package tensorboard: {install.command('logging')}"
            raise ModuleNotFoundError(message) from error
        return SummaryWriter

    def _open(self, epoch: Epoch) -> bool:
        folder = self.directory / "tensorboard"
        resumed = any(folder.glob("events.*"))
        # purge_step hides epochs from there on in earlier files: they came after the checkpoint, and are trained again.
        self._writer = self._api(str(folder), purge_step=epoch.number if resumed else 1)
        return resumed

    def _write(self, number: int, figures: dict[str, float], picture: Tensor | None) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        if picture is not None:
            self._writer.add_image("canonical images", picture, number)
        self._writer.flush()


class WeightsAndBiases(Service):
    """Logger to Weights & Biases. The identifier of the run is kept in its directory, so that a resumed run continues.

    Epochs after the checkpoint, which are trained again, are not logged twice: Weights & Biases takes each step once.
    """

    FILE = "wandb-id.txt"

    _run: Any = None

    @staticmethod
    def load() -> Any:
        try:
            import wandb
        except ImportError as error:
            raise ModuleNotFoundError("the log wandb needs the package wandb: pip install wandb") from error
        return wandb

    def _open(self, epoch: Epoch) -> bool:
        path = self.directory / self.FILE
        resumed = path.exists()
        if not resumed:
            with atomic_write(path) as file:
                file.write(uuid.uuid4().hex.encode())
        self._run = self._api.init(
            project="equivariant-transformers",
            name=epoch.name,
            id=path.read_text().strip(),
            resume="allow",
            dir=str(self.directory),
            config=epoch.config.to_dict(),
        )
        return resumed

    def _write(self, number: int, figures: dict[str, float], picture: Tensor | None) -> None:
        shown = {} if picture is None else {"canonical images": self._api.Image(picture.permute(1, 2, 0).numpy())}
        self._run.log({**figures, **shown}, step=number)


LOGGERS: dict[str, type[Service]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""Loggers of `et train --log`, by name."""


@torch.no_grad()
def canonical_images(module: nn.Module, images: ImageSet) -> Tensor | None:
    """Return the first images in a row and their canonical images below, as bytes `(C, 2 H, n W)` on the CPU.

    Return None for a network without layers.
    """
    if not isinstance(module, Canonicalized) or not len(module.canonicalizer.layers):
        return None
    inputs = images.normalise(images.images[:_SHOWN])
    scale, shift = scale_and_shift(images.mean, images.std, inputs.device)
    both = torch.cat((inputs, module.canonicalizer(inputs).image), 2)  # (n, C, 2 H, W)
    pixels = ((both - shift) / scale).round().clamp(0, 255).to(torch.uint8)
    return torch.cat(pixels.unbind(0), 2).cpu()
