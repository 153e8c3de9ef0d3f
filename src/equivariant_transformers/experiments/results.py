"""Results of runs as small JSON files, one a run, that can be copied between machines and never collide."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equivariant_transformers.files import atomic_write
from equivariant_transformers.training import Config, Result

_MACHINE = ("device",)  # fields that do not change what a run is


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished run, as its file holds it. Errors are in per cent."""

    config: Config
    test_error: float
    validation_error: float
    best_epoch: int | None
    validation_errors: list[float]
    losses: list[float]
    seconds: float
    parameters: int
    origin: str
    """Where the images come from."""
    device: str
    torch: str
    commit: str
    failure: str | None = None


def key(config: Config) -> str:
    """A name for the run of a config: what it is in words, then a hash of every field that decides its outcome."""
    fields = {name: value for name, value in config.to_dict().items() if name not in _MACHINE}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]
    words = [config.dataset.replace("/", "_"), config.network, config.predictor if config.layers else "plain"]
    return "-".join([*words, f"{len(config.layers)}layers", f"x{config.copies}", f"seed{config.seed}", digest])


def record(result: Result, *, parameters: int, origin: str) -> Record:
    """What is kept of a `result`."""
    return Record(
        config=result.config,
        test_error=result.test_error,
        validation_error=result.validation_error,
        best_epoch=result.best_epoch,
        validation_errors=[round(entry["validation_error"], 4) for entry in result.history],
        losses=[round(entry["loss"], 5) for entry in result.history],
        seconds=round(sum(entry["seconds"] for entry in result.history), 1),
        parameters=parameters,
        origin=origin,
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        torch=torch.__version__.split("+")[0],
        commit=_commit(),
        failure=result.failure,
    )


def save(entry: Record, folder: Path) -> Path:
    """Write `entry` into `folder`, under the name of its config."""
    path = folder / f"{key(entry.config)}.json"
    write(entry, path)
    return path


def write(entry: Record, path: Path) -> None:
    """Write `entry` into a file."""
    with atomic_write(path) as file:
        file.write((json.dumps(to_dict(entry), indent=1) + "\n").encode())


def to_dict(entry: Record) -> dict[str, Any]:
    """The fields of `entry` as JSON has them, which knows no NaN."""
    fields: dict[str, Any] = {**vars(entry), "config": entry.config.to_dict()}
    losses = [loss if math.isfinite(loss) else None for loss in entry.losses]
    numbers = {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in fields.items()}
    return {**numbers, "losses": losses}


def load(path: Path) -> Record:
    """The record in a file."""
    fields = json.loads(path.read_text())
    for name in ("test_error", "validation_error"):
        fields[name] = math.nan if fields[name] is None else fields[name]
    losses = [math.nan if loss is None else loss for loss in fields["losses"]]
    return Record(**{**fields, "losses": losses, "config": Config.from_dict(fields["config"])})


def find(config: Config, folder: Path) -> Record | None:
    """The finished run of `config`, if `folder` holds it."""
    path = folder / f"{key(config)}.json"
    return load(path) if path.exists() else None


def _commit() -> str:
    """The commit of the code: what ET_COMMIT says on machines without the repository, else what git does."""
    if "ET_COMMIT" in os.environ:
        return os.environ["ET_COMMIT"]
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
