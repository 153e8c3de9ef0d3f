"""Image files of a folder by part and class, without reading them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from equivariant_transformers.data.targets import Target
from equivariant_transformers.limits import MOST_CLASSES
from equivariant_transformers.text import visible

PART_NAMES = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
"""Names allowed for the subfolder of each part of the data."""
_MEASURED = 1000  # files whose size is measured
_STEP, _LEAST, _MOST = 32, 64, 224  # sides of images in pixels; the paper's classifier takes 50 or more

Files = list[tuple[Path, Target]]
"""Files with their targets: class numbers, or rows of numbers."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Files of a folder of images. They need not be readable images."""

    root: Path
    classes: tuple[str, ...]
    """Names of the class folders, sorted, or of the numbers in a row."""
    folders: dict[str, Path]
    """Folder of each part that has one: train, and possibly validation and test."""
    parts: dict[str, Files]
    """Files of these parts."""
    unlisted: tuple[str, ...]
    """Folders that cannot be listed, with the reason."""


def scan(path: str | Path, *, labels: bool = True) -> Tree:
    """Find the files of a folder of class folders, or of the folders `train`, `validation` and `test` of class folders.

    Without `labels`, all files below a folder are of one class, in subfolders or not. Hidden files are ignored. Links
    to folders are not followed.
    """
    root = Path(path)
    folders = _parts(root)
    unlisted: list[str] = []
    if not labels:
        found: dict[str, Files] = {
            part: [(file, 0) for file in files_below(folder, unlisted)] for part, folder in folders.items()
        }
        return Tree(root=root, classes=("image",), folders=folders, parts=found, unlisted=tuple(unlisted))
    classes = sorted({below.name for folder in folders.values() for below in _subfolders(folder)})
    if not classes:
        raise ValueError(
            f"{root} has no class folders: put the images of each class into a subfolder named "
            "after it. Without classes, et align trains a canonicalizer, and labels=False reads the images"
        )
    if len(classes) > MOST_CLASSES:
        raise ValueError(f"{root} has {len(classes):,} class folders; at most {MOST_CLASSES:,} are supported")
    parts: dict[str, Files] = {
        part: [(file, label) for label, name in enumerate(classes) for file in files_below(folder / name, unlisted)]
        for part, folder in folders.items()
    }
    return Tree(root=root, classes=tuple(classes), folders=folders, parts=parts, unlisted=tuple(unlisted))


def usual_side(files: Files) -> int:
    """Return the median shorter side of the pictures, rounded to a multiple of 32, from 64 to 224.

    At most 1,000 evenly spaced files are measured, by their headers. Files that are not pictures do not count.
    """
    from equivariant_transformers.data import pictures

    sides = []
    for file, _ in files[:: -(-len(files) // _MEASURED) or 1]:
        try:
            sides.append(min(pictures.measure(file)))
        except Exception:  # a damaged file can make a decoder raise almost anything; `from_folder` reports it
            continue
    return min(max(_STEP * round(median(sides) / _STEP), _LEAST), _MOST) if sides else _LEAST


def _parts(path: Path) -> dict[str, Path]:
    """Return the folder of each part: the subfolders `train`, ... if there are no others, otherwise `path` itself."""
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    below = _subfolders(path)
    if not below or any(folder.name not in PART_NAMES for folder in below):
        return {"train": path}
    parts = {PART_NAMES[folder.name]: folder for folder in below}
    if len(parts) < len(below) or "train" not in parts:
        found = ", ".join(folder.name for folder in below)
        raise ValueError(f"{path} needs one folder train and at most one each of validation and test; found {found}")
    return parts


def _subfolders(folder: Path) -> list[Path]:
    return sorted(below for below in folder.iterdir() if below.is_dir() and not below.name.startswith("."))


def files_below(folder: Path, unlisted: list[str]) -> list[Path]:
    """Return every file below `folder` that is not hidden, sorted by relative path.

    Pipes, sockets and devices are returned too, so that the warning about unreadable files lists them. Folders that
    cannot be listed are added to `unlisted`.
    """
    files: dict[str, Path] = {}
    pending = [folder] if folder.is_dir() else []
    while pending:
        try:
            below = list(os.scandir(pending.pop()))
        except OSError as error:
            unlisted.append(f"{visible(str(error.filename))} ({error.strerror})")
            continue
        for entry in below:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(Path(entry.path))
            elif not _is_folder(entry):
                files[Path(entry.path).relative_to(folder).as_posix()] = Path(entry.path)
    return [file for _, file in sorted(files.items())]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that points to itself
        return False
