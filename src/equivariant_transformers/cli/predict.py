"""`et predict`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from equivariant_transformers.cli import console, models, scores
from equivariant_transformers.data.files import check_regular
from equivariant_transformers.data.table import is_table, listed_files
from equivariant_transformers.data.tree import files_below
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.zoo import find_canonicalizer
from equivariant_transformers.limits import MOST_SIDE
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.nn.canonicalizer import Canonicalizer
from equivariant_transformers.text import visible
from equivariant_transformers.training.job import evaluation_batch, find_device

_UNSAFE = frozenset('/\\:*?"<>|')
_MANY = 100  # files from which on progress is shown
_BATCH = 32  # files that are read at the same time, at most
_LONGEST_NAME = 200  # bytes; most systems allow 255 including the extension


def predict_images(
    model: Annotated[str, typer.Argument(help=models.HELP)],
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE...", help="Image files of any format and size, folders, or CSV files."),
    ],
    canonical_out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write the canonical images to.")
    ] = None,
    tta: Annotated[int | None, typer.Option(metavar="N", help=models.TTA)] = None,
    poses: Annotated[int, typer.Option(metavar="N", help=models.POSES)] = 1,
    network: models.NetworkFlag = None,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Print the class of each image, the confidence, and the pose predicted by the layers.

    A model for several labels per image prints the labels that are present, with their probabilities, and a model for
    regression prints the values. A canonicalizer, such as upright or a file of et align, prints the poses alone. Its
    canonical images have the size of the files, up to 1024 pixels a side.

    A folder stands for all files below it, except hidden files, and a CSV file for the files that it lists; their
    canonical images are written to the same subfolders of DIR. A file that cannot be read, or whose canonical image
    cannot be written, is reported, and the exit code is 1. After Ctrl-C, the results so far are printed.
    """
    with console.usage():
        where = find_device(device)
    reader = _find(model, tta, poses, network, where)
    if canonical_out is not None and isinstance(reader, Classifier) and not reader.card.config.layers:
        raise console.Failure(
            f"{model} has no layers and makes no canonical images; omit --canonical-out", console.WRONG_USAGE
        )
    files = [file for path in images for file in _files(path)]
    found: list[dict[str, Any]] = []
    interrupted, size = False, _batch_size(reader, where)
    try:
        with console.loading() if len(files) >= _MANY else nullcontext(lambda *_: None) as progress:
            for start in range(0, len(files), size):
                found += _predict(reader, files[start : start + size], canonical_out)
                progress("predicting", len(found) / len(files))
    except KeyboardInterrupt:
        interrupted = True
    for entry in found:
        if "error" in entry:
            console.error(f"{visible(entry['image'])}: {entry['error']}")
    good = [entry for entry in found if "pose" in entry]
    if as_json:
        console.print_json(found)
    elif good:
        names, predicts = list(good[0]["pose"]), isinstance(reader, Classifier)
        rows = [
            [e["image"], *(scores.cells(e) if predicts else ()), *(f"{e['pose'][name]:+.3f}" for name in names)]
            for e in good
        ]
        columns = scores.columns(reader) if isinstance(reader, Classifier) else []
        console.table("image", *columns, *(f">{name}" for name in names), rows=rows)
    if interrupted:
        raise console.Failure(f"stopped after {len(found):,} of {len(files):,} files", console.INTERRUPTED)
    if any("error" in entry for entry in found):
        raise typer.Exit(console.FAILED)


@dataclass(frozen=True)
class _File:
    """Picture to read, with its folder relative to the folder or the table that was given."""

    path: Path
    below: Path = Path()
    error: str | None = None


class _Alone:
    """Canonicalizer for pictures of any size, with the methods of a `Classifier` that `_predict` needs."""

    def __init__(self, canonicalizer: Canonicalizer, device: torch.device) -> None:
        if canonicalizer.in_channels not in (1, 3):
            raise ValueError(f"files have 1 or 3 channels; the canonicalizer takes {canonicalizer.in_channels}")
        self.canonicalizer = canonicalizer.to(device)
        self.device = device

    def prepare(self, path: Path) -> Tensor:
        """Return the picture in a file as bytes `(C, H, W)`. A side is at most 1024 pixels long."""
        from equivariant_transformers.data import pictures

        check_regular(path)
        picture = pictures.load(path, 2 * MOST_SIDE)
        shrink = min(1.0, MOST_SIDE / max(picture.size))
        width, height = (max(1, round(shrink * side)) for side in picture.size)
        return torch.tensor(pictures.fit(picture, (height, width), self.canonicalizer.in_channels))

    def canonicalize(self, images: Tensor) -> Canonicalization:
        out: Canonicalization = self.canonicalizer(images / 255)
        return out

    def to_bytes(self, images: Tensor) -> Tensor:
        return (255 * images).round().clamp(0, 255).to(torch.uint8)


def _find(model: str, tta: int | None, poses: int, network: str | None, device: torch.device) -> Classifier | _Alone:
    """Return the model or canonicalizer by file or name, on `device`."""
    with console.usage():
        if alone := find_canonicalizer(model):
            if tta is not None or poses != 1 or network is not None:
                raise ValueError(f"{model} is a canonicalizer without a classifier: omit --tta, --poses and --network")
            return _Alone(alone[0], device)
    return models.load(model, tta, poses=poses, network=network).to(device)


def _batch_size(reader: Classifier | _Alone, device: torch.device) -> int:
    """Return the number of files to read at the same time. A canonicalizer takes pictures of different sizes."""
    return min(_BATCH, evaluation_batch(device, reader.tta)) if isinstance(reader, Classifier) else 1


def _files(path: Path) -> list[_File]:
    """Return a file, all files below a folder, or all files of a CSV table. Errors are entries of the result."""
    if is_table(path):
        try:
            return [_File(file, file.relative_to(path.parent).parent) for file in listed_files(path)]
        except (OSError, ValueError) as error:
            return [_File(path, error=str(error))]
    if not path.is_dir():
        return [_File(path)]
    unlisted: list[str] = []
    found = [_File(file, file.relative_to(path).parent) for file in files_below(path, unlisted)]
    errors = [_File(path, error=f"a folder in it cannot be listed: {each}") for each in unlisted]
    return [*found, *errors] or [_File(path, error="a folder without files")]


@torch.no_grad()
def _predict(reader: Classifier | _Alone, files: Sequence[_File], canonical_out: Path | None) -> list[dict[str, Any]]:
    """Return an entry per file: an error, or the prediction and the pose."""
    entries: list[dict[str, Any]] = []
    images: dict[int, Tensor] = {}
    for number, file in enumerate(files):
        entries.append({"image": str(file.path)} | ({"error": file.error} if file.error else {}))
        if not file.error:
            try:
                images[number] = reader.prepare(file.path)
            except Exception as error:  # a damaged file can make a decoder raise almost anything
                entries[number]["error"] = _reason(error)
    if not images:
        return entries
    batch = torch.stack([*images.values()]).to(reader.scale.device if isinstance(reader, Classifier) else reader.device)
    if isinstance(reader, Classifier):
        for number, prediction in zip(images, reader.predict(batch), strict=True):
            entries[number] |= scores.describe(reader, prediction)
    out = reader.canonicalize(batch)
    canonical = reader.to_bytes(out.image).cpu() if out.steps and canonical_out is not None else None
    for row, number in enumerate(images):
        entry, file = entries[number], files[number]
        entry["pose"] = {}
        if out.steps:
            for name, value in zip(out.names, out.pose[row].tolist(), strict=True):
                entry["pose"][_free(name, entry["pose"])] = value
        if canonical is not None and canonical_out is not None:
            folder = canonical_out.joinpath(*map(_safe, file.below.parts))
            try:
                entry["canonical"] = str(_write(canonical[row], folder, _safe(file.path.stem)))
            except OSError as error:
                entry["error"] = f"its canonical image cannot be written to {folder}: {_reason(error)}"
    return entries


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _write(image: Tensor, folder: Path, stem: str) -> Path:
    """Write a PNG to a new file in `folder` and return its path. Existing files are not overwritten."""
    from equivariant_transformers.data import pictures

    content = io.BytesIO()
    pictures.to_picture(image).save(content, format="PNG")
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = folder / (f"{stem}.png" if number == 1 else f"{stem}-{number}.png")
        try:
            with path.open("xb") as file:
                try:
                    file.write(content.getbuffer())
                    file.flush()
                except OSError:  # a full disk: do not leave a truncated file
                    path.unlink()
                    raise
        except FileExistsError:
            continue
        break
    return path


def _safe(stem: str) -> str:
    """Return the stem of a file name that is valid on all systems and safe to print, not hidden and not empty.

    >>> _safe("digit 3"), _safe(".."), _safe("a\\x1b[31m"), len(_safe("x" * 1000))
    ('digit 3', 'image', 'a_[31m', 200)
    """
    name = "".join(c if c.isprintable() and c not in _UNSAFE else "_" for c in stem)
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore").strip(" .") or "image"


def _free(name: str, taken: Any) -> str:
    """Return `name`, with a number appended if it is taken."""
    names = (name, *(f"{name}-{number}" for number in range(2, 2 + len(taken))))
    return next(name for name in names if name not in taken)
