"""Runs a list of configs: those without a result, several at a time on a GPU, until they are done or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from equivariant_transformers.data import Splits
from equivariant_transformers.experiments import results
from equivariant_transformers.experiments.jobs import find_device, load_data, make_job
from equivariant_transformers.training import Config, Progress, Stopped, train

Report = Callable[[Progress], None]


def run(
    configs: Sequence[Config],
    *,
    folder: Path,
    checkpoints: Path,
    together: int = 1,
    budget: float = math.inf,
    report: Report | None = None,
) -> list[results.Record]:
    """Train and test each of `configs` whose result is not in `folder` yet, and return the records of all.

    Runs on the same data share it, up to `together` at a time. After `budget` seconds `Stopped` is raised: what is
    finished is in `folder`, what is not goes on from its checkpoint the next time.
    """
    deadline = time.monotonic() + budget
    missing = [config for config in configs if results.find(config, folder) is None]
    splits: Splits | None = None
    previous = None
    while missing:
        first = missing[0]
        batch = [config for config in missing if _data(config) == _data(first)][:together]
        if _data(first) != previous:
            splits, previous = load_data(first, find_device(first.device)), _data(first)
        assert splits is not None
        jobs = [make_job(c, splits, directory=checkpoints / results.key(c), name=results.key(c)) for c in batch]
        for job, result in zip(jobs, train(jobs, report=report, deadline=deadline), strict=True):
            parameters = sum(parameter.numel() for parameter in job.module.parameters())
            entry = results.record(result, parameters=parameters, origin=splits.train.origin)
            results.save(entry, folder)
        missing = [config for config in missing if config not in batch]
        if missing and time.monotonic() > deadline:
            raise Stopped("out of time")
    return [found for config in configs if (found := results.find(config, folder)) is not None]


def _data(config: Config) -> tuple[object, ...]:
    return (config.dataset, config.examples, config.copies, config.data_seed, config.device)
