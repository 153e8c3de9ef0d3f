"""`et train`."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from equivariant_transformers.cli import console, models
from equivariant_transformers.cli.config import make_config, to_yaml
from equivariant_transformers.cli.data import AcceptOtherFiles, Memory
from equivariant_transformers.cli.directories import forget, holding
from equivariant_transformers.cli.flags import flag
from equivariant_transformers.cli.layer_audit import (
    audit_images,
    frame_figures,
    modulo_of,
    print_audit,
    say_calibration,
)
from equivariant_transformers.cli.mistakes import MOST_CLASSES, Confusion
from equivariant_transformers.cli.presets import PRESETS
from equivariant_transformers.cli.progress import Report, watching
from equivariant_transformers.cli.scores import Scores, measure
from equivariant_transformers.data import ImageSet, Splits
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.data.gathering import ORIGIN
from equivariant_transformers.data.stored import describe
from equivariant_transformers.experiments import results
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.models import Network, import_library, is_own
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.training import CHECKPOINT, Config, Progress, Result, Stopped, distributed
from equivariant_transformers.training import train as run_jobs
from equivariant_transformers.training.job import find_device, load_data, make_job
from equivariant_transformers.training.loggers import HISTORY, LOGGERS, WeightsAndBiases
from equivariant_transformers.training.tasks import TASKS

MODEL = "model.safetensors"
RESULT = "result.json"
CONFUSION = "confusion.png"


def train_model(
    preset: Annotated[
        str | None,
        typer.Argument(metavar="PRESET", help=f"Folder of images, CSV file, or one of {', '.join(PRESETS)}."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML file with fields of the config.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write results to; runs/NAME by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Resume from the checkpoint in DIR, or restart the run.")
    ] = True,
    accept_other_files: AcceptOtherFiles = False,
    memory: Memory = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Log each epoch to {' or '.join(LOGGERS)}; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    *,
    dataset: Annotated[str | None, flag("dataset")] = None,
    examples: Annotated[str | None, flag("examples")] = None,
    copies: Annotated[str | None, flag("copies")] = None,
    size: Annotated[str | None, flag("size")] = None,
    data_seed: Annotated[str | None, flag("data_seed")] = None,
    task: Annotated[str | None, flag("task")] = None,
    network: Annotated[str | None, flag("network")] = None,
    pretrained: Annotated[bool | None, flag("pretrained")] = None,
    layers: Annotated[str | None, flag("layers")] = None,
    predictor: Annotated[str | None, flag("predictor")] = None,
    iterations: Annotated[str | None, flag("iterations")] = None,
    chart: Annotated[str | None, flag("chart")] = None,
    fill: Annotated[str | None, flag("fill")] = None,
    dropout: Annotated[str | None, flag("dropout")] = None,
    pose_noise: Annotated[str | None, flag("pose_noise")] = None,
    augment: Annotated[str | None, flag("augment")] = None,
    alignment: Annotated[str | None, flag("alignment")] = None,
    tta: Annotated[str | None, flag("tta")] = None,
    epochs: Annotated[str | None, flag("epochs")] = None,
    batch_size: Annotated[str | None, flag("batch_size")] = None,
    patience: Annotated[str | None, flag("patience")] = None,
    learning_rate: Annotated[str | None, flag("learning_rate")] = None,
    warmup: Annotated[str | None, flag("warmup")] = None,
    lr_decay: Annotated[str | None, flag("lr_decay")] = None,
    weight_decay: Annotated[str | None, flag("weight_decay")] = None,
    ema_decay: Annotated[str | None, flag("ema_decay")] = None,
    class_weights: Annotated[str | None, flag("class_weights")] = None,
    keep: Annotated[str | None, flag("keep")] = None,
    seed: Annotated[str | None, flag("seed")] = None,
    device: Annotated[str | None, flag("device")] = None,
    precision: Annotated[str | None, flag("precision")] = None,
    compile: Annotated[bool | None, flag("compile")] = None,  # noqa: A002
) -> None:
    """Train a network, test its best (or last) epoch, write the model, and audit its layers on validation images.

    The config is that of PRESET, overridden by the fields in FILE, overridden by the flags. For a folder of images,
    size, batch size, epochs, patience and learning rates are chosen from the images unless they are given. Layers
    for folders and data sets of photographs are trained with small random transformations and the alignment loss,
    for which the training images must be upright, unless a predictor or the flags for these are given. The files in
    DIR are config.yaml, checkpoint.safetensors, history.csv, result.json, confusion.png for classes, and
    model.safetensors, which is written whenever an epoch is the best so far (or the last). The same command resumes
    an interrupted run. Only one run at a time can use DIR.
    """
    given = locals()
    settings = make_config(preset, config, {name: given[name] for name in Config.__dataclass_fields__})
    with console.usage():
        for name in log or ():
            lookup(LOGGERS, name, "log").load()
    import_library(settings.network)
    own = models.own_network(network)
    if is_own(settings.network) and own is None:
        needed = f"the network {settings.network} is your own code: pass --network {settings.network} to run it"
        raise console.Failure(needed, console.WRONG_USAGE)
    directory = out or Path("runs") / results.key(settings)
    options: dict[str, Any] = {
        "resume": resume,
        "accept_other_files": accept_other_files,
        "log": log or [],
        "as_json": as_json,
    }
    _train(settings, directory, own, memory=memory, **options)


def _train(
    settings: Config,
    directory: Path,
    own: Network | None,
    *,
    resume: bool,
    accept_other_files: bool,
    memory: float | None,
    log: list[str],
    as_json: bool,
) -> None:
    with distributed.processes(find_device(settings.device)) as device, holding(directory, device):
        begin = _Begin(directory, settings)
        reports: list[Report] = [begin]
        limit = {} if memory is None else {"memory": memory}
        with console.loading() as loading:
            splits = load_data(settings, device, accept_other_files=accept_other_files, progress=loading, **limit)
        _check_classes(settings, splits)
        console.note(_describe(settings, splits))
        job = make_job(settings, splits, directory=directory, network=own)
        card = dataclasses.replace(Card.of(settings, splits.train), labels=job.labels)
        job.on_keep = lambda weights, kept: dataclasses.replace(card, validation_error=kept.validation_error).write(
            directory / MODEL, weights
        )
        loggers = [LOGGERS[name](directory, splits.validation) for name in log] if console.speaks() else []
        if len(splits.train) < settings.batch_size:
            console.note(
                f"{len(splits.train)} training images, fewer than the batch size of {settings.batch_size}: "
                "one step per epoch"
            )

        if not resume:
            forget(directory, CHECKPOINT, RESULT, MODEL, CONFUSION, HISTORY, WeightsAndBiases.FILE)

        def report(progress: Progress) -> None:
            for one in reports:
                one(progress)

        try:
            with watching() as watch:
                reports.append(watch)
                (result,) = run_jobs([job], report=report, on_epoch=loggers)
        except Stopped as stopped:
            options = [f"--network {settings.network}"] if own else []
            options += ["--accept-other-files"] if accept_other_files else []
            options += [] if memory is None else [f"--memory {memory:g}"]
            raise _interrupted(stopped, directory, options) from None
        parameters = sum(parameter.numel() for parameter in job.module.parameters())
        audit = None
        record = results.record(result, parameters=parameters, origin=splits.train.origin, together=1)
        if console.speaks():
            begin.write()  # not written yet if a finished run is only tested again
            results.write(record, directory / RESULT)
            if result.failure is None:
                card = dataclasses.replace(card, validation_error=result.validation_error, test_error=result.test_error)
                classifier = Classifier(cast(Canonicalized, job.module), card).eval()
                classifier.save(directory / MODEL)
                scores = _measure(classifier, splits.test, directory)
                if settings.layers:
                    network = classifier.module
                    audit = audit_images(network.canonicalizer, splits.validation, job.augmentation, modulo_of(network))
    if as_json:
        found = audit and {"fixed_frame": [row.figures for row in audit[0]], "frames": frame_figures(audit[1])}
        console.print_json({**results.to_dict(record), "directory": str(directory), "audit": found})
    if result.failure:
        raise console.Failure(f"training diverged: {result.failure}", console.DIVERGED)
    if not as_json and console.speaks():
        console.say(_summary(result))
        if scores is not None:
            scores.print()
        console.say(f"model: {directory / MODEL}")
        say_calibration(settings, result.factors)
        if audit is not None:
            print_audit(*audit)


class _Begin:
    """Writer of the config after the first step. Before it, the directory may prove to belong to another run."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory = directory
        self.config = config
        self.done = not console.speaks()

    def __call__(self, _: Progress) -> None:
        if not self.done:
            self.write()

    def write(self) -> None:
        with atomic_write(self.directory / "config.yaml") as file:
            file.write(to_yaml(self.config).encode())
        self.done = True


def _check_classes(config: Config, splits: Splits) -> None:
    """Raise an error for a classification with a single class."""
    classes = splits.train.classes
    if config.task == "classification" and splits.train.labels.ndim == 1 and len(classes) < 2:
        raise console.Failure(
            f"{config.dataset} has a single class, {classes[0]}, and there is nothing to tell apart: each class is a "
            "subfolder of the given folder. Without classes, et align trains a canonicalizer",
            console.WRONG_USAGE,
        )


def _interrupted(stopped: Stopped, directory: Path, options: list[str]) -> console.Failure:
    if (directory / MODEL).exists():
        console.note(f"the model so far: {directory / MODEL}")
    place = shlex.quote(str(directory))
    again = " ".join([f"et train --config {shlex.quote(str(directory / 'config.yaml'))} --out {place}", *options])
    return console.Failure(f"{stopped}; the run is saved, resume with: {again}", console.code_of(stopped.signal))


def _describe(config: Config, splits: Splits) -> str:
    """Return lines for the images (numbers, classes, size), the settings of training, and the layers if any."""
    counts = "/".join(str(len(part)) for part in splits)
    height, width = splits.train.images.shape[-2:]
    resized = "resized to " if splits.train.origin == ORIGIN else ""
    images = f"{counts} images, {len(splits.train.classes)} {TASKS[config.task].columns}, {resized}{height} x {width}"
    length = _count(config.epochs) + (
        f" with a patience of {config.patience}" if config.patience and config.patience < config.epochs else ""
    )
    rates = f"learning rate {config.learning_rate:g}, {_count(config.warmup)} of warm-up, decay {config.lr_decay:g}"
    streamed = describe(part.images for part in splits)
    lines = [", ".join(filter(None, (images, streamed))), f"batch size {config.batch_size}, {length}, {rates}"]
    if config.layers:
        lines.append(f"layers {', '.join(config.layers)}, predictor {config.predictor}, alignment {config.alignment:g}")
    if config.augment:
        lines.append(f"augmentation {', '.join(config.augment)}")
    return "\n".join(lines)


def _count(epochs: int) -> str:
    return f"{epochs} epoch" + ("" if epochs == 1 else "s")


def _measure(classifier: Classifier, images: ImageSet, directory: Path) -> Scores | None:
    """Return the scores on test images, and draw the confusion matrix. None if there are too many classes for one."""
    if classifier.card.config.task == "classification" and len(images.classes) > MOST_CLASSES:
        return None
    with console.loading() as progress:
        scores = measure(classifier, images, progress)
    if isinstance(scores, Confusion):
        scores.draw(directory / CONFUSION)
    return scores


def _summary(result: Result) -> str:
    epochs, unit = len(result.history), TASKS[result.config.task].unit
    validation = f"{result.validation_error:.2f} {unit}"
    best = f"epoch {result.best_epoch} of {epochs}, the best on validation data ({validation})"
    last = f"the last of {epochs} epochs ({validation} on validation data)"
    return f"test error {result.test_error:.2f} {unit} with {best if result.config.keep == 'best' else last}"
