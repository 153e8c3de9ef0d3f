"""Flags of commands that set fields of `Config`. The help text of a flag is the description of the field."""

from __future__ import annotations

from typing import Any

import typer

from equivariant_transformers.training import Config
from equivariant_transformers.training.config import help_of, kind_of

_METAVARS = {int: "N", float: "X", str: "NAME", tuple: "A,B,...", bool: None}


def flag(field: str) -> Any:
    """Return the typer option of a field of `Config`, to annotate a parameter with default None."""
    default = getattr(Config(), field)
    shown = "none" if default in (None, ()) else str(default).lower()
    return typer.Option(
        metavar=_METAVARS[kind_of(field)[0]],
        help=f"{help_of(field)} [dim]({shown})[/dim]",
        show_default=False,
        rich_help_panel="Fields of the config (defaults apply if the preset does not set the field)",
    )
