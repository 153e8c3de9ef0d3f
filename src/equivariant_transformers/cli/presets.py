"""Presets: complete configs, by the name of their data set."""

from __future__ import annotations

from pathlib import Path

from equivariant_transformers.data.registry import is_own
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.training import Config

_AFFNIST = Config(dataset="affnist", network="affnist", layers=("cartesian",), chart="log_polar", fill="black")
_SVHN = Config(dataset="svhn", network="resnet10", layers=("cartesian", "log_polar", "x_scale"))
PRESETS: dict[str, Config] = {
    config.dataset: config
    for config in (
        Config(
            dataset="projective-mnist",
            layers=("x_shear", "hyperbolic_rotation"),
            chart="log_polar",
            fill="black",
        ),
        _AFFNIST,
        _AFFNIST.replace(dataset="affnist-centred"),
        _AFFNIST.replace(dataset="homnist"),
        _SVHN,
        _SVHN.replace(dataset="svhn-extra", epochs=150),
        Config(dataset="cifar10", network="resnet18"),
        Config(dataset="mnist", network="resnet10", fill="black"),
        Config(dataset="rotated-mnist", network="resnet10", layers=("rotation",), fill="black"),
        Config(dataset="mnist-rts", network="resnet10", layers=("cartesian", "log_polar"), fill="black"),
        Config(dataset="sim2mnist", layers=("cartesian",), chart="log_polar", fill="black"),
        Config(dataset="rs-mnist", chart="log_polar", fill="black"),
        Config(dataset="scale-mnist", network="resnet10", layers=("dilation",), fill="black"),
    )
}
"""Configs that `et train NAME` starts from, by name."""


def preset(name: str) -> Config:
    """Return the preset `name`, or the config for the images in a folder or of a CSV file at this path."""
    if is_own(name):
        return Config(dataset=name, network="resnet10")
    if Path(name).name != name or Path(name).suffix.lower() == ".csv":
        raise FileNotFoundError(f"there is no folder or CSV file {name}")
    try:
        return lookup(PRESETS, name, "preset")
    except ValueError as error:
        raise ValueError(f"{error}; the path of a folder of images or of a CSV file is a preset too") from None
