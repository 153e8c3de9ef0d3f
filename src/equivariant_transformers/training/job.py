"""Data, network and job of a config, on the device."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equivariant_transformers import models
from equivariant_transformers.data import BufferedLoader, ImageSet, Loader, Splits, Stored
from equivariant_transformers.data.cache import sha256
from equivariant_transformers.data.loader import Transform
from equivariant_transformers.data.registry import find_data
from equivariant_transformers.geometry.atlas import chart
from equivariant_transformers.models import Network
from equivariant_transformers.nn.augment import Augmentation, parse_max_theta
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.nn.centre import check_translations
from equivariant_transformers.training import Config, Job, distributed
from equivariant_transformers.training.tasks import make_loss, standardise

_EVALUATION_BATCH = {"cuda": 1000, "cpu": 250}
# On a CPU, a step is faster with channels last. On a GPU, the compiler chooses the layout.
_LAYOUT = {"cuda": torch.preserve_format, "cpu": torch.channels_last}


def find_device(name: str) -> torch.device:
    """Return the torch device `name`; auto is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in _EVALUATION_BATCH:
        raise ValueError(f"the device must be auto, cpu, cuda, or one of several GPUs as in cuda:1, got {name!r}")
    found = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ValueError(f"GPU {name!r} is not available (GPUs found by torch: {found}); use cpu or auto")
    return device


def load_data(config: Config, device: torch.device, *, accept_other_files: bool = False, **options: Any) -> Splits:
    """Return the parts of the config's data set on `device`. `options` are passed to the function that loads it."""
    if accept_other_files:  # few data sets have this option
        options["accept_other_files"] = True
    load = find_data(config.dataset)
    known = inspect.signature(load).parameters
    usual = {"examples": None, "copies": 1, "size": None}
    asked = [name for name, value in usual.items() if getattr(config, name) != value]
    if unknown := [name for name in (*asked, *options) if name not in known]:
        raise ValueError(f"{config.dataset} does not let you choose {', '.join(unknown)}: leave it out")
    wanted = {name: getattr(config, name) for name in usual} | {"seed": config.data_seed, "device": device}
    chosen = {name: value for name, value in wanted.items() if name in known and value is not None}
    return Splits(*(part.to(device) for part in load(**(chosen | options))))


def make_module(config: Config, images: ImageSet, network: Network | None = None) -> Canonicalized:
    """Return the config's network for `images` before training. Random weights are those of the config's seed.

    A network of the user, `module:function`, is passed as the function `network`.
    """
    torch.manual_seed(config.seed)
    _, channels, height, width = images.images.shape
    return build_network(
        config,
        in_channels=channels,
        classes=len(images.classes),
        size=(height, width),
        fill=images.black if config.fill == "black" else None,
        network=network,
        pretrained=config.pretrained,
    )


def build_network(
    config: Config,
    *,
    in_channels: int,
    classes: int,
    size: tuple[int, int],
    fill: float | None,
    network: Network | None = None,
    pretrained: bool = False,
) -> Canonicalized:
    """Return the config's network for images of the given channels and size, with random or `pretrained` weights."""
    return models.build(
        config.network if network is None else network,
        layers=config.layers,
        iterations=config.iterations,
        chart=config.chart,
        predictor=config.predictor,
        in_channels=in_channels,
        classes=classes,
        size=size,
        strides=(2, 1) if min(size) > 32 else (1, 1),  # as in the paper, for MNIST and for SVHN
        dropout=config.dropout,
        fill=fill,
        pose_noise=config.pose_noise,
        pretrained=pretrained,
    )


def place(module: nn.Module, device: torch.device) -> nn.Module:
    """Return `module` on `device`, in the memory format that is fastest there."""
    moved: nn.Module = module.to(device, memory_format=_LAYOUT[device.type])  # type: ignore[call-overload]
    return moved


def check_predictor(config: Config) -> None:
    """Raise a ValueError if the layers of the config could learn nothing, or do not fit the predictor."""
    if config.predictor == "centre":
        for name in config.layers:
            check_translations(chart(name))
    if config.layers and config.predictor == "posterior" and not config.alignment:
        raise ValueError(
            "the predictor posterior learns from the alignment loss alone: set augment and alignment, as in "
            "augment: rotation=0.3 and alignment: 1, or choose the predictor consistent"
        )


def make_job(
    config: Config,
    splits: Splits,
    *,
    directory: Path | None = None,
    name: str = "run",
    network: Network | None = None,
    transform: Transform | None = None,
) -> Job:
    """Return a job for `train`. With several processes, its loaders return the share of this process.

    `transform` is applied to batches of training images, as in `data.BufferedLoader`.
    """
    check_predictor(config)
    labels = hash_labels(splits)
    splits = standardise(config, splits)
    device = splits.train.images.device
    evaluated = evaluation_batch(device, config.tta)
    return Job(
        config=config,
        module=place(make_module(config, splits.train, network), device),
        train=make_loader(splits.train, config.batch_size, seed=config.seed, transform=transform),
        validation=make_loader(splits.validation, evaluated),
        test=make_loader(splits.test, evaluated),
        directory=directory,
        name=name,
        augmentation=Augmentation(parse_max_theta(config.augment)),
        loss=make_loss(config, splits.train),
        labels=labels,
    )


def evaluation_batch(device: torch.device, tta: int = 1) -> int:
    """Return the batch size for evaluation over all processes, with `tta` copies per image."""
    processes = distributed.world_size()
    size = max(processes, _EVALUATION_BATCH[device.type] // tta)
    return size - size % processes


def make_loader(
    part: ImageSet, batch_size: int, *, seed: int = 0, transform: Transform | None = None
) -> Loader | BufferedLoader:
    """Return a loader of this process's share of each batch. A part smaller than `batch_size` is one batch."""
    processes = distributed.world_size()
    if len(part) < processes:
        raise ValueError(f"{processes} processes cannot share {len(part)} images of {part.name}: start fewer processes")
    if len(part) < batch_size:
        batch_size = len(part) - len(part) % processes
    loader = Loader(part, batch_size=batch_size, seed=seed, rank=distributed.rank(), world_size=processes)
    buffered = transform is not None or isinstance(part.images, Stored)
    return BufferedLoader(loader, transform) if buffered else loader


def hash_labels(splits: Splits) -> str:
    """Return a hash of the labels. It changes if the images of a folder, and with them its test images, change."""
    return " ".join(sha256(part.labels.cpu().numpy()) for part in splits)
