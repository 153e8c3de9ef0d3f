"""`python -m equivariant_transformers.data`: list the data sets, fetch one, or draw a contact sheet of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from equivariant_transformers.data import commands, registry
from equivariant_transformers.data.progress import ProgressLines
from equivariant_transformers.text import visible


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command: 0 if it went well, 1 with a line on stderr if not; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(prog="python -m equivariant_transformers.data", description="The data sets.")
    verbs = parser.add_subparsers(dest="command", required=True)
    verbs.add_parser("list", help="what there is")
    for verb, summary in (("fetch", "download or make a data set"), ("show", "draw some images of every class")):
        command = verbs.add_parser(verb, help=summary)
        command.add_argument("name")
        command.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="as in examples=10000")
        if verb == "show":
            command.add_argument("--out", type=Path, help="the PNG file to write, NAME.png if not given")
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
            out = given.out or Path(f"{given.name}.png")
            print(visible(str(commands.show(given.name, out, progress=progress, **options))))
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        progress.stop()
        print(f"error: {visible(' '.join(str(error).split()))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
