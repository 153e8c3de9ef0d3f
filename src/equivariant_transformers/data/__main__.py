"""`python -m equivariant_transformers.data`: list the data sets, fetch a data set, or draw its contact sheet."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from equivariant_transformers.data import commands, registry
from equivariant_transformers.data.progress import ProgressLines
from equivariant_transformers.text import visible


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return 0 on success, 1 after an error on stderr; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(prog="python -m equivariant_transformers.data", description="Manage data sets.")
    verbs = parser.add_subparsers(dest="command", required=True)
    verbs.add_parser("list", help="list the data sets")
    for verb, summary in (("fetch", "download or generate a data set"), ("show", "draw images of every class")):
        command = verbs.add_parser(verb, help=summary)
        command.add_argument("name", help="name of a data set, folder of images, or CSV file")
        command.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="e.g. examples=10000")
        if verb == "show":
            command.add_argument("--out", type=Path, help="PNG file to write (default: NAME.png, or NAME-sheet.png)")
    given = parser.parse_args(arguments)
    if given.command == "list":
        print(commands.list_datasets())
        return 0

    try:
        options = commands.parse_options(given.option)
        registry.prepare(given.name, **options)
    except ValueError as error:
        parser.error(visible(str(error)))
    progress = ProgressLines()
    try:
        if given.command == "fetch":
            print(visible(commands.fetch(given.name, progress=progress, **options)))
        else:
            print(visible(commands.show(given.name, given.out, progress=progress, **options), keep="\n"))
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        progress.stop()
        print(f"error: {visible(' '.join(str(error).split()))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
