"""From a config to everything that training needs: the data, the network, and both on the device."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equivariant_transformers import data, models
from equivariant_transformers.data import ImageSet, Loader, Splits
from equivariant_transformers.training import Config, Job, distributed

_EVALUATION_BATCH = {"cuda": 1000, "cpu": 250}
# On a CPU a step is faster with the channels of a pixel side by side; on a GPU the compiler chooses.
_LAYOUT = {"cuda": torch.preserve_format, "cpu": torch.channels_last}


def find_device(name: str) -> torch.device:
    """The torch device called `name`; auto is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"there is no GPU that torch can use for device {name!r}; use cpu or auto")
    return device


def load_data(config: Config, device: torch.device, **options: Any) -> Splits:
    """The parts of the config's data set on `device`; `options` go to the function that loads it."""
    if Path(config.dataset).is_dir():
        splits = data.from_folder(config.dataset, seed=config.data_seed, **options)
    else:
        known = (
            inspect.signature(data.DATASETS[config.dataset].load).parameters if config.dataset in data.DATASETS else {}
        )
        wanted = {"examples": config.examples, "copies": config.copies, "seed": config.data_seed, "device": device}
        chosen = {name: value for name, value in wanted.items() if name in known and value is not None}
        splits = data.load(config.dataset, **chosen, **options)
    return Splits(*(part.to(device) for part in splits))


def make_module(config: Config, images: ImageSet) -> nn.Module:
    """The config's network, made for `images`, with the weights of its seed."""
    torch.manual_seed(config.seed)
    height, width = images.images.shape[-2:]
    return models.build(
        config.network,
        layers=config.layers,
        chart=config.chart,
        predictor=config.predictor,
        in_channels=images.images.shape[1],
        classes=len(images.classes),
        size=(height, width),
        strides=(2, 1) if min(height, width) > 32 else (1, 1),  # as in the paper, for MNIST and for SVHN
        dropout=config.dropout,
        background=images.black if config.background == "black" else None,
    )


def make_job(config: Config, splits: Splits, *, directory: Path | None = None, name: str = "run") -> Job:
    """A job for the trainer; this process's share of it, if there are several."""
    device = splits.train.images.device
    share = {"rank": distributed.rank(), "world_size": distributed.world_size()}
    evaluated = (min(_EVALUATION_BATCH[device.type], len(part)) for part in (splits.validation, splits.test))
    validation, test = (
        Loader(part, batch_size=size - size % share["world_size"], **share)
        for part, size in zip((splits.validation, splits.test), evaluated, strict=True)
    )
    return Job(
        config=config,
        module=make_module(config, splits.train).to(device, memory_format=_LAYOUT[device.type]),  # type: ignore[call-overload]
        train=Loader(splits.train, batch_size=config.batch_size, seed=config.seed, **share),
        validation=validation,
        test=test,
        directory=directory,
        name=name,
    )
