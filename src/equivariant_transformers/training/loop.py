"""Training loop of one run, or of several runs that share a GPU, which resumes interrupted runs."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from equivariant_transformers.data.stored import UnreadableError
from equivariant_transformers.training import distributed, memory
from equivariant_transformers.training.loggers import Guarded, Logger, write_history
from equivariant_transformers.training.run import Job, Progress, Result, Run


class Stopped(Exception):  # noqa: N818 (like StopIteration, it is not a failure)
    """Exception for training that was stopped by a signal or by its deadline. The state is saved."""

    def __init__(self, message: str, signal: str | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        """Name of the signal; None after the deadline."""


def train(
    jobs: Sequence[Job],
    *,
    report: Callable[[Progress], None] | None = None,
    on_epoch: Logger | Sequence[Logger] = (),
    save_every: float = 10.0,
    deadline: float = math.inf,
) -> list[Result]:
    """Train the `jobs`, side by side on a GPU, and test each with the weights of its best or last epoch.

    After each epoch, `on_epoch` is called with an `Epoch`: one function, or several. An error in it is a warning, and
    the training continues. `history.csv` in the directory of a job has a row per epoch.

    A job whose directory holds a checkpoint of the same config resumes from it, and gives the same result as an
    uninterrupted run. The state is saved at the end of an epoch if `save_every` seconds have passed since the last
    time. On SIGTERM or SIGINT, and after `deadline` (on the clock of `time.monotonic`), the state is saved after the
    current step and `Stopped` is raised. It is saved as well if an image can no longer be read. Afterwards each module
    holds the weights that were tested.
    """
    if isinstance(jobs, Job):
        raise TypeError("train takes a list of jobs: write train([job])")
    on_cpu = jobs[0].train.epoch(0).device.type == "cpu"
    if on_cpu:
        memory.keep()
    if on_cpu and len(jobs) > 1:
        options: dict[str, Any] = {"report": report, "on_epoch": on_epoch}
        return [train([job], **options, save_every=save_every, deadline=deadline)[0] for job in jobs]
    log = Guarded([write_history, *([on_epoch] if callable(on_epoch) else on_epoch)])
    torch.manual_seed(jobs[0].config.seed + distributed.rank())
    runs: list[Run] = []
    try:
        runs.extend(Run(job) for job in jobs)
        for run in runs:
            run.resume()
        try:
            _run_epochs(runs, report, log, save_every, deadline)
        except UnreadableError:  # raised before the step: the state is that after the step before
            for run in runs:
                if not run.finished:
                    run.save()
            raise
        return [run.conclude() for run in runs]
    finally:
        for run in runs:
            run.optimization.close()
            for loader in (run.job.train, run.job.validation, run.job.test):
                loader.close()


def _run_epochs(
    runs: Sequence[Run],
    report: Callable[[Progress], None] | None,
    log: Logger,
    save_every: float,
    deadline: float,
) -> None:
    """Train until every run has finished."""
    last_save = time.monotonic()
    with signals() as signalled:
        while active := [run for run in runs if not run.finished]:
            for run in active:
                run.begin()
            for step in range(max(run.steps for run in active)):
                for run in active:
                    if run.step <= step < run.steps:
                        run.take_step()
                        if report:
                            report(run.progress())
                late = time.monotonic() > deadline
                if distributed.any_process(bool(signalled) or late, active[0].optimization.device):
                    _stop(active, None if late else signalled)
            for run in active:
                run.finish_epoch()
                if report:
                    report(run.progress())
                if distributed.rank() == 0:
                    log(run.ended_epoch())
            if time.monotonic() - last_save > save_every or any(run.finished for run in active):
                for run in active:
                    run.save()
                last_save = time.monotonic()
            if distributed.any_process(bool(signalled), active[0].optimization.device):
                _stop(active, signalled)


def _stop(active: Sequence[Run], signalled: Sequence[str] | None) -> NoReturn:
    """Save all runs and raise `Stopped`: out of time if `signalled` is None, else by a signal to any process."""
    for run in active:
        run.save()
    if signalled is None:
        raise Stopped("out of time")
    name = signalled[0] if signalled else "a signal"
    raise Stopped(f"stopped by {name}", signal=name)


@contextmanager
def signals() -> Iterator[list[str]]:
    """Collect the names of SIGTERM and SIGINT signals, which then do not end the process."""
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    wanted = (signal.SIGTERM, signal.SIGINT)
    previous = {
        number: signal.signal(number, lambda n, _: received.append(signal.Signals(n).name)) for number in wanted
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
