"""The command line: `python -m equivariant_transformers.experiments table1 --budget 25m --fast`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from equivariant_transformers.experiments.command import NAMES, reproduce, write_report
from equivariant_transformers.experiments.display import parse_duration


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 0, 1 if a run crashed, 2 for a wrong command."""
    parser = argparse.ArgumentParser(
        prog="python -m equivariant_transformers.experiments", description="Make a table or a figure of the paper."
    )
    parser.add_argument("name", nargs="?", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--budget", type=_duration, default=math.inf, help="stop in time: 90s, 25m, 1h30m")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the result files")
    parser.add_argument("--checkpoints", type=Path, default=Path("runs"), help="folder of the runs' states")
    parser.add_argument(
        "--no-checkpoints", action="store_true", help="the states would be lost: start only what ends in time"
    )
    parser.add_argument("--together", type=int, metavar="N", help="runs that share a GPU")
    parser.add_argument("--only", metavar="ROW", help="one row of the table")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs for each cell")
    parser.add_argument("--fast", action="store_true", help="compile the networks and use bfloat16, for GPUs")
    parser.add_argument("--device", default="auto", help="a torch device")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder that figures are drawn into")
    parser.add_argument("--report", action="store_true", help="run nothing, bring the page of results up to date")
    parser.add_argument("--page", type=Path, default=Path("docs/reproduction.md"), help="the page of results")
    chosen = parser.parse_args(arguments)
    if chosen.report:
        write_report(chosen.page, results=chosen.results)
        return 0
    if chosen.name is None:
        parser.error(f"what shall be made? One of {', '.join(NAMES)}")
    try:
        sound = reproduce(
            chosen.name,
            results=chosen.results,
            checkpoints=None if chosen.no_checkpoints else chosen.checkpoints,
            budget=chosen.budget,
            together=chosen.together,
            only=chosen.only,
            seeds=chosen.seeds,
            fast=chosen.fast,
            device=chosen.device,
            out=chosen.out,
        )
    except ValueError as error:
        parser.error(str(error))
    return 0 if sound else 1


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
