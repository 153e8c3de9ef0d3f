"""State of a run in a checkpoint, checked against the run that resumes from it."""

from __future__ import annotations

import math
import reprlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers.training import checkpoint
from equivariant_transformers.training.aliases import current_fields, current_state
from equivariant_transformers.training.config import Config
from equivariant_transformers.training.tasks import TASKS

_ANEW = "Remove this file to restart the run"
_COUNTED = 2**24  # the optimizer's step counter, a float32, stops here


def read(
    path: Path, *, config: Config, module: nn.Module, steps: int, labels: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the description of the checkpoint at `path`.

    Args:
        path: path of the checkpoint.
        config: config of the run that resumes.
        module: network of the run that resumes.
        steps: number of steps per epoch.
        labels: hash of the labels of all images.

    Raises:
        CheckpointError: if the file is damaged, belongs to another run, or holds an impossible state.

    Fields of the config get their current names. A field that is newer than the checkpoint gets its default.
    """
    try:
        tensors, there = checkpoint.read(path)
    except checkpoint.CheckpointError as error:
        raise checkpoint.CheckpointError(f"{error}. {_ANEW}") from error
    if not _fits(tensors, module):
        tensors = current_state(tensors)
    if isinstance(there.get("config"), dict):  # another run has other limits for its state
        there["config"] = Config().to_dict() | current_fields(there["config"])
        _check_same(path, there["config"], config.to_dict())
    if there.get("labels", labels) != labels:
        raise checkpoint.CheckpointError(
            f"{path} belongs to a run on other images. Choose another directory, or remove this file to restart the run"
        )
    try:
        _check_description(there, steps, config)
    except ValueError as error:
        raise _impossible(path, error) from error
    if not _fits(tensors, module):
        raise checkpoint.CheckpointError(f"{path} holds the weights of another network. {_ANEW}")
    try:
        _check_tensors(tensors, there, config, module, steps)
    except ValueError as error:
        raise _impossible(path, error) from error
    return tensors, there


def _impossible(path: Path, reason: ValueError) -> checkpoint.CheckpointError:
    return checkpoint.CheckpointError(f"{path} holds an impossible state: {reason}. {_ANEW}")


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


def _check_description(there: dict[str, Any], steps: int, run: Config) -> None:
    """Raise a ValueError unless the entries exist, have their types and agree with each other.

    An epoch whose loss is the `diverged_loss` of `run` or higher must be the last, with a failure.
    """
    entries = ("config", "epoch", "step", "history", "best_epoch", "validation_error", "failure")
    missing = [name for name in entries if name not in there]
    _require(not missing, f"it has no {', '.join(missing)}")
    config, epoch, step, history, best, error, failure = (there[name] for name in entries)

    _require(isinstance(config, dict), f"config is {reprlib.repr(config)}, not an object")
    _require(_is_integer(config["epochs"], 1, math.inf), f"epochs of config is {reprlib.repr(config['epochs'])}")
    _require(failure is None or isinstance(failure, str), f"failure is {reprlib.repr(failure)}, not a string or null")
    _require(
        _is_integer(epoch, 0, config["epochs"]), f"epoch is {reprlib.repr(epoch)}, not from 0 to {config['epochs']}"
    )
    most = 0 if epoch == config["epochs"] or failure is not None else steps
    _require(_is_integer(step, 0, most), f"step is {reprlib.repr(step)}, not from 0 to {most}")

    most_error = TASKS[run.task].most
    _require(isinstance(history, list), f"history is {reprlib.repr(history)}, not a list")
    _require(len(history) == epoch, f"history has {len(history)} entries after {epoch} epochs")
    for number, entry in enumerate(history, 1):
        sound = (
            isinstance(entry, dict)
            and isinstance(entry.get("loss"), float)
            and _is_float(entry.get("validation_error"), 0, most_error)
            and _is_float(entry.get("seconds"), 0, math.inf)
        )
        _require(sound, f"epoch {number} of history is invalid: {reprlib.repr(entry)}")
    kept = [entry for entry in history if entry["loss"] < run.diverged_loss]
    ended_well = kept == history if failure is None else kept == history[:-1] != history
    _require(ended_well, f"failure is {reprlib.repr(failure)}, which contradicts the losses in history")

    if not kept:
        _require(best is None, f"best_epoch is {reprlib.repr(best)}, but there is no epoch to keep")
        return
    _require(_is_integer(best, 1, len(kept)), f"best_epoch is {reprlib.repr(best)}, not from 1 to {len(kept)}")
    _require(
        _is_float(error, 0, most_error), f"validation_error is {reprlib.repr(error)}, not from 0 to {most_error:g}"
    )
    if config["keep"] == "best":  # with keep=last, the tta of the last epoch may differ from history
        errors = [entry["validation_error"] for entry in kept]
        _require(best == errors.index(min(errors)) + 1, f"best_epoch is {best}, but another epoch was better")
        _require(error == min(errors), f"validation_error is {error}, but {min(errors)} in history")


def _check_same(path: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    free = {"epochs", "patience", "device"}  # a run may be resumed for more epochs or on another device
    if here["keep"] == "last":  # the weights do not depend on validation errors
        free |= {"keep", "tta"}
    different = [name for name in there if name not in free and there[name] != here.get(name)]
    if different:
        changes = ", ".join(
            f"{name} is {there[name]!r} in the file and {here.get(name)!r} in this run" for name in different
        )
        raise checkpoint.CheckpointError(f"{path} belongs to another run: {changes}. Choose another directory")


def _fits(tensors: dict[str, Tensor], module: nn.Module) -> bool:
    """Return whether a state has weights with the names and shapes of `module`."""
    there = {name: tensor.shape for name, tensor in tensors.items() if name.startswith("model/")}
    return there == {f"model/{name}": tensor.shape for name, tensor in module.state_dict().items()}


def _check_tensors(
    tensors: dict[str, Tensor], there: dict[str, Any], config: Config, module: nn.Module, steps: int
) -> None:
    """Raise a ValueError unless a run can have these tensors with these values."""
    expected = _layout(config, module)
    found = tensors.keys() - {"random/cuda"}
    if found != expected.keys():
        raise ValueError(f"missing or unexpected tensors: {reprlib.repr(sorted(found ^ expected.keys()))}")
    for name, tensor in expected.items():
        here, wanted = ((each.dtype, tuple(each.shape)) for each in (tensors[name], tensor))
        _require(here == wanted, f"{name} is {here[0]} {here[1]}, not {wanted[0]} {wanted[1]}")

    names = [name for name, _ in module.named_parameters()]
    done = there["epoch"] * steps + there["step"]
    counts = {tensors[f"optimizer/{name}/step"].item() for name in names}
    in_range = all(0 <= count <= done for count in counts)  # some weights may not be used in every step
    _require(in_range and min(done, _COUNTED) in counts, f"the optimizer counts {counts} steps, not {done}")

    weights = {f"{part}/{name}" for part in _parts(config) for name in names}  # buffers may be infinite
    broken = {
        name
        for name, tensor in tensors.items()
        if (not tensor.isfinite().all() if name in weights else tensor.isnan().any())
    }
    allowed = ["total_loss"] if there["best_epoch"] else ["total_loss", "best/"]
    if there["failure"] is not None or (there["step"] > 0 and any(f"model/{name}" in broken for name in names)):
        allowed += ["model/", "average/", "optimizer/"]  # such a run fails at the end of the epoch
    impossible = sorted(name for name in broken if not name.startswith(tuple(allowed)))
    _require(not impossible, f"values are not finite in {reprlib.repr(impossible)}")

    for device in {"cpu", *(parameter.device.type for parameter in module.parameters())}:
        name = f"random/{device}"
        try:
            if name in tensors:
                torch.Generator(device).set_state(tensors[name])
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{name} is not the state of a random number generator") from error


def _layout(config: Config, module: nn.Module) -> dict[str, Tensor]:
    """Return tensors with the types and shapes of the state of a run."""
    layout = {f"{part}/{name}": tensor for part in _parts(config) for name, tensor in module.state_dict().items()}
    for name, parameter in module.named_parameters():
        moments = dict.fromkeys(("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), parameter)
        layout |= {f"optimizer/{name}/{key}": tensor for key, tensor in moments.items()}
        layout[f"optimizer/{name}/step"] = torch.zeros(())
    return layout | {"total_loss": torch.zeros((), dtype=torch.float64), "random/cpu": torch.get_rng_state()}


def _parts(config: Config) -> tuple[str, ...]:
    return ("model", "best", "average") if config.ema_decay else ("model", "best")


def _is_integer(value: object, low: float, high: float) -> bool:
    return type(value) is int and low <= value <= high


def _is_float(value: object, low: float, high: float) -> bool:
    return isinstance(value, float) and low <= value <= high
