"""Run of a job, from its first step or its checkpoint to its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.nn.augment import TTA, Augmentation
from equivariant_transformers.training import checkpoint, distributed, state
from equivariant_transformers.training.calibrating import calibrated
from equivariant_transformers.training.config import Config
from equivariant_transformers.training.diagnosis import diagnose
from equivariant_transformers.training.loggers import Epoch
from equivariant_transformers.training.optimization import Batches, Evaluation, Optimization
from equivariant_transformers.training.tasks import TASKS, Loss

CHECKPOINT = "checkpoint.safetensors"


@dataclass(kw_only=True)
class Job:
    """Network and data loaders, with the config that both were made from."""

    config: Config
    module: nn.Module
    train: Batches
    validation: Batches
    test: Batches
    directory: Path | None = None
    """Directory of the checkpoint; None for no checkpoint."""
    name: str = "run"
    augmentation: Augmentation = field(default_factory=lambda: Augmentation({}))
    """Random augmentation of the training images, for networks that accept a starting warp."""
    loss: Loss = F.cross_entropy
    on_keep: Callable[[Mapping[str, Tensor], Result], None] | None = None
    """Called after each epoch whose weights are kept, with these weights and the result so far."""
    labels: str = ""
    """Hash of the labels of all images. A run is only resumed with the same labels."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a run: `step` of `steps` in `epoch`, and the history of the previous epochs."""

    name: str
    epoch: int
    epochs: int
    step: int
    steps: int
    history: Sequence[dict[str, float]]


@dataclass(kw_only=True)
class Result:
    """Result of a run. Errors are in per cent: of the images, of their labels, or of the variance of their values.

    The test set is evaluated once, with the weights that were kept.
    """

    config: Config
    history: list[dict[str, float]] = field(default_factory=list)
    """Values of `loss`, `validation_error` and `seconds` per epoch."""
    best_epoch: int | None = None
    """Epoch whose weights were kept: the best epoch on validation data or, with `keep: last`, the last epoch."""
    validation_error: float = math.nan
    test_error: float = math.nan
    factors: tuple[float, ...] = ()
    """Factors by which the calibration scaled the evidence of the layers in the weights that were kept. Empty without
    layers to calibrate, or if the validation images are not upright."""
    failure: str | None = None
    """Reason why the run ended early; None if it did not."""


class Run:
    """Job in progress: its position in the epochs, the weights kept so far, and its checkpoint."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.epoch = 0
        self.step = 0
        self.steps = len(job.train)
        self.result = Result(config=job.config)
        self.optimization = Optimization(job.module, job.train, job.config, job.augmentation, job.loss)
        self.evaluation = self._evaluation(self.optimization.averaged, job.validation, capture=True)
        self.kept = _copy(job.module.state_dict())
        self.started = time.monotonic()

    @property
    def finished(self) -> bool:
        config, failure = self.job.config, self.result.failure
        return self.epoch >= config.epochs or failure is not None or _is_patience_over(config, self.result.history)

    def resume(self) -> None:
        """Resume from the checkpoint of this job, if it has one."""
        if self.job.directory is not None and (self.job.directory / CHECKPOINT).exists():
            self._load(self.job.directory / CHECKPOINT)

    def begin(self) -> None:
        self.started = time.monotonic()
        self.optimization.begin(self.epoch, self.step)

    def take_step(self) -> None:
        self.optimization.step()
        self.step += 1

    def finish_epoch(self) -> None:
        loss, steps = distributed.total(self.optimization.loss())
        config, result = self.job.config, self.result
        with calibrated(self.optimization.averaged, self.job.validation) as factors:
            entry = {"loss": loss / steps, "validation_error": self.evaluation.error()}
            result.history.append({**entry, "seconds": time.monotonic() - self.started})
            self.epoch, self.step = self.epoch + 1, 0
            if not entry["loss"] < config.diverged_loss:
                result.failure = diagnose(self.job.module, self.job.train, self.epoch, entry["loss"], config)
            elif (
                config.keep == "last"
                or result.best_epoch is None
                or entry["validation_error"] < result.validation_error
            ):
                self._keep(entry["validation_error"], factors)

    def _keep(self, validation_error: float, factors: tuple[float, ...]) -> None:
        """Keep the weights of the epoch that has just ended."""
        self.result.best_epoch, self.result.validation_error = self.epoch, validation_error
        self.result.factors = factors
        for name, tensor in self.optimization.averaged.state_dict().items():
            self.kept[name].copy_(tensor)
        if self.job.on_keep is not None and distributed.rank() == 0:
            self.job.on_keep(self.kept, self.result)

    def conclude(self) -> Result:
        """Load the weights that were kept, test them and return the result."""
        if self.result.best_epoch is not None:
            self.job.module.load_state_dict(self.kept)
            evaluation = self._evaluation(self.job.module, self.job.test, capture=False)
            self.result.test_error = evaluation.error()
        return self.result

    def _evaluation(self, module: nn.Module, loader: Batches, *, capture: bool) -> Evaluation:
        config = self.job.config
        tested = (
            module if config.tta == 1 else TTA(module, self.job.augmentation, config.tta, TASKS[config.task].average)
        )
        return Evaluation(tested, loader, config, capture=capture)

    def progress(self) -> Progress:
        return Progress(
            name=self.job.name,
            epoch=self.epoch,
            epochs=self.job.config.epochs,
            step=self.step,
            steps=self.steps,
            history=self.result.history,
        )

    def ended_epoch(self) -> Epoch:
        return Epoch(
            name=self.job.name,
            config=self.job.config,
            history=tuple(self.result.history),
            module=self.optimization.averaged,
            directory=self.job.directory,
        )

    def save(self) -> None:
        if self.job.directory is None or distributed.rank() > 0:
            return
        tensors = self.optimization.state() | {f"best/{name}": tensor for name, tensor in self.kept.items()}
        result = self.result
        description = {
            "config": self.job.config.to_dict(),
            "labels": self.job.labels,
            "epoch": self.epoch,
            "step": self.step,
            "history": result.history,
            "best_epoch": result.best_epoch,
            "validation_error": result.validation_error if result.best_epoch else None,
            "failure": result.failure,
        }
        checkpoint.write(self.job.directory / CHECKPOINT, tensors, description)

    def _load(self, path: Path) -> None:
        job = self.job
        tensors, description = state.read(
            path, config=job.config, module=job.module, steps=self.steps, labels=job.labels
        )
        self.optimization.load_state(tensors)
        for name, tensor in self.kept.items():
            tensor.copy_(tensors[f"best/{name}"])
        self.epoch, self.step = description["epoch"], description["step"]
        self.result.history = description["history"]
        self.result.best_epoch = description["best_epoch"]
        if self.result.best_epoch is not None:
            self.result.validation_error = description["validation_error"]
        self.result.failure = description["failure"]
        if self.job.config.keep == "last" and self.epoch and not (self.step or self.result.failure):
            with calibrated(self.optimization.averaged, job.validation) as factors:
                self._keep(self.evaluation.error(), factors)  # no change, unless keep or tta differs from the file


def is_finished(path: Path, job: Job) -> bool:
    """Return whether `path` holds a checkpoint of `job` that ended without a failure."""
    try:
        _, description = state.read(path, config=job.config, module=job.module, steps=len(job.train), labels=job.labels)
    except checkpoint.CheckpointError:
        return False
    over = _is_patience_over(job.config, description["history"])
    ended = (description["epoch"] == job.config.epochs or over) and description["failure"] is None
    return ended and description.get("labels") == job.labels


def _is_patience_over(config: Config, history: Sequence[dict[str, float]]) -> bool:
    return config.out_of_patience([entry["validation_error"] for entry in history])


def _copy(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}
