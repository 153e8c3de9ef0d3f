"""Results of runs as JSON files, one per run. Files of different runs have different names on all machines."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.training import Config, Result
from equivariant_transformers.training.aliases import first_name

_MACHINE = ("device",)  # fields that are not part of the name of a run
_LONGEST = 150  # bytes of a folder's path in a name; file systems allow 255 for the whole name
_UNRELATED_TO_COST = (
    "seed",
    "data_seed",
    "epochs",
    "patience",
    "learning_rate",
    "warmup",
    "class_weights",
    "lr_decay",
    "dropout",
    "pretrained",
    "pose_noise",
    "augment",
    "tta",
    "weight_decay",
    "ema_decay",
    "keep",
    "device",
)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Content of the result file of a finished run. Errors are in per cent."""

    config: Config
    test_error: float
    validation_error: float
    best_epoch: int | None
    validation_errors: list[float]
    losses: list[float]
    seconds: float
    parameters: int
    origin: str
    """Source of the images."""
    device: str
    torch: str
    commit: str
    failure: str | None = None
    """Reason why the run diverged; None if it did not."""
    together: int = 1
    """Number of runs that shared the device."""

    @property
    def settings(self) -> str:
        """Precision and compilation of the run, in words."""
        return f"{self.config.precision}, {'compiled' if self.config.compile else 'not compiled'}"


def key(config: Config) -> str:
    """Return the name of the run of a config: a description in words and a hash of the fields that are not defaults.

    Because defaults are not hashed, a new field of `Config` does not change the names of existing runs.
    """
    usual = Config().to_dict()
    changed = {n: value for n, value in config.to_dict().items() if n not in _MACHINE and value != usual[n]}
    fields = {first_name(name): value for name, value in changed.items()}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]
    dataset = config.dataset.replace("/", "_").encode(errors="ignore")[-_LONGEST:].decode(errors="ignore")
    words = [dataset, config.network.replace(":", "_"), config.predictor if config.layers else "plain"]
    return "-".join([*words, f"{len(config.layers)}layers", f"x{config.copies}", f"seed{config.seed}", digest])


def record(result: Result, *, parameters: int, origin: str, together: int) -> Record:
    """Return the record of a `result`."""
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
        device=device_name(),
        torch=torch.__version__.split("+")[0],
        commit=commit(),
        failure=result.failure,
        together=together,
    )


def save(entry: Record, folder: Path) -> Path:
    """Write `entry` to `folder` under the name of its config, and return the path."""
    path = folder / f"{key(entry.config)}.json"
    write(entry, path)
    return path


def write(entry: Record, path: Path) -> None:
    """Write `entry` to a file."""
    with atomic_write(path) as file:
        file.write((json.dumps(to_dict(entry), indent=1) + "\n").encode())


def to_dict(entry: Record) -> dict[str, Any]:
    """Return the fields of `entry` for JSON, with None in place of NaN."""
    fields: dict[str, Any] = {**vars(entry), "config": entry.config.to_dict()}
    losses = [loss if math.isfinite(loss) else None for loss in entry.losses]
    numbers = {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in fields.items()}
    return {**numbers, "losses": losses}


def load(path: Path) -> Record:
    """Read the record in a file."""
    return _from_fields(json.loads(path.read_text()))


def load_all(root: Path) -> dict[str, Record]:
    """Read the records in the subfolders of `root`, by key. Other JSON files are skipped."""
    entries = (_read(path) for path in sorted(root.glob("*/*.json")))
    records = (_from_fields(fields) for fields in entries if "validation_errors" in fields)
    return {key(entry.config): entry for entry in records}


def _read(path: Path) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not a complete JSON file ({error}); delete it to repeat the run") from error
    return fields


def base(config: Config) -> Config:
    """Return `config` without the seed and the machine settings; runs of one cell have this config in common."""
    return config.replace(seed=0, device="auto", precision="float32", compile=False)


def estimate(config: Config, records: Iterable[Record]) -> float | None:
    """Estimate the seconds of training `config` alone on this device from `records`; None without similar runs."""

    def cost(wanted: Config) -> dict[str, Any]:
        return {name: value for name, value in wanted.to_dict().items() if name not in _UNRELATED_TO_COST}

    wanted, here = cost(config), device_name()
    alike = [entry for entry in records if entry.device == here and cost(entry.config) == wanted and entry.losses]
    if not alike:
        return None
    return config.epochs * fmean(entry.seconds / entry.together / len(entry.losses) for entry in alike)


def device_name() -> str:
    """Return the name of the GPU, or of the CPU if there is none, as in records."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu"


def _from_fields(fields: dict[str, Any]) -> Record:
    for name in ("test_error", "validation_error"):
        fields[name] = math.nan if fields[name] is None else fields[name]
    losses = [math.nan if loss is None else loss for loss in fields["losses"]]
    return Record(**{**fields, "losses": losses, "config": Config.from_dict(fields["config"])})


def commit() -> str:
    """Return the commit of the code: ET_COMMIT if it is set (for machines without the repository), else git's."""
    if "ET_COMMIT" in os.environ:
        return os.environ["ET_COMMIT"]
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():  # installed: git would describe the user's own repository
        return "unknown"
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return "unknown"
    return done.stdout.strip() or "unknown"
