"""Settings for a folder of images that depend on its files."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from equivariant_transformers.data.folder import TEST, VALIDATION
from equivariant_transformers.data.tree import scan, usual_side
from equivariant_transformers.training import Config

_STEPS = 6_000  # of training, if this takes 20 to 300 epochs


def fill_in(config: Config, given: Collection[str]) -> Config:
    """Return `config` with the fields that are not `given` chosen from the number and the sizes of the images."""
    fields = {"size", *choose(1)}
    if fields <= set(given):
        return config
    tree = scan(config.dataset)
    held = sum(share for part, share in (("validation", VALIDATION), ("test", TEST)) if part not in tree.parts)
    images = max(1, round((1 - held) * len(tree.parts["train"])))
    chosen = choose(images) | ({} if "size" in given else {"size": usual_side(tree.parts["train"])})
    return config.replace(**{name: value for name, value in chosen.items() if name not in given})


def choose(images: int) -> dict[str, Any]:
    """Return the batch size, the length of training and the learning rates for a number of training images.

    An epoch has at least eight steps where there are enough images. The learning rate falls to a twentieth, as in the
    paper.

    >>> choose(6)
    {'batch_size': 8, 'epochs': 300, 'patience': 60, 'warmup': 3, 'lr_decay': 0.99}
    >>> choose(60_000)
    {'batch_size': 128, 'epochs': 20, 'patience': 10, 'warmup': 1, 'lr_decay': 0.861}
    """
    batch_size = min(max(2 ** int(math.log2(max(1, images / 8))), 8), 128)
    steps = max(1, images // batch_size)
    epochs = min(max(round(_STEPS / steps), 20), 300)
    return {
        "batch_size": batch_size,
        "epochs": epochs,
        "patience": max(10, epochs // 5),
        "warmup": 1 if steps >= 100 else 3,
        "lr_decay": round(0.05 ** (1 / epochs), 3),
    }
