"""CSV tables of image files with their classes and, optionally, their parts of the data."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from equivariant_transformers.data.files import check_regular
from equivariant_transformers.data.tree import PART_NAMES, Files, Tree, scan
from equivariant_transformers.limits import MOST_CLASSES
from equivariant_transformers.text import quote, visible

COLUMNS = ("path", "label", "split")
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

    The first line has the names of the columns: `path`, `label` and, optionally, `split`. A path is relative to the
    folder of the table and does not leave it. A split is `train`, `validation` (or `valid`, `val`) or `test`. Without
    `labels`, the column `label` is not needed, and all files are of one class. A mistake raises a ValueError with its
    line.
    """
    path = Path(path)
    found: dict[str, list[tuple[Path, str]]] = {}
    lines: dict[Path, int] = {}
    absent: list[str] = []
    for line, row in _rows(path, labels):
        file = _file(path, line, row["path"])
        if first := lines.get(file):
            raise _mistake(path, line, f"{quote(row['path'])} is in line {first} too; list every image once")
        lines[file] = line
        if labels and not row["label"]:
            raise _mistake(path, line, "the label is empty; write the name of the class")
        part = PART_NAMES.get(row.get("split", "train"))
        if part is None:
            allowed = ", ".join(PART_NAMES)
            raise _mistake(path, line, f"the split must be one of {allowed}, got {quote(row['split'])}")
        if not os.path.isfile(file):  # False for names that are too long, too
            absent.append(f"line {line}: {visible(row['path'])}")
        found.setdefault(part, []).append((file, row["label"] if labels else "image"))
    if absent:
        more = f" and {len(absent) - _NAMED_AT_MOST:,} more" if len(absent) > _NAMED_AT_MOST else ""
        listed = "; ".join(absent[:_NAMED_AT_MOST])
        raise ValueError(
            f"{path} lists files that do not exist ({listed}{more}); paths are relative to the folder of the table"
        )
    if "train" not in found:
        raise ValueError(f"{path} lists no images for training" + ("" if found else "; it has no rows"))
    classes = sorted({name for rows in found.values() for _, name in rows})
    if len(classes) > MOST_CLASSES:
        raise ValueError(f"{path} has {len(classes):,} classes; at most {MOST_CLASSES:,} are supported")
    number = {name: index for index, name in enumerate(classes)}
    parts: dict[str, Files] = {part: [(file, number[name]) for file, name in rows] for part, rows in found.items()}
    return Tree(root=path, classes=tuple(classes), folders=dict.fromkeys(parts, path), parts=parts, unlisted=())


def listed_files(path: Path) -> list[Path]:
    """Return the paths in a CSV table, in its order. Labels and splits are not read, and files need not exist."""
    return [_file(path, line, row["path"]) for line, row in _rows(path, labels=False)]


def _rows(path: Path, labels: bool) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of the line and the cells by column, for each row that is not blank."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
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
            raise _mistake(path, reader.line_num, f"{wanted} are needed, found {len(cells)}; quote a cell with a comma")
        else:
            yield reader.line_num, {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
    if columns is None:
        raise ValueError(f"{path} is empty; the first line must be path,label or path,label,split")


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


def _check_columns(path: Path, line: int, columns: list[str], labels: bool) -> None:
    needed = ("path", "label") if labels else ("path",)
    known = all(column in COLUMNS for column in columns) and len({*columns}) == len(columns)
    if not known or any(column not in columns for column in needed):
        found = quote(",".join(columns))
        raise _mistake(path, line, f"the columns must be path,label or path,label,split, got {found}")


def _file(table: Path, line: int, text: str) -> Path:
    relative = Path(text)
    if not text or relative.is_absolute() or relative.drive or ".." in relative.parts or "\0" in text:
        raise _mistake(
            table, line, f"a path must be below the folder of the table, and relative to it, got {quote(text)}"
        )
    return table.parent / relative


def _mistake(path: Path, line: int, what: str) -> ValueError:
    return ValueError(f"{path}, line {line}: {what}")
