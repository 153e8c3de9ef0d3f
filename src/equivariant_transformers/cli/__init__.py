"""Command line interface: the command `et`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from equivariant_transformers import install

_NEEDED = ("rich", "typer", "yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        from equivariant_transformers.cli.app import run
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        print(f"error: et needs {package}: {install.command('train')}", file=sys.stderr)
        return 1
    return run(sys.argv[1:] if arguments is None else list(arguments))
