"""Diagnosis of a run whose loss is not finite or far above chance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from equivariant_transformers.training.config import Config
from equivariant_transformers.training.optimization import Batches


def diagnose(module: nn.Module, loader: Batches, epoch: int, loss: float, config: Config) -> str:
    """Return one line with the epoch and the layer in which a run failed, and a remedy."""
    what = f"the loss was {loss:.3g} in epoch {epoch}"
    if math.isfinite(loss):
        return f"{what}, far above chance. Try a learning rate below {config.learning_rate:g}"
    where = _first_bad_layer(module, loader)
    hint = f"Try a learning rate below {config.learning_rate:g}"
    if config.precision == "bfloat16":
        hint += ", or float32"
    return f"{what}; the first values that are not finite are in {where}. {hint}"


@torch.no_grad()
def _first_bad_layer(module: nn.Module, loader: Batches) -> str:
    for name, parameter in module.named_parameters():
        if not parameter.isfinite().all():
            return f"the weights {name!r}"
    found: list[str] = []

    def inspect(name: str, output: object) -> None:
        if isinstance(output, Tensor) and not output.isfinite().all():
            found.append(name)

    hooks = [
        layer.register_forward_hook(lambda _, __, output, name=name: inspect(name, output))
        for name, layer in module.named_modules()
    ]
    try:
        module(loader.batch(loader.epoch(0)[0])[0])
    finally:
        for hook in hooks:
            hook.remove()
    return f"the output of layer {found[0]!r}" if found else "the gradients"
