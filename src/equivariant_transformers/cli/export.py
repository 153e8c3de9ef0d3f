"""`et export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equivariant_transformers.cli import console, models
from equivariant_transformers.hub.export import OPSET, to_onnx, to_program

_WRITERS = {".onnx": (f"ONNX, opset {OPSET}", to_onnx), ".pt2": ("a program of torch.export", to_program)}


def export_model(
    out: Annotated[
        Path, typer.Argument(metavar="FILE.onnx|FILE.pt2", help="File to write; its extension selects the format.")
    ],
    model: Annotated[str, typer.Option(metavar="MODEL", help=models.HELP)],
    network: models.NetworkFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Export a model to ONNX or torch.export, for use without this library.

    The exported network maps uint8 images (batch, channels, height, width) to logits, or to values for regression,
    for any batch size. The file is written only if its outputs agree with those of the model to 1e-4, on the CPU.
    """
    if out.suffix not in _WRITERS:
        raise console.Failure(f"the name of the file must end in .onnx or .pt2, got {out}", console.WRONG_USAGE)
    classifier = models.load(model, network=network)
    form, write = _WRITERS[out.suffix]
    difference = write(classifier, out)
    card = classifier.card
    if as_json:
        console.print_json({"file": str(out), "format": form, "difference": difference, "bytes": out.stat().st_size})
        return
    shape = ", ".join(map(str, ("batch", card.in_channels, *card.size)))
    console.say(f"{out}: {form}, {out.stat().st_size / 1e6:.2f} MB")
    console.say(f"images uint8 ({shape}) to {classifier.task.output} float32 (batch, {len(card.classes)})")
    console.say(f"differs from the model by {difference:.1e} at most")
