"""Names of version 0.1 in files that later versions read: model files, result files, checkpoints and configs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

FIELDS = {
    "averaging": "ema_decay",
    "background": "fill",
    "decay": "lr_decay",
    "jitter": "pose_noise",
    "looks": "tta",
    "passes": "iterations",
    "views": "augment",
}
"""Renamed fields of `Config` and `Card`: from the name in version 0.1 to the current name."""

_OLD_FIELDS = {new: old for old, new in FIELDS.items()}


def current_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` under their current names.

    >>> current_fields({"decay": 0.98, "seed": 1})
    {'lr_decay': 0.98, 'seed': 1}
    """
    return {FIELDS.get(name, name): value for name, value in fields.items()}


def first_name(field: str) -> str:
    """Return the original name of a field, which is used in the keys of result files."""
    return _OLD_FIELDS.get(field, field)


def current_state(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a training checkpoint under the current names of the weights."""
    weights = current_weights(name.removeprefix("model/") for name in tensors if name.startswith("model/"))
    renamed = {}
    for name, tensor in tensors.items():
        part, _, weight = name.partition("/")
        weight, moment = weight.rsplit("/", 1) if part == "optimizer" else (weight, "")
        place = "/".join(filter(None, (part, weights.get(weight, weight), moment)))
        renamed[place] = tensor
    return renamed


def current_weights(names: Iterable[str]) -> dict[str, str]:
    """Return a mapping from the names in a state dict to their current names.

    In version 0.1, a network without layers was the bare classifier, or the second part of a `Sequential` behind a
    chart. Now every network is a `Canonicalized` with a `backbone`.

    >>> current_weights(["1.head.weight", "1.head.bias"])
    {'1.head.weight': 'backbone.head.weight', '1.head.bias': 'backbone.head.bias'}
    """
    names = list(names)
    if any(name.startswith(("backbone.", "canonicalizer.")) for name in names):
        return {name: name for name in names}
    behind_chart = bool(names) and all(name.startswith("1.") for name in names)
    return {name: "backbone." + (name.removeprefix("1.") if behind_chart else name) for name in names}
