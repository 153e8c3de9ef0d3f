"""`python -m equivariant_transformers.data`: list the data sets, fetch one, or draw a contact sheet of it."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equivariant_transformers.data import commands, registry


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command: 0 if it went well, 1 with a line on stderr if not; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(prog="python -m equivariant_transformers.data", description="The data sets.")
    verbs = parser.add_subparsers(dest="command", required=True)
    verbs.add_parser("list", help="what there is")
    for verb, summary in (("fetch", "download or make a data set"), ("show", "draw some images of every class")):
        command = verbs.add_parser(verb, help=summary)
        command.add_argument("name")
        command.add_argument(
            "--option", action="append", default=[], type=_option, metavar="NAME=VALUE", help="as in examples=10000"
        )
        if verb == "show":
            command.add_argument("--out", type=Path, help="the PNG file to write, NAME.png if not given")
    given = parser.parse_args(arguments)
    if given.command == "list":
        print(commands.list_datasets())
        return 0

    options = dict(given.option)
    try:
        registry.prepare(given.name, **options)
    except ValueError as error:
        parser.error(str(error))
    progress = Progress()
    try:
        if given.command == "fetch":
            print(commands.fetch(given.name, progress=progress, **options))
        else:
            out = given.out or Path(f"{given.name}.png")
            print(commands.show(given.name, out, progress=progress, **options))
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        progress.stop()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"NAME=VALUE is needed, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


class Progress:
    """Tells on stderr how far something is: as a bar on a terminal, elsewhere as a line for every quarter."""

    def __init__(self) -> None:
        self.bar = sys.stderr.isatty()
        self.shown = ("", -1)

    def __call__(self, what: str, share: float) -> None:
        step = int(share * (40 if self.bar else 4))
        if (what, step) == self.shown:
            return
        self.shown = (what, step)
        if self.bar:
            print(f"\r{what} [{'#' * step:40}] {share:4.0%}", end="", file=sys.stderr, flush=True)
            if share >= 1:
                self.stop()
        else:
            print(f"{what}: {share:.0%}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """End the line of the bar, if there is one."""
        if self.bar and self.shown[0]:
            print(file=sys.stderr)
            self.shown = ("", -1)


if __name__ == "__main__":
    sys.exit(main())
