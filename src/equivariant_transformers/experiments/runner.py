"""Runs a list of configs: those without a result, several at a time on a GPU, until they are done or time is up."""

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

_START = {False: 10.0, True: 60.0}  # seconds before the first step and for the test, plain and compiled
CRASH = ".crash.txt"
"""How the names of files end that tell of a run that an error ended."""


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
    """Train and test each of `configs` that has no result yet, and return the records of all that have one.

    Results are looked for in all folders beside `folder`, into which new ones go. Runs on the same data share it, up to
    `together` at a time on a GPU. After `budget` seconds `Stopped` is raised: what is finished is in `folder`; what is
    not goes on from its checkpoint the next time. Without `checkpoints` nothing could go on, so that no run is started
    which, as far as finished ones tell, would not end in time. `options` go to the functions that load the data.
    A run that keeps its last epoch is not trained if a finished one differs from it in its test alone.

    A run that an error ends leaves the error in `folder`, in a file of its own, and is tried again the next time; the
    others go on. A run whose directory in `checkpoints` another process holds raises an `InUseError` at once.
    """
    deadline = time.monotonic() + budget
    folder.mkdir(parents=True, exist_ok=True)  # now, rather than when the first run is done
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "results cannot be written", str(folder))
    known = results.load_all(folder.parent)
    waiting = [config for config in configs if results.key(config) not in known]
    splits: Splits | None = None
    loaded = None
    while waiting:
        batch = _choose(waiting, known, together, deadline - time.monotonic(), resumable=checkpoints is not None)
        if not batch:
            raise Stopped(f"out of time, with {len(waiting)} runs to go")
        waiting = [config for config in waiting if config not in batch]
        if _data(batch[0]) != loaded:
            splits = None  # makes room
            splits, loaded = load_data(batch[0], find_device(batch[0].device), **options), _data(batch[0])
            if time.monotonic() > deadline:
                raise Stopped(f"out of time, with {len(waiting) + len(batch)} runs to go")
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
    """The next configs to train side by side: on the same data as the first, and done in time if they must be."""
    if waiting[0].compile and seconds <= _START[True]:
        return []  # time would be up before the first step
    batch: list[Config] = []
    for config in waiting:
        if seconds <= 0:
            break
        if batch and _data(config) != _data(batch[0]):
            continue
        if resumable and any(other in batch for other in _alike(config)):
            continue  # it waits for the other's state
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
    """Train a batch and save its records; after an error, each run alone."""
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
    # Here the exception is gone, and with it the memory that the runs had.
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
    """Configs that differ from one that keeps the last epoch in their test alone, the first to be had first."""
    if config.keep != "last":
        return []
    others = (config.replace(keep="best", tta=1), config.replace(tta=1))
    return [other for other in others if other != config]


def _adopt(job: Job, checkpoints: Path) -> None:
    """Give a job that has no state that of a finished run that was trained as it would be, if there is one."""
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
