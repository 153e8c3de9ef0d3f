"""`et align`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from equivariant_transformers.cli import console
from equivariant_transformers.cli.config import check_names, convert
from equivariant_transformers.cli.data import AcceptOtherFiles, Memory
from equivariant_transformers.cli.defaults import choose
from equivariant_transformers.cli.directories import forget, holding
from equivariant_transformers.cli.flags import flag
from equivariant_transformers.cli.layer_audit import audit_images, frame_figures, print_audit, say_calibration
from equivariant_transformers.cli.progress import watching
from equivariant_transformers.data import Splits
from equivariant_transformers.data.registry import is_own
from equivariant_transformers.data.stored import describe
from equivariant_transformers.hub.canonicalizers import CanonicalizerCard
from equivariant_transformers.nn.alignment import TOLERANCE
from equivariant_transformers.training import CHECKPOINT, Config, Result, Stopped, distributed, train
from equivariant_transformers.training.aligning import (
    NO_NETWORK,
    Frames,
    default_augment,
    make_alignment_job,
)
from equivariant_transformers.training.job import find_device, load_data

FILE = "canonicalizer.safetensors"
_STEPS = 3_000  # of training, if this takes 20 to 300 epochs


def align_images(
    data: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder of upright images, CSV file, or name of a data set.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write to.")] = Path("runs/aligned"),
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Resume from the checkpoint in DIR, or restart the run.")
    ] = True,
    accept_other_files: AcceptOtherFiles = False,
    memory: Memory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    *,
    layers: Annotated[str, flag("layers", default="rotation")] = "rotation",
    augment: Annotated[str | None, flag("augment", default="chosen from the layers")] = None,
    examples: Annotated[str | None, flag("examples")] = None,
    size: Annotated[str | None, flag("size")] = None,
    epochs: Annotated[str | None, flag("epochs", default="chosen from the number of images")] = None,
    batch_size: Annotated[str | None, flag("batch_size", default="chosen from the number of images")] = None,
    learning_rate: Annotated[str | None, flag("learning_rate")] = None,
    seed: Annotated[str | None, flag("seed")] = None,
    device: Annotated[str | None, flag("device")] = None,
) -> None:
    """Train a canonicalizer on upright images, without labels, for use in front of any network.

    FOLDER holds images, in subfolders or not; a CSV file lists them. Each image is seen through known random
    transformations, and the layers learn to undo them. The files in DIR are checkpoint.safetensors and
    canonicalizer.safetensors, which is written after each epoch. The same command resumes an interrupted run. The error
    is the share of held-out images whose canonical frame is wrong after a known transformation: by more than 15 degrees
    for a rotation.
    """
    flags = locals()
    names = ("layers", "augment", "examples", "size", "epochs", "batch_size", "learning_rate", "seed", "device")
    given = {name: convert(name, flags[name]) for name in names if flags[name] is not None}
    with console.usage():
        settings = _settings(data, given)
    with distributed.processes(find_device(settings.device)) as where, holding(out, where):
        options: dict[str, Any] = {"labels": False} if is_own(settings.dataset) else {}
        options |= {} if memory is None else {"memory": memory}
        with console.loading() as loading:
            splits = load_data(settings, where, accept_other_files=accept_other_files, progress=loading, **options)
        settings = _fill_in(settings, given, splits)
        with console.usage():
            job = make_alignment_job(settings, splits)
        job.directory = out
        canonicalizer = cast(Frames, job.module).canonicalizer
        console.note(_describe(settings, splits))

        def write(weights: Any, found: Result) -> None:
            about = _about(settings, splits, found)
            kept = {name.removeprefix("canonicalizer."): tensor for name, tensor in weights.items()}
            CanonicalizerCard.of(canonicalizer, about).write(out / FILE, kept)

        job.on_keep = write
        if not resume:
            forget(out, CHECKPOINT, FILE)
        try:
            with watching() as watch:
                (result,) = train([job], report=watch)
        except Stopped as stopped:
            message = f"{stopped}; the run is saved, resume with the same command"
            raise console.Failure(message, console.code_of(stopped.signal)) from None
        if result.failure:
            raise console.Failure(f"training diverged: {result.failure}", console.DIVERGED)
        if console.speaks():
            write(job.module.state_dict(), result)
            rows, frames = audit_images(canonicalizer.eval(), splits.validation, cast(Frames, job.module).checks)
    if not console.speaks():
        return
    if as_json:
        audit = {"fixed_frame": [row.figures for row in rows], "frames": frame_figures(frames)}
        console.print_json({"file": str(out / FILE), **_about(settings, splits, result), "audit": audit})
        return
    limit = f"by more than {TOLERANCE:g} half widths of the image"
    console.say(f"{result.test_error:.2f} % of {len(splits.test)} test images have a wrong canonical frame, {limit}")
    say_calibration(settings, result.factors)
    print_audit(rows, frames)
    console.say(f"canonicalizer: {out / FILE}")
    console.say(f"  canonicalizer = et.hub.load_canonicalizer({str(out / FILE)!r})")
    console.say("  model = et.Canonicalized(backbone, canonicalizer)")


def _settings(data: str, given: dict[str, Any]) -> Config:
    folder = str(Path(data))  # without a trailing slash
    layers = given.get("layers", ())
    if not layers:
        raise ValueError("nothing to train: give --layers, for example rotation")
    config = Config(dataset=folder if is_own(folder) else data, layers=layers, predictor="posterior", keep="last")
    check_names(config)
    fields = {"augment": default_augment(layers), **given}
    return config.replace(network=NO_NETWORK, alignment=1.0, **fields)


def _fill_in(config: Config, given: dict[str, Any], splits: Splits) -> Config:
    """Return `config` with the fields that are not `given` chosen from the number of images."""
    chosen = choose(len(splits.train), len(splits.validation), steps=_STEPS)
    wanted = ("batch_size", "epochs", "warmup", "lr_decay")
    return config.replace(**{name: chosen[name] for name in wanted if name not in given})


def _describe(config: Config, splits: Splits) -> str:
    counts = "/".join(str(len(part)) for part in splits)
    height, width = splits.train.images.shape[-2:]
    settings = f"batch size {config.batch_size}, {config.epochs} epochs, learning rate {config.learning_rate:g}"
    layers = f"layers {', '.join(config.layers)}, augmentation {', '.join(config.augment)}"
    images = ", ".join(filter(None, (f"{counts} images, {height} x {width}", describe(p.images for p in splits))))
    return f"{images}\n{settings}\n{layers}"


def _about(config: Config, splits: Splits, result: Result) -> dict[str, Any]:
    """Return how a canonicalizer was trained, for its file."""
    errors = {"validation_error": result.validation_error, "test_error": result.test_error}
    known = {name: error for name, error in errors.items() if error == error}  # NaN until it is measured
    return {
        "data": splits.train.name,
        "origin": splits.train.origin,
        "images": len(splits.train),
        "size": list(splits.train.images.shape[-2:]),
        "config": config.to_dict(),
        **known,
    }
