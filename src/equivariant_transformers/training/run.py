"""One run: a job from its first step, or from its checkpoint, to its result."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.nn.augment import TTA, Augmentation
from equivariant_transformers.training import checkpoint, distributed, state
from equivariant_transformers.training.config import Config
from equivariant_transformers.training.diagnosis import diagnose
from equivariant_transformers.training.optimization import Batches, Evaluation, Loss, Optimization

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
    """Where checkpoints go; None to keep none."""
    name: str = "run"
    augmentation: Augmentation = field(default_factory=lambda: Augmentation({}))
    """Random transformations of the training images, for networks that take a starting warp."""
    loss: Loss = F.cross_entropy
    labels: str = ""
    """A hash of the labels of all images: a run goes on with those that it began with, or not at all."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Place of a run, `step` of `steps` in `epoch`, and the figures of the epochs before."""

    name: str
    epoch: int
    epochs: int
    step: int
    steps: int
    history: Sequence[dict[str, float]]


@dataclass(kw_only=True)
class Result:
    """Outcome of a run. Errors are in per cent; the test set is evaluated once, with the weights that were kept."""

    config: Config
    history: list[dict[str, float]] = field(default_factory=list)
    """For each epoch: `loss`, `validation_error`, `seconds`."""
    best_epoch: int | None = None
    """The epoch whose weights were kept: the best on validation data or, if the config says so, the last."""
    validation_error: float = math.nan
    test_error: float = math.nan
    failure: str | None = None
    """Why the run ended early, if it did."""


class Run:
    """Job under way: its place in the epochs, the weights kept so far, and its checkpoint."""

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
        return self.epoch >= self.job.config.epochs or self.result.failure is not None

    def resume(self) -> None:
        """Continue from the checkpoint of this job, if it has one."""
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
        entry = {"loss": loss / steps, "validation_error": self.evaluation.error()}
        result = self.result
        result.history.append({**entry, "seconds": time.monotonic() - self.started})
        self.epoch, self.step = self.epoch + 1, 0
        if not entry["loss"] < state.DIVERGED:
            result.failure = diagnose(self.job.module, self.job.train, self.epoch, entry["loss"], self.job.config)
        elif (
            self.job.config.keep == "last"
            or result.best_epoch is None
            or entry["validation_error"] < result.validation_error
        ):
            self._keep(entry["validation_error"])

    def _keep(self, validation_error: float) -> None:
        """Keep the weights of the epoch that has just ended."""
        self.result.best_epoch, self.result.validation_error = self.epoch, validation_error
        for name, tensor in self.optimization.averaged.state_dict().items():
            self.kept[name].copy_(tensor)

    def conclude(self) -> Result:
        """Load the weights that were kept and test them."""
        if self.result.best_epoch is not None:
            self.job.module.load_state_dict(self.kept)
            evaluation = self._evaluation(self.job.module, self.job.test, capture=False)
            self.result.test_error = evaluation.error()
        return self.result

    def _evaluation(self, module: nn.Module, loader: Batches, *, capture: bool) -> Evaluation:
        config = self.job.config
        tested = module if config.tta == 1 else TTA(module, self.job.augmentation, config.tta)
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
            self._keep(self.evaluation.error())  # which it did, unless it kept the best before or looked otherwise


def is_finished(path: Path, job: Job) -> bool:
    """Return whether `path` holds the state of a run that went well to its end and that `job` can resume from."""
    try:
        _, description = state.read(path, config=job.config, module=job.module, steps=len(job.train), labels=job.labels)
    except checkpoint.CheckpointError:
        return False
    ended = description["epoch"] == job.config.epochs and description["failure"] is None
    return ended and description.get("labels") == job.labels


def _copy(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}
