"""CSV tables of image files with their classes or numbers and, optionally, their parts of the data."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from equivariant_transformers.data.files import check_regular
from equivariant_transformers.data.tree import PART_NAMES, Files, Tree, scan
from equivariant_transformers.limits import MOST_CLASSES
from equivariant_transformers.text import quote, visible

COLUMNS = ("path", "label", "split")
_HEADERS = "path,label or path,label,split, or path and columns of numbers"
_MOST_BYTES = 2**28  # about 5 million rows
_NAMED_AT_MOST = 5


def is_table(path: str | Path) -> bool:
    """Return whether `path` is a CSV file, by its ending."""
    return Path(path).suffix.lower() == ".csv" and os.path.isfile(path)


def find_images(path: str | Path, *, labels: bool = True) -> Tree:
    """Find the files that a folder holds or a CSV table lists, without reading them."""
    return read_table(path, labels=labels) if is_table(path) else scan(path, labels=labels)


def read_table(path: str | Path, *, labels: bool = True) -> Tree:
    """Return the files of a CSV table, in its order.

    The first line has the names of the columns: `path`, `label` and, optionally, `split`. In place of `label` there can
    be columns of numbers with other names. A path is relative to the folder of the table and does not leave it. A split
    is `train`, `validation` (or `valid`, `val`) or `test`. Without `labels`, the file has the paths at least, and all
    files are of one class. A mistake raises a ValueError with its line.
    """
    path = Path(path)
    found: dict[str, list[tuple[Path, str | list[float]]]] = {}
    numbers: list[str] = []
    lines: dict[Path, int] = {}
    absent: list[str] = []
    for line, row in _rows(path, labels):
        file = _file(path, line, row["path"])
        if first := lines.get(file):
            raise _mistake(path, line, f"{quote(row['path'])} is in line {first} too; list every image once")
        lines[file] = line
        numbers = [name for name in row if name not in COLUMNS] if labels else []
        label = [_number(path, line, name, row[name]) for name in numbers] or (row["label"] if labels else "image")
        if not label:
            raise _mistake(path, line, "the label is empty; write the name of the class")
        part = PART_NAMES.get(row.get("split", "train"))
        if part is None:
            allowed = ", ".join(PART_NAMES)
            raise _mistake(path, line, f"the split must be one of {allowed}, got {quote(row['split'])}")
        if not os.path.isfile(file):  # False for names that are too long, too
            absent.append(f"line {line}: {visible(row['path'])}")
        found.setdefault(part, []).append((file, label))
    if absent:
        more = f" and {len(absent) - _NAMED_AT_MOST:,} more" if len(absent) > _NAMED_AT_MOST else ""
        listed = "; ".join(absent[:_NAMED_AT_MOST])
        raise ValueError(
            f"{path} lists files that do not exist ({listed}{more}); paths are relative to the folder of the table"
        )
    if "train" not in found:
        raise ValueError(f"{path} lists no images for training" + ("" if found else "; it has no rows"))
    classes = numbers or sorted({name for rows in found.values() for _, name in rows if isinstance(name, str)})
    if len(classes) > MOST_CLASSES:
        raise ValueError(f"{path} has {len(classes):,} classes; at most {MOST_CLASSES:,} are supported")
    number = {name: index for index, name in enumerate(classes)}
    parts: dict[str, Files] = {
        part: [(file, number[label] if isinstance(label, str) else label) for file, label in rows]
        for part, rows in found.items()
    }
    return Tree(root=path, classes=tuple(classes), folders=dict.fromkeys(parts, path), parts=parts, unlisted=())


def listed_files(path: Path) -> list[Path]:
    """Return the paths in a CSV table, in its order. Labels and splits are not read, and files need not exist."""
    return [_file(path, line, row["path"]) for line, row in _rows(path, labels=False)]


def _rows(path: Path, labels: bool) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of the line and the cells by column, for each row that is not blank."""
    text = _text(path)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), strict=True)
    columns: list[str] | None = None
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _mistake(path, reader.line_num, str(error)) from None
        if cells is None:
            break
        if not any(map(str.strip, cells)):
            continue
        if columns is None:
            columns = [cell.strip() for cell in cells]
            _check_columns(path, reader.line_num, columns, labels)
        elif len(cells) != len(columns):
            wanted = f"{len(columns)} cells ({', '.join(columns)})"
            raise _mistake(
                path, reader.line_num, f"{wanted} are needed, found {len(cells)}; quote a cell with a separator"
            )
        else:
            yield reader.line_num, {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
    if columns is None:
        raise ValueError(f"{path} is empty; the first line must be {_HEADERS}")


def _text(path: Path) -> str:
    check_regular(path)
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes; a table has at most {_MOST_BYTES:,}")
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _mistake(path, line, "it is not UTF-8; save the table as CSV in UTF-8") from None


def _separator(text: str) -> str:
    """Return the separator of a table: that of its first line, which is a semicolon in some languages."""
    head = re.search(r"\S[^\r\n]*", text)
    return next((mark for mark in ",;\t" if head and mark in head.group()), ",")


def _check_columns(path: Path, line: int, columns: list[str], labels: bool) -> None:
    others = [column for column in columns if column not in COLUMNS]
    targets = ("label" in columns) != bool(others) if labels else True  # a label or numbers, not both
    if "path" not in columns or len({*columns}) < len(columns) or "" in columns or not targets:
        raise _mistake(path, line, f"the columns must be {_HEADERS}, got {quote(','.join(columns))}")


def _number(path: Path, line: int, column: str, text: str) -> float:
    """Return the number in a cell."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _mistake(path, line, f"{quote(column)} must be a finite number, got {quote(text)}")
    return value


def _file(table: Path, line: int, text: str) -> Path:
    relative = Path(text)
    if not text or relative.is_absolute() or relative.drive or ".." in relative.parts or "\0" in text:
        raise _mistake(
            table, line, f"a path must be below the folder of the table, and relative to it, got {quote(text)}"
        )
    return table.parent / relative


def _mistake(path: Path, line: int, what: str) -> ValueError:
    return ValueError(f"{path}, line {line}: {what}")
