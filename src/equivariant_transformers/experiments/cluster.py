"""Sweeps by several workers through submitit: processes of this machine, one per GPU, or jobs of a SLURM cluster."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equivariant_transformers import install
from equivariant_transformers.experiments import results, runner
from equivariant_transformers.experiments.display import Display
from equivariant_transformers.training import Config, Stopped
from equivariant_transformers.training.loop import signals

CLUSTERS = ("local", "slurm")
_MINUTES = 24 * 60  # limit of a job without a budget; it is submitted again then, and resumes
_MARGIN = 10  # minutes for the start of a job and for saving


@dataclass(frozen=True)
class Share:
    """Runs of one worker. A call trains them and returns the reason if it was stopped before the end."""

    configs: Sequence[Config]
    options: dict[str, Any]
    """Options of `runner.run`."""

    def __call__(self) -> str | None:
        try:
            runner.run(self.configs, **self.options)
        except Stopped as stopped:
            return str(stopped)
        return None

    def checkpoint(self) -> Any:
        """Return what submitit submits again if the job is preempted: the same runs, which resume."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run(
    configs: Sequence[Config],
    *,
    workers: int,
    cluster: str,
    logs: Path,
    folder: Path,
    budget: float = math.inf,
    display: Display | None = None,
    **options: Any,
) -> None:
    """Train and test each of `configs` that has no result yet, with several workers at the same time.

    Each worker writes the results of its runs to `folder`, as `runner.run` does. After a signal, all workers are
    cancelled and `Stopped` is raised. The same call resumes.

    Args:
        configs: runs to train.
        workers: number of workers. On this machine, each has one GPU if there is one.
        cluster: `local` for processes of this machine, or `slurm`.
        logs: folder of submitit's files, among them the output of each worker.
        folder: folder of the results.
        budget: seconds after which each worker stops.
        display: display of the progress.
        options: other options of `runner.run`.
    """
    if cluster not in CLUSTERS:
        raise ValueError(f"cluster must be {' or '.join(CLUSTERS)}, got {cluster!r}")
    known = results.load_all(folder.parent)
    shares = split([config for config in configs if results.key(config) not in known], workers)
    if not shares:
        return
    logs.mkdir(parents=True, exist_ok=True)
    executor = _executor(cluster, logs, budget)
    on_gpu = any(config.device != "cpu" for config in configs)
    gpus = visible_gpus() if cluster == "local" else ()
    jobs = []
    with signals() as signalled:
        for number, share in enumerate(shares):
            if cluster == "local" and gpus and on_gpu:
                executor.update_parameters(gpus_per_node=1, local_visible_gpus=[gpus[number % len(gpus)]])
            elif cluster == "slurm" and on_gpu:
                executor.update_parameters(gpus_per_node=1)
            job = executor.submit(Share(share, {"folder": folder, "budget": budget, **options}))
            jobs.append(job)
            if display:
                display.say(f"worker {number + 1} trains {len(share)} runs, output in {job.paths.stdout}")
        while not all(job.done() for job in jobs) and not signalled:
            time.sleep(0.2)
        if signalled:
            for job in jobs:
                job.cancel()
            raise Stopped(f"stopped by {signalled[0]}", signal=signalled[0])
    _collect(jobs)


def split(configs: Sequence[Config], workers: int) -> list[list[Config]]:
    """Deal `configs` to at most `workers` workers. Runs that differ only in how they are tested stay together.

    >>> configs = [Config(seed=seed) for seed in range(5)]
    >>> [[config.seed for config in share] for share in split(configs, 2)]
    [[0, 2, 4], [1, 3]]
    """
    groups: dict[Config, list[Config]] = {}
    for config in configs:
        groups.setdefault(config.replace(keep="best", tta=1), []).append(config)
    shares: list[list[Config]] = [[] for _ in range(min(workers, len(groups)))]
    for number, group in enumerate(groups.values()):
        shares[number % len(shares)] += group
    return shares


def visible_gpus() -> tuple[int, ...]:
    """Return the numbers of the GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(name.isdigit() for name in named):
        return tuple(map(int, named))
    return tuple(range(torch.cuda.device_count()))


def _executor(cluster: str, logs: Path, budget: float) -> Any:
    try:
        import submitit
    except ImportError as error:
        message = f"several workers need the package submitit: {install.command('cluster')}"
        raise ModuleNotFoundError(message) from error
    executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
    minutes = _MINUTES if math.isinf(budget) else math.ceil(budget / 60) + _MARGIN
    executor.update_parameters(name="et-reproduce", timeout_min=minutes)
    return executor


def _collect(jobs: Sequence[Any]) -> None:
    """Raise an error if a worker failed, and `Stopped` if one was stopped."""
    failures = [(job, error) for job in jobs if (error := job.exception()) is not None]
    if failures:
        job, error = failures[0]
        last = str(error).strip().splitlines()[-1:]
        raise RuntimeError(f"{len(failures)} of {len(jobs)} workers failed: {''.join(last)}; see {job.paths.stderr}")
    reasons = [reason for job in jobs if (reason := job.result()) is not None]
    if reasons:
        raise Stopped(reasons[0])
