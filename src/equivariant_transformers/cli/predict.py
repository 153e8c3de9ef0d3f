"""`et predict`."""

from __future__ import annotations

import io
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from equivariant_transformers.cli import console, models, scores
from equivariant_transformers.data.table import is_table, listed_files
from equivariant_transformers.data.tree import files_below
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.text import visible
from equivariant_transformers.training.job import find_device

_UNSAFE = frozenset('/\\:*?"<>|')
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
    network: models.NetworkFlag = None,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Print the class of each image, the confidence, and the pose predicted by the layers.

    A model for several labels per image prints the labels that are present, with their probabilities, and a model for
    regression prints the values.

    A folder stands for all files below it, except hidden files, and a CSV file for the files that it lists. A file that
    cannot be read, or whose canonical image cannot be written, is reported, and the exit code is 1.
    """
    with console.usage():
        where = find_device(device)
    classifier = models.load(model, tta, network=network).to(where)
    if canonical_out is not None and not classifier.card.config.layers:
        raise console.Failure(
            f"{model} has no layers and makes no canonical images; omit --canonical-out", console.WRONG_USAGE
        )
    found = [entry for path in images for entry in _predict_all(classifier, path, canonical_out)]
    for entry in found:
        if "error" in entry:
            console.error(f"{visible(entry['image'])}: {entry['error']}")
    good = [entry for entry in found if "pose" in entry]
    if as_json:
        console.print_json(found)
    elif good:
        poses = list(good[0]["pose"])
        rows = [[e["image"], *scores.cells(e), *(f"{e['pose'][name]:+.3f}" for name in poses)] for e in good]
        console.table("image", *scores.columns(classifier), *(f">{name}" for name in poses), rows=rows)
    if any("error" in entry for entry in found):
        raise typer.Exit(console.FAILED)


def _predict_all(classifier: Classifier, path: Path, canonical_out: Path | None) -> list[dict[str, Any]]:
    """Return the predictions for a file, for all files below a folder, or for all files of a CSV table."""
    if is_table(path):
        try:
            listed = listed_files(path)
        except (OSError, ValueError) as error:
            return [{"image": str(path), "error": str(error)}]
        return [_predict(classifier, file, canonical_out) for file in listed]
    if not path.is_dir():
        return [_predict(classifier, path, canonical_out)]
    unlisted: list[str] = []
    found = [_predict(classifier, file, canonical_out) for file in files_below(path, unlisted)]
    errors = [{"image": str(path), "error": f"a folder in it cannot be listed: {each}"} for each in unlisted]
    return found + errors or [{"image": str(path), "error": "a folder without files"}]


@torch.no_grad()
def _predict(classifier: Classifier, path: Path, canonical_out: Path | None) -> dict[str, Any]:
    try:
        image = classifier.prepare(path)[None].to(classifier.scale.device)
    except Exception as error:  # a damaged file can make a decoder raise almost anything
        return {"image": str(path), "error": _reason(error)}
    prediction = scores.describe(classifier, classifier.predict(image)[0])
    entry: dict[str, Any] = {"image": str(path), **prediction, "pose": {}}
    out = classifier.canonicalize(image)
    if out.steps:
        for name, value in zip(out.names, out.pose[0].tolist(), strict=True):
            entry["pose"][_free(name, entry["pose"])] = value
        if canonical_out is not None:
            try:
                entry["canonical"] = str(_write(classifier.to_bytes(out.image)[0], canonical_out, _safe(path.stem)))
            except OSError as error:
                entry["error"] = f"its canonical image cannot be written to {canonical_out}: {_reason(error)}"
    return entry


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _write(image: Tensor, folder: Path, stem: str) -> Path:
    """Write a PNG to a new file in `folder` and return its path. Existing files are not overwritten."""
    from equivariant_transformers.data import pictures

    content = io.BytesIO()
    pictures.to_picture(image.cpu()).save(content, format="PNG")
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
