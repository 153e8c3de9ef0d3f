"""`et audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from equivariant_transformers.audit import self_consistency
from equivariant_transformers.audit.probes import THETA, on_canvas
from equivariant_transformers.audit.results import SelfConsistency
from equivariant_transformers.cli import console, models
from equivariant_transformers.cli.data import AcceptOtherFiles
from equivariant_transformers.geometry.groups import Group, lookup
from equivariant_transformers.nn.layers import Layer, make_layer
from equivariant_transformers.nn.predictors import PREDICTORS
from equivariant_transformers.training import Config
from equivariant_transformers.training.job import find_data, find_device, is_folder, load_data

_CANVAS = 256  # minimum side in pixels of the canvas that the transformed images are sampled from


@dataclass(frozen=True)
class Subject:
    """Layers to audit, the shape of their input, and the scale and shift that normalise its bytes."""

    layers: list[Layer]
    channels: int
    size: tuple[int, int]
    scale: Tensor
    shift: Tensor


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
        str, typer.Option(metavar="NAME", help="Data set or folder of images; its test images are used.")
    ] = "mnist",
    accept_other_files: AcceptOtherFiles = False,
    count: Annotated[int, typer.Option(min=1, help="Number of test images.")] = 32,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Plot predicted against true poses as PNG.")] = None,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the self-consistency of each layer: whether its pose follows the transformation of its input.

    Each image is centred on a canvas and transformed. Each layer is measured separately. The ideal slope of predicted
    against true changes of pose is 1. Errors are relative to the range of theta.
    """
    with console.usage():
        where = find_device(device)
        find_data(dataset)
        config = Config(dataset=dataset, seed=seed)
        if model and group:
            raise ValueError(f"got model {model} and --group {group}; give a model or --group, not both")
        subject = _from_model(model, network, where) if model else _from_names(group, predictor, seed, where)
    pictures, origin = _pictures(subject, config, count, accept_other_files=accept_other_files)
    found = [
        _follow(layer, pictures, acting, index, subject.size)
        for layer in subject.layers
        for index, acting in enumerate(layer.chart.groups)
    ]
    if out is not None:
        _plot(found, out)
    figures = [_figures(result) for result in found]
    if as_json:
        console.print_json({"images": len(pictures), "dataset": dataset, "origin": origin, "parameters": figures})
        return
    rows = [
        [
            f["name"],
            f"{f['theta'][0]:+.2f} .. {f['theta'][1]:+.2f}",
            f"{f['slope']:.3f} ± {f['interval']:.3f}" if f["interval"] is not None else f"{f['slope']:.3f}",
            f"{f['rms']:.4f}",
            f"{f['median']:.4f}",
        ]
        for f in figures
    ]
    console.table("parameter", "theta", ">slope (95 %)", ">rms", ">median", rows=rows)


def _from_model(model: str, network: str | None, device: torch.device) -> Subject:
    classifier = models.load(model, network=network).to(device)
    card = classifier.card
    if not card.config.layers:
        raise ValueError(f"{model} has no layers to audit; give a model with layers, or --group")
    layers: Any = classifier.module.canonicalizer.layers
    return Subject(list(layers), card.in_channels, card.size, classifier.scale, classifier.shift)


def _from_names(names: str | None, predictor: str, seed: int, device: torch.device) -> Subject:
    if not names:
        raise ValueError("nothing to audit; give a model, or --group with names of groups or charts")
    lookup(PREDICTORS, predictor, "predictor")
    layers: list[Layer] = []
    for name in map(str.strip, names.split(",")):
        torch.manual_seed(seed)
        layers.append(make_layer(name, predictor=predictor).to(device).eval())
    one, zero = (torch.full((1, 1, 1, 1), value, device=device) for value in (1 / 255, 0.0))
    return Subject(layers, 1, (64, 64), one, zero)


def _pictures(subject: Subject, config: Config, count: int, *, accept_other_files: bool) -> tuple[Tensor, str]:
    """Return the first test images on a canvas, normalised, `(B, C, pixels, pixels)`, and their origin."""
    shape = {"channels": subject.channels, "size": subject.size} if is_folder(config.dataset) else {}
    with console.loading() as loading:
        splits = load_data(
            config, subject.scale.device, accept_other_files=accept_other_files, progress=loading, **shape
        )
    images = splits.test.images[:count]
    if images.shape[1] != subject.channels:
        images = images.float().mean(1, keepdim=True).expand(-1, subject.channels, -1, -1)
    pixels = max(_CANVAS, *(3 * side for side in images.shape[-2:]), *(2 * side for side in subject.size))
    return 255 * on_canvas(images / 255, pixels) * subject.scale + subject.shift, splits.test.origin


@torch.no_grad()
def _follow(layer: Layer, pictures: Tensor, acting: Group, index: int, size: tuple[int, int]) -> SelfConsistency:
    theta = lookup(THETA, acting.name, "group")
    return self_consistency(lambda images: layer(images).pose[:, index], pictures, theta, group=acting, size=size)


def _figures(result: SelfConsistency) -> dict[str, Any]:
    interval = result.slope_interval.item()
    return {
        "name": result.names[0],
        "theta": [result.theta.min().item(), result.theta.max().item()],
        "slope": result.slope.item(),
        "interval": interval if interval == interval else None,  # NaN for a single image
        "rms": result.rms.item(),
        "median": result.median.item(),
    }


def _plot(found: list[SelfConsistency], path: Path) -> None:
    from matplotlib.figure import Figure

    from equivariant_transformers.viz import pose_plot

    figure = Figure(figsize=(4 * len(found), 4), layout="constrained")
    for axes, result in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        pose_plot(result, axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, format="png")
