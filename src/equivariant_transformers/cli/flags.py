"""Flags of commands that set fields of `Config`. The help text of a flag is the description of the field."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import typer

from equivariant_transformers.training import Config
from equivariant_transformers.training.config import help_of, kind_of

_METAVARS = {int: "N", float: "X", str: "NAME", tuple: "A,B,...", bool: None}


def flag(field: str, *, default: str | None = None) -> Any:
    """Return the typer option of a field of `Config`. The help shows its default, or the `default` of the command."""
    usual = getattr(Config(), field)
    shown = default or ("none" if usual in (None, ()) else str(usual).lower())
    return typer.Option(
        metavar=_METAVARS[kind_of(field)[0]],
        help=f"{help_of(field)} [dim]({shown})[/dim]",
        show_default=False,
        rich_help_panel="Fields of the config (defaults apply if the preset does not set the field)",
    )


def closest(given: str, known: Sequence[str]) -> str | None:
    """Return the flag that an unknown flag stands for: its initials, its beginning, or a similar spelling.

    >>> flags = ["--layers", "--learning-rate", "--epochs"]
    >>> closest("--lr", flags), closest("--epoch", flags), closest("--learning_rates", flags), closest("--xyz", flags)
    ('--learning-rate', '--epochs', '--learning-rate', None)
    """
    wanted = given.lstrip("-").replace("_", "-")
    names = {flag.lstrip("-"): flag for flag in known if flag.startswith("--")}
    initials = [name for name in names if "".join(word[:1] for word in name.split("-")) == wanted]
    longer = [name for name in names if len(wanted) > 1 and name.startswith(wanted)]
    similar = difflib.get_close_matches(wanted, names, n=1, cutoff=0.7)
    return next((names[name] for name in (*initials, *longer, *similar)), None)
