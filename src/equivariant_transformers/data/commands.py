"""Data set commands of the command line: list, fetch and show."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equivariant_transformers.data.imageset import Splits
from equivariant_transformers.data.registry import DATASETS, is_own, load, own_name
from equivariant_transformers.text import visible

_LISTED = 20  # classes of a table


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
    return _table(rows, str.ljust)


def _table(rows: Sequence[tuple[str, ...]], justify: Callable[[str, int], str]) -> str:
    """Return rows as lines. The first column is aligned to the left, the others by `justify`."""
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([name.ljust(first), *map(justify, cells, widths)] for name, *cells in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def fetch(name: str, **options: Any) -> str:
    """Download or generate a data set, and return a one-line summary."""
    splits = load(name, **options)
    counts = ", ".join(f"{len(part):,} {field}" for field, part in zip(splits._fields, splits, strict=True))
    shape = " x ".join(map(str, splits.train.images.shape[1:]))
    origins = "; ".join(dict.fromkeys(part.origin for part in splits))
    megabytes = sum(math.prod(part.images.shape) for part in splits) / 1e6
    return f"{name}: {counts}; images of {shape}, {megabytes:.0f} MB in memory; origin: {origins}"


def show(name: str, out: Path | None, **options: Any) -> str:
    """Write a contact sheet of the training images as a PNG file, and return the numbers of images and its path.

    The default of `out` is NAME.png, and NAME-sheet.png for a folder or a CSV file, in the current folder.
    """
    from equivariant_transformers.data.sheet import contact_sheet

    own = is_own(name)
    splits = load(name, **(options | ({"memory": 0} if own else {})))  # only files know the size of the original
    out = out or Path(f"{own_name(name)}{'-sheet' * own}.png")
    sheet = contact_sheet(splits.train)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out, format="PNG")
    return f"{count_classes(splits)}\n{out}"


def count_classes(splits: Splits) -> str:
    """Return a table of the number of images per class and part, with totals. At most 20 classes are listed.

    If the labels are rows of numbers, the table has the mean of each column.
    """
    classes = splits.train.classes
    rows: list[tuple[str, ...]]
    if splits.train.labels.ndim == 2:
        means = [part.labels.mean(0).tolist() if len(part) else [math.nan] * len(classes) for part in splits]
        rows = [("mean of", *splits._fields)]
        rows += [(name, *(f"{part[label]:.4g}" for part in means)) for label, name in enumerate(classes[:_LISTED])]
        rows += [(f"{len(classes) - _LISTED:,} more", "", "", "")] if len(classes) > _LISTED else []
        rows.append(("images", *(f"{len(part):,}" for part in splits)))
        return _table([(visible(name), *cells) for name, *cells in rows], str.rjust)
    counts = [part.labels.bincount(minlength=len(classes)).tolist() for part in splits]
    rows = [("class", *splits._fields)]
    rows += [(name, *(f"{part[label]:,}" for part in counts)) for label, name in enumerate(classes[:_LISTED])]
    if len(classes) > _LISTED:
        rows.append((f"{len(classes) - _LISTED:,} more", *(f"{sum(part[_LISTED:]):,}" for part in counts)))
    rows.append(("all", *(f"{len(part):,}" for part in splits)))
    return _table([(visible(name), *cells) for name, *cells in rows], str.rjust)
