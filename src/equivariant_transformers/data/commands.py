"""Data set commands of the command line: list, fetch and show."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equivariant_transformers.data.registry import DATASETS, load


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse options such as `examples=10000` into a dictionary.

    >>> parse_options(["extra=True", "root=somewhere"])
    {'extra': True, 'root': 'somewhere'}
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"an option must be NAME=VALUE, got {text!r}")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # endless brackets raise the last two
            options[name] = value
    return options


def list_datasets() -> str:
    """Return a table of the data sets: name, size of the download, licence terms and description."""
    rows = [("name", "download", "terms", "what it is")]
    rows += [(s.name, f"{s.download_bytes / 1e6:.0f} MB", s.licence, s.summary) for s in DATASETS.values()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def fetch(name: str, **options: Any) -> str:
    """Download or generate a data set, and return a one-line summary."""
    splits = load(name, **options)
    counts = ", ".join(f"{len(part):,} {field}" for field, part in zip(splits._fields, splits, strict=True))
    shape = " x ".join(map(str, splits.train.images.shape[1:]))
    origins = "; ".join(dict.fromkeys(part.origin for part in splits))
    megabytes = sum(part.images.numel() for part in splits) / 1e6
    return f"{name}: {counts}; images of {shape}, {megabytes:.0f} MB in memory; origin: {origins}"


def show(name: str, out: Path, **options: Any) -> Path:
    """Write a contact sheet of the training images as a PNG file."""
    from equivariant_transformers.data.sheet import contact_sheet

    sheet = contact_sheet(load(name, **options).train)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out, format="PNG")
    return out
