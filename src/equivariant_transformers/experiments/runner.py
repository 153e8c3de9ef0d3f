"""Runner of a list of configs: trains those without a result, several at a time on a GPU, within a time budget."""

from __future__ import annotations

import errno
import math
import os
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from equivariant_transformers.data import Splits
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.experiments import results
from equivariant_transformers.experiments.display import Display
from equivariant_transformers.experiments.results import Record
from equivariant_transformers.training import CHECKPOINT, Config, Job, Stopped, is_finished, train
from equivariant_transformers.training.job import find_device, load_data, make_job
from equivariant_transformers.training.locks import InUseError, hold

_START = {False: 10.0, True: 60.0}  # seconds for the preparation and the test; the key is Config.compile
CRASH = ".crash.txt"
"""Ending of the names of files with the traceback of a crashed run."""


def run(
    configs: Sequence[Config],
    *,
    folder: Path,
    checkpoints: Path | None,
    together: int = 1,
    budget: float = math.inf,
    display: Display | None = None,
    **options: Any,
) -> list[Record]:
    """Train and test each of `configs` that has no result yet, and return the records of all finished runs.

    Existing results are read from `folder` and the folders beside it; new results are written to `folder`. Up to
    `together` runs on the same data train at the same time on a GPU and share the data. `options` are passed to the
    functions that load the data. A run that keeps its last epoch reuses the checkpoint of a finished run that differs
    only in how it is tested.

    After `budget` seconds `Stopped` is raised. Unfinished runs resume from their checkpoints the next time. Without
    `checkpoints`, a run is not started if finished runs suggest that it would exceed the budget.

    If a run crashes, its traceback is written to a file in `folder`, and the other runs continue. The run is tried
    again the next time. An `InUseError` is raised at once if another process uses the directory of a run in
    `checkpoints`.
    """
    deadline = time.monotonic() + budget
    folder.mkdir(parents=True, exist_ok=True)  # fails before the first run rather than after it
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "results cannot be written", str(folder))
    known = results.load_all(folder.parent)
    waiting = [config for config in configs if results.key(config) not in known]
    splits: Splits | None = None
    loaded = None
    while waiting:
        batch = _choose(waiting, known, together, deadline - time.monotonic(), resumable=checkpoints is not None)
        if not batch:
            raise Stopped(f"out of time; {len(waiting)} runs left")
        waiting = [config for config in waiting if config not in batch]
        if _data(batch[0]) != loaded:
            splits = None  # frees the memory
            splits, loaded = load_data(batch[0], find_device(batch[0].device), **options), _data(batch[0])
            if time.monotonic() > deadline:
                raise Stopped(f"out of time; {len(waiting) + len(batch)} runs left")
        assert splits is not None
        if display:
            seconds = [results.estimate(config, known.values()) for config in batch]
            total = None if None in seconds else sum(filter(None, seconds))
            display.begin([results.key(config) for config in batch], waiting=len(waiting), estimate=total)
        known |= _train(batch, splits, folder, checkpoints, deadline, display)
    return [known[name] for name in map(results.key, configs) if name in known]


def _choose(
    waiting: Sequence[Config], known: dict[str, Record], together: int, seconds: float, *, resumable: bool
) -> list[Config]:
    """Return the next configs to train together: on the same data, and within `seconds` if not `resumable`."""
    if waiting[0].compile and seconds <= _START[True]:
        return []  # compilation would take all of the time
    batch: list[Config] = []
    for config in waiting:
        if seconds <= 0:
            break
        if batch and _data(config) != _data(batch[0]):
            continue
        if resumable and any(other in batch for other in _alike(config)):
            continue  # reuses the checkpoint of the other run when that run is finished
        cost = 0.0 if resumable else (results.estimate(config, known.values()) or 0.0) + _START[config.compile]
        if cost <= seconds:
            batch.append(config)
            seconds -= cost
        if len(batch) == (together if find_device(config.device).type == "cuda" else 1):
            break
    return batch


def _train(
    batch: Sequence[Config],
    splits: Splits,
    folder: Path,
    checkpoints: Path | None,
    deadline: float,
    display: Display | None,
) -> dict[str, Record]:
    """Train a batch and save its records. After an error, train each run alone."""
    try:
        records = _attempt(batch, splits, checkpoints, deadline, display)
    except (InUseError, Stopped):
        raise
    except Exception as error:
        story, summary = traceback.format_exc(), f"{type(error).__name__}: {error}"
    else:
        for entry in records.values():
            path = results.save(entry, folder)
            path.with_name(path.stem + CRASH).unlink(missing_ok=True)
        return records
    # Outside of the except block, the exception no longer holds the memory of the runs.
    if len(batch) > 1:
        alone = (_train([config], splits, folder, checkpoints, deadline, display) for config in batch)
        return {name: entry for records in alone for name, entry in records.items()}
    name = results.key(batch[0])
    with atomic_write(folder / (name + CRASH)) as file:
        file.write(story.encode())
    if display:
        display.say(f"{name} crashed: {summary}")
    return {}


def _attempt(
    batch: Sequence[Config], splits: Splits, checkpoints: Path | None, deadline: float, display: Display | None
) -> dict[str, Record]:
    names = [results.key(config) for config in batch]
    jobs = [
        make_job(config, splits, directory=checkpoints and checkpoints / name, name=name)
        for config, name in zip(batch, names, strict=True)
    ]
    with ExitStack() as held:
        if checkpoints is not None:
            for name in dict.fromkeys(names):
                held.enter_context(hold(checkpoints / name))
            for job in jobs:
                _adopt(job, checkpoints)
        outcomes = train(jobs, report=display, deadline=deadline)
    origin = "; tested on: ".join(dict.fromkeys((splits.train.origin, splits.test.origin)))
    return {
        job.name: results.record(
            outcome,
            parameters=sum(parameter.numel() for parameter in job.module.parameters()),
            origin=origin,
            together=len(batch),
        )
        for job, outcome in zip(jobs, outcomes, strict=True)
    }


def _alike(config: Config) -> list[Config]:
    """Return configs that differ from `config` only in how they are tested; none unless it keeps its last epoch."""
    if config.keep != "last":
        return []
    others = (config.replace(keep="best", tta=1), config.replace(tta=1))
    return [other for other in others if other != config]


def _adopt(job: Job, checkpoints: Path) -> None:
    """Reuse the checkpoint of a finished run that differs from `job` only in how it is tested, if there is one."""
    assert job.directory is not None
    own = job.directory / CHECKPOINT
    if own.exists():
        return
    for path in (checkpoints / results.key(other) / CHECKPOINT for other in _alike(job.config)):
        if is_finished(path, job):
            with atomic_write(own) as file:
                file.write(path.read_bytes())
            return


def _data(config: Config) -> tuple[object, ...]:
    return (config.dataset, config.examples, config.copies, config.data_seed, config.device)
