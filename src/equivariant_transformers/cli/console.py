"""Output of the commands: results on stdout, messages and progress on stderr. Under torchrun only process 0 prints.

All text is escaped by `visible`, so that a file name cannot move the cursor, change colours or hide itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from equivariant_transformers.data.cache import Report
from equivariant_transformers.data.progress import ProgressLines
from equivariant_transformers.text import visible

FAILED, WRONG_USAGE, DIVERGED, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143
"""Exit codes."""

ERR = Console(stderr=True, highlight=False, emoji=False)  # prints :smile: in a name as it is

_UNLIMITED = 10_000  # columns


def out() -> Console:
    """Return a console for stdout. Lines are not wrapped if stdout is not a terminal."""
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNLIMITED
    return console


class Failure(Exception):  # noqa: N818 (an interrupted run raises it too)
    """Error of a command: a complete message and the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def usage() -> Iterator[None]:
    """Turn a `FileNotFoundError` or `ValueError` in the block, which checks arguments, into a usage error."""
    try:
        yield
    except (FileNotFoundError, ValueError) as error:
        raise Failure(reason(error), WRONG_USAGE) from error


def reason(error: Exception) -> str:
    """Return the message of an error. That of the system about a file is `NAME: what went wrong`.

    >>> reason(FileNotFoundError(2, "No such file or directory", "photos"))
    'photos: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def code_of(signal: str | None) -> int:
    """Return the exit code of a command that was stopped by `signal`."""
    return INTERRUPTED if signal == "SIGINT" else TERMINATED


def speaks() -> bool:
    """Return whether this process prints: it is the only process, or process 0 under torchrun."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print a line of the result to stdout."""
    if speaks():
        out().print(visible(text, keep="\n"), markup=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a message to stderr."""
    if speaks():
        ERR.print(visible(text, keep="\n"), markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    if speaks():
        ERR.print(f"warning: {_one_line(text)}", style="yellow", markup=False, soft_wrap=True)


def error(text: str) -> None:
    """Print an error to stderr, from any process."""
    who = "" if speaks() else f"process {os.environ['RANK']}: "
    ERR.print(f"{who}error: {_one_line(text)}", style="bold red", markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON to stdout."""
    if speaks():
        print(json.dumps(value, indent=1, allow_nan=False))


def table(*columns: str, rows: list[list[str]], most: int | None = None) -> None:
    """Print a table to stdout. Columns whose name starts with `>` are aligned to the right.

    Of more than `most` rows, the rest is counted in a last row.
    """
    if most is not None and len(rows) > most:
        rows = [*rows[:most], [f"{len(rows) - most:,} more", *[""] * (len(columns) - 1)]]
    shown = Table(header_style="bold", show_header=any(columns), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        shown.add_row(*(Text(visible(cell)) for cell in row))  # Text: brackets in names are not markup
    screen = out()
    with screen.capture() as captured:
        screen.print(shown)
    if speaks():
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


@contextmanager
def loading() -> Iterator[Report]:
    """Yield a function that shows the progress of loading data: bars on a terminal, else a line per quarter."""
    if not speaks():
        yield lambda *_: None
    elif not ERR.is_terminal:
        yield ProgressLines()
    else:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=ERR, transient=True) as progress:
            tasks: dict[str, Any] = {}

            def report(what: str, share: float) -> None:
                if what not in tasks:
                    tasks[what] = progress.add_task(visible(what), total=1.0)
                progress.update(tasks[what], completed=share)

            yield report


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))
