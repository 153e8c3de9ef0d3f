"""Flags of commands that set fields of `Config`; the help is the description of the field."""

from __future__ import annotations

from typing import Any

import typer

from equivariant_transformers.training import Config
from equivariant_transformers.training.config import help_of, kind_of

_METAVARS = {int: "N", float: "X", str: "NAME", tuple: "A,B,...", bool: None}


def flag(field: str) -> Any:
    """Return the typer option of a field of `Config`, for the annotation of a parameter that is None by default."""
    default = getattr(Config(), field)
    shown = "none" if default in (None, ()) else str(default).lower()
    return typer.Option(
        metavar=_METAVARS[kind_of(field)[0]],
        help=f"{help_of(field)} [dim]({shown})[/dim]",
        show_default=False,
        rich_help_panel="Fields of the config, with their defaults where no preset sets them",
    )
