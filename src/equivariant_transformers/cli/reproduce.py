"""`et reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equivariant_transformers.cli import console
from equivariant_transformers.cli.data import AcceptOtherFiles
from equivariant_transformers.experiments import command
from equivariant_transformers.experiments.display import parse_duration
from equivariant_transformers.training import Stopped
from equivariant_transformers.training.job import find_device


def reproduce_experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"A table or a figure: {', '.join(command.NAMES)}.")
    ] = None,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Stop in time: 90s, 25m, 1h30m.")] = None,
    results: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the result files.")] = Path("results"),
    checkpoints: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs' states.")] = Path("runs"),
    no_checkpoints: Annotated[
        bool, typer.Option("--no-checkpoints", help="The states would be lost: start only what ends in time.")
    ] = False,
    together: Annotated[int | None, typer.Option(min=1, help="Runs that share a GPU.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A row or a column of the table; may be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs for each cell.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Compile the networks and use bfloat16, for GPUs.")] = False,
    accept_other_files: AcceptOtherFiles = False,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that figures are drawn into.")] = Path("out"),
    report: Annotated[bool, typer.Option("--report", help="Run nothing; update the pages of results.")] = False,
    page: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help=f"A page of results; may be repeated ({', '.join(map(str, command.PAGES))})."
        ),
    ] = None,
) -> None:
    """Make a table or a figure of the paper: train what is missing, then print it beside the paper's figures.

    Interrupted work goes on with the same command, and finished runs are not repeated. Results of several machines
    merge by copying their files.
    """
    if report:
        command.write_report(*(page or command.PAGES), results=results)
        return
    if name is None:
        raise typer.BadParameter(f"what shall be made? One of {', '.join(command.NAMES)}")
    with console.usage():
        find_device(device)
        seconds = float("inf") if budget is None else parse_duration(budget)
        command.check(name, only or ())
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
        )
    except Stopped as stopped:
        raise console.Failure(str(stopped), console.code_of(stopped.signal)) from None
    if not sound:
        raise console.Failure("some runs crashed")
