"""`et audit`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.audit.frames import Modulo
from equivariant_transformers.audit.probes import fills_frame, on_canvas
from equivariant_transformers.cli import console, models
from equivariant_transformers.cli.data import AcceptOtherFiles
from equivariant_transformers.cli.layer_audit import (
    CANVAS_LIMITS,
    Row,
    fixed_frame_rows,
    frame_figures,
    frame_limits,
    modulo_of,
    on_canvas_rows,
    print_audit,
    stack_frames,
)
from equivariant_transformers.data.registry import find_data, is_own
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.hub.canonicalizers import CanonicalizerCard
from equivariant_transformers.hub.zoo import find_canonicalizer
from equivariant_transformers.limits import MOST_SIDE
from equivariant_transformers.nn.augment import Augmentation, parse_max_theta
from equivariant_transformers.nn.canonicalizer import Canonicalizer
from equivariant_transformers.nn.layers import make_layer
from equivariant_transformers.nn.posterior import PosteriorPredictor
from equivariant_transformers.nn.predictors import PREDICTORS
from equivariant_transformers.training import Config
from equivariant_transformers.training.job import find_device, load_data

_SIZE = (64, 64)  # of the images of layers whose own size is unknown
_CANVAS = 256  # minimum side in pixels of the canvas that the transformed images are sampled from


@dataclass(frozen=True)
class Subject:
    """Stack of layers to audit, the shape of its input, and the scale and shift that normalise its bytes."""

    stack: Canonicalizer
    channels: int
    size: tuple[int, int]
    scale: Tensor
    shift: Tensor
    augmentation: Augmentation
    """Augmentation in training."""
    modulo: Modulo
    """Transformation that the backbone absorbs."""
    folder: str | None = None
    """Folder or CSV file of the images of its training; None if there was none, or if it is no longer there."""


def audit_layers(
    model: Annotated[str | None, typer.Argument(help=f"{models.HELP} Or give --group.")] = None,
    network: models.NetworkFlag = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Groups or charts; their layers have random weights.")
    ] = None,
    predictor: Annotated[
        str, typer.Option(metavar="|".join(PREDICTORS), help="Pose predictor of the layers of --group.")
    ] = "consistent",
    seed: Annotated[int, typer.Option(help="Random seed for the weights of the layers of --group.")] = 0,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Data set or folder of images, whose test images are used; by default the folder on which the model "
            "was trained, or mnist for other models.",
        ),
    ] = None,
    accept_other_files: AcceptOtherFiles = False,
    count: Annotated[int, typer.Option(min=1, help="Number of test images.")] = 32,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Plot predicted against true poses as PNG.")] = None,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the self-consistency of each layer: whether its pose follows the transformation of its input.

    Each image is centred on a canvas and transformed. If the images fill their frame, as photographs do, or the layers
    have learned from such images, each layer is measured again on content that moves inside a fixed frame. Each layer
    is measured separately. The ideal slope of predicted against true changes of pose is 1. Errors are relative to the
    range of theta, in the unit of theta, and in pixels. For two layers or more, the canonical frames of two transformed
    copies of each image are compared.

    A canonicalizer file of et align is measured without labels: a folder need not have class folders.
    """
    with console.usage():
        where = find_device(device)
        if dataset is not None:
            find_data(dataset)
        config = Config(seed=seed)
        if model and group:
            raise ValueError(f"got model {model} and --group {group}; give a model or --group, not both")
        alone = find_canonicalizer(model) if model else None
        if alone:
            subject = _from_canonicalizer(*alone, where)
        else:
            subject = _from_model(model, network, where) if model else _from_names(group, predictor, seed, where)
        dataset = dataset or subject.folder or "mnist"
        config = config.replace(dataset=dataset)
    images, origin = _images(subject, config, count, labels=alone is None, accept_other_files=accept_other_files)
    canvases = _normalised(on_canvas(images, _canvas_pixels(images, subject)), subject)
    moved = on_canvas_rows(subject.stack, canvases, subject.size)
    fixed: list[Row] = []
    shown, limits = canvases, CANVAS_LIMITS
    if fills_frame(images) or any(isinstance(layer.predictor, PosteriorPredictor) for layer in subject.stack.layers):
        shown, limits = _normalised(images, subject), frame_limits(subject.augmentation)
        fixed = fixed_frame_rows(subject.stack, shown, subject.size, limits)
    frames = stack_frames(subject.stack, shown, subject.size, limits, subject.modulo)
    if out is not None:
        _plot(moved + fixed, out)
    if as_json:
        figures = {
            "parameters": [row.figures for row in moved],
            "fixed_frame": [row.figures for row in fixed],
            "frames": frame_figures(frames),
        }
        console.print_json({"images": len(images), "dataset": dataset, "origin": origin, **figures})
    else:
        print_audit(moved + fixed, frames)


def _from_model(model: str, network: str | None, device: torch.device) -> Subject:
    classifier = models.load(model, network=network).to(device)
    card = classifier.card
    if not card.config.layers:
        raise ValueError(f"{model} has no layers to audit; give a model with layers, or --group")
    return Subject(
        classifier.module.canonicalizer,
        card.in_channels,
        card.size,
        classifier.scale,
        classifier.shift,
        classifier.augmentation,
        modulo_of(classifier.module),
        _folder(card.config),
    )


def _from_canonicalizer(canonicalizer: Canonicalizer, card: CanonicalizerCard, device: torch.device) -> Subject:
    """Return a canonicalizer in a file, for images of the size and under the augmentation of its training, if known."""
    size, fields = card.training.get("size"), card.training.get("config")
    height, width = size if isinstance(size, list) and len(size) == 2 else _SIZE
    height, width = (whole_number("size", side, most=MOST_SIDE) for side in (height, width))
    config = Config.from_dict(fields) if fields else None
    augmentation = Augmentation(parse_max_theta(config.augment) if config else {})
    subject = _subject(canonicalizer.to(device), card.in_channels, (height, width), augmentation, device)
    return replace(subject, folder=_folder(config)) if config else subject


def _folder(config: Config) -> str | None:
    return config.dataset if is_own(config.dataset) else None


def _from_names(names: str | None, predictor: str, seed: int, device: torch.device) -> Subject:
    if not names:
        raise ValueError("nothing to audit; give a model, or --group with names of groups or charts")
    lookup(PREDICTORS, predictor, "predictor")
    layers = []
    for name in map(str.strip, names.split(",")):
        torch.manual_seed(seed)
        layers.append(make_layer(name, predictor=predictor))
    return _subject(Canonicalizer(layers).to(device).eval(), 1, _SIZE, Augmentation({}), device)


def _subject(
    stack: Canonicalizer, channels: int, size: tuple[int, int], augmentation: Augmentation, device: torch.device
) -> Subject:
    """Return a stack for images from 0 to 1, without a backbone."""
    scale, shift = (torch.full((1, 1, 1, 1), value, device=device) for value in (1 / 255, 0.0))
    return Subject(stack, channels, size, scale, shift, augmentation, None)


def _images(
    subject: Subject, config: Config, count: int, *, labels: bool, accept_other_files: bool
) -> tuple[Tensor, str]:
    """Return the first test images `(B, C, H, W)`, with values from 0 to 1, and their origin.

    Without `labels`, the test images of a folder are those of `et align`.
    """
    shape: dict[str, Any] = {}
    if is_own(config.dataset):
        shape = {"channels": subject.channels if subject.channels in (1, 3) else 3, "size": subject.size}
        shape |= {} if labels else {"labels": False}
    with console.loading() as loading:
        splits = load_data(
            config, subject.scale.device, accept_other_files=accept_other_files, progress=loading, **shape
        )
    images = splits.test.images[:count] / 255
    if images.shape[1] != subject.channels:
        images = images.mean(1, keepdim=True).expand(-1, subject.channels, -1, -1)
    return images, splits.test.origin


def _canvas_pixels(images: Tensor, subject: Subject) -> int:
    return max(_CANVAS, *(3 * side for side in images.shape[-2:]), *(2 * side for side in subject.size))


def _normalised(images: Tensor, subject: Subject) -> Tensor:
    return 255 * images * subject.scale + subject.shift


def _plot(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    from equivariant_transformers.viz import pose_plot

    figure = Figure(figsize=(4 * len(rows), 4), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        pose_plot(row.result, axes)
        axes.set_title(f"{axes.get_title()}, {row.content}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, format="png")
