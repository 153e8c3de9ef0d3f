"""`et reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equivariant_transformers.cli import console
from equivariant_transformers.cli.data import AcceptOtherFiles
from equivariant_transformers.experiments import command
from equivariant_transformers.experiments.cluster import CLUSTERS
from equivariant_transformers.experiments.display import parse_duration
from equivariant_transformers.training import Stopped
from equivariant_transformers.training.job import find_device


def reproduce_experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"Table or figure: {', '.join(command.NAMES)}.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time after which all runs stop: 90s, 25m, 1h30m.")
    ] = None,
    results: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the result files.")] = Path("results"),
    checkpoints: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the checkpoints.")] = Path("runs"),
    no_checkpoints: Annotated[
        bool,
        typer.Option("--no-checkpoints", help="Write no checkpoints, and start only runs that end within the budget."),
    ] = False,
    together: Annotated[int | None, typer.Option(min=1, help="Number of runs that share a GPU.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Row or column of the table to run; may be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of runs per cell.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Train with this many workers at the same time, through submitit: one per GPU."),
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="Place of the workers: local (this machine) or slurm.")
    ] = "local",
    fast: Annotated[bool, typer.Option("--fast", help="Compile the networks and use bfloat16, for GPUs.")] = False,
    accept_other_files: AcceptOtherFiles = False,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write figures to.")] = Path("out"),
    report: Annotated[bool, typer.Option("--report", help="Train nothing; update the pages of results.")] = False,
    page: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help=f"Page of results; may be repeated ({', '.join(map(str, command.PAGES))})."),
    ] = None,
) -> None:
    """Reproduce a table or a figure of the paper: train the missing runs and print the table with the paper's values.

    The same command resumes interrupted runs and does not repeat finished runs. To merge results of several machines,
    copy their result files.
    """
    if report:
        command.write_report(*(page or command.PAGES), results=results)
        return
    if name is None:
        raise typer.BadParameter(f"nothing to reproduce; give one of {', '.join(command.NAMES)}")
    with console.usage():
        find_device(device)
        seconds = float("inf") if budget is None else parse_duration(budget)
        command.check(name, only or ())
        if cluster not in CLUSTERS:
            raise ValueError(f"cluster must be {' or '.join(CLUSTERS)}, got {cluster!r}")
    try:
        sound = command.reproduce(
            name,
            results=results,
            checkpoints=None if no_checkpoints else checkpoints,
            budget=seconds,
            together=together,
            only=only or (),
            seeds=seeds,
            fast=fast,
            accept_other_files=accept_other_files,
            device=device,
            out=out,
            workers=workers,
            cluster=cluster,
        )
    except Stopped as stopped:
        raise console.Failure(str(stopped), console.code_of(stopped.signal)) from None
    if not sound:
        raise console.Failure("some runs crashed")
