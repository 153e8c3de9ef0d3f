"""Reproduction of a table or figure by its name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equivariant_transformers.experiments import report, rotation
from equivariant_transformers.experiments import results as records
from equivariant_transformers.experiments.cluster import run as run_on_cluster
from equivariant_transformers.experiments.display import Display
from equivariant_transformers.experiments.field import EXPERIMENTS
from equivariant_transformers.experiments.figures import FIGURES, NothingToDraw
from equivariant_transformers.experiments.runner import CRASH, run
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.training import Config, Stopped
from equivariant_transformers.training.job import find_device

NAMES = (*EXPERIMENTS, rotation.NAME, *FIGURES)
"""Names of the tables and figures that can be reproduced."""
PAGES = (Path("docs/reproduction.md"), Path("docs/lab-notebook.md"), Path("docs/field.md"))
"""Pages with tables of results, relative to the root of the repository."""


def check(name: str, only: Sequence[str] = ()) -> None:
    """Raise a `ValueError` if there is no experiment `name`, or if its table has no rows or columns `only`."""
    lookup(dict.fromkeys(NAMES), name, "experiment")
    if name in EXPERIMENTS:
        EXPERIMENTS[name].configs(only=only)


def reproduce(
    name: str,
    *,
    results: Path = Path("results"),
    checkpoints: Path | None = Path("runs"),
    budget: float = math.inf,
    together: int | None = None,
    only: Sequence[str] = (),
    seeds: int | None = None,
    fast: bool = False,
    accept_other_files: bool = False,
    device: str = "auto",
    out: Path = Path("out"),
    workers: int | None = None,
    cluster: str = "local",
) -> bool:
    """Train the missing runs of the table or figure `name`, print the table, and return whether no run crashed.

    Interrupted runs are resumed, and finished runs are not repeated. After a signal the table is printed and `Stopped`
    is raised. To merge results of several machines, copy their result files.

    Args:
        name: one of `NAMES`.
        results: folder of the result files.
        checkpoints: folder of the checkpoints. None writes no checkpoints, and starts no run that is expected to
            exceed the budget.
        budget: seconds after which all runs are saved and stopped.
        together: number of runs that share a GPU; the experiment's own number by default.
        only: rows or columns of the table to run; all by default.
        seeds: number of runs per cell; the experiment's own number by default.
        fast: compile the networks and use bfloat16, for GPUs. Records and report state this.
        accept_other_files: accept SVHN files that differ from the official files. Records and report state this.
        device: a torch device, or auto.
        out: folder to write figures to.
        workers: number of workers that train at the same time, through submitit; None to train in this process.
        cluster: `local` for workers on this machine, each with one GPU if there is one, or `slurm`.
    """
    check(name, only)
    if workers is not None and name not in EXPERIMENTS:
        raise ValueError(f"{name} has no runs to share among workers; the tables are: {', '.join(EXPERIMENTS)}")
    if name in FIGURES:
        path = out / f"{name}.png"
        try:
            FIGURES[name](results, path)
            print(path)
        except NothingToDraw as nothing:
            print(f"nothing to draw: {nothing}")
        return True
    display = Display(budget)
    configs: list[Config] = []
    stopped: Stopped | None = None
    try:
        if name == rotation.NAME:
            rotation.reproduce(results, device=find_device(device), budget=budget, say=display.say)
        else:
            experiment = EXPERIMENTS[name]
            configs = experiment.configs(seeds=seeds, only=only, fast=fast)
            options: dict[str, Any] = {
                "folder": results / name,
                "checkpoints": checkpoints,
                "together": experiment.together if together is None else together,
                "budget": budget,
                "display": display,
                "accept_other_files": accept_other_files,
            }
            missing = [config.replace(device=device) for config in configs]
            if workers is None:
                run(missing, **options)
            else:
                logs = (checkpoints or Path("runs")) / "workers"
                run_on_cluster(missing, workers=workers, cluster=cluster, logs=logs, **options)
    except Stopped as reason:
        stopped = reason
        display.say(f"{stopped}; the same command resumes")
    finally:
        display.close()
    print(report.table(name, results))
    known = records.load_all(results)
    names = (records.key(config) for config in configs)
    crashes = [key + CRASH for key in names if key not in known and (results / name / (key + CRASH)).exists()]
    if stopped and stopped.signal:
        raise stopped
    if crashes:
        print(f"\nruns crashed; their tracebacks are in {results / name}: {', '.join(crashes)}")
    return not crashes


def write_report(page: Path, *others: Path, results: Path = Path("results")) -> None:
    """Update the tables of all pages and the figures of results beside `page`. Nothing is trained."""
    for each in (page, *others):
        report.write_page(each, results)
    for name in ("figure-learning-rates", "figure-validation", "figure-rotation"):
        path = page.parent / "figures" / f"{name.removeprefix('figure-').replace('-', '_')}.png"
        try:
            FIGURES[name](results, path)
            print(path)
        except NothingToDraw as nothing:
            print(f"{path.name}: {nothing}")
