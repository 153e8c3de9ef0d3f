"""Settings that are chosen if they are not given: for a folder from its files, and the training of the layers."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from equivariant_transformers.data.folder import TEST, VALIDATION
from equivariant_transformers.data.registry import is_own
from equivariant_transformers.data.table import find_images
from equivariant_transformers.data.tree import usual_side
from equivariant_transformers.training import Config
from equivariant_transformers.training.aligning import default_augment

_FINE_TUNING = 2e-4  # learning rate for pretrained weights
_STEPS = 6_000  # of training, if this takes 20 to 300 epochs
_UPRIGHT = ("cifar10", "svhn", "svhn-extra")  # data sets of photographs, whose images are upright
_FEW = 10  # validation images; with fewer, an error of 0 or 100 % in the first epoch can be the best of all


def align(config: Config, given: Collection[str]) -> Config:
    """Return `config` with the training of layers for upright photographs, as far as its fields are not `given`.

    Layers for folders and for CIFAR-10 get the predictor for photographs, which learns from the alignment loss alone.
    The loss compares upright images with randomly transformed images, so a small augmentation is chosen too. The last
    epoch is kept, because errors on upright validation images do not measure such a layer. SVHN, which the paper trains
    without augmentation, is trained with the alignment loss if there is an augmentation.
    """
    photographs = is_own(config.dataset) or config.dataset == "cifar10"
    if not config.layers or not (photographs or config.dataset in _UPRIGHT):
        return config
    free = "predictor" not in given or config.predictor == "posterior"
    if photographs and free and not {"augment", "alignment"} & set(given):
        config = config.replace(augment=default_augment(config.layers))
    if not config.augment:
        return config
    config = config if "alignment" in given else config.replace(alignment=1.0)
    if photographs and config.alignment > 0:
        chosen = {"predictor": "posterior", "keep": "last"}
        config = config.replace(**{name: value for name, value in chosen.items() if name not in given})
    return config


def fill_in(config: Config, given: Collection[str]) -> Config:
    """Return `config` with the fields that are not `given` chosen from the number and the sizes of the images."""
    fields = {"size", "learning_rate", *choose(1, 1)}
    if fields <= set(given):
        return config
    parts = find_images(config.dataset).parts
    files = len(parts["train"])
    shares = {part: share for part, share in (("validation", VALIDATION), ("test", TEST)) if part not in parts}
    images = max(1, round((1 - sum(shares.values())) * files))
    validation = len(parts["validation"]) if "validation" in parts else round(VALIDATION * files)
    chosen = choose(images, validation) | ({} if "size" in given else {"size": usual_side(parts["train"])})
    if config.pretrained:
        chosen["learning_rate"] = _FINE_TUNING
    if config.alignment:
        chosen |= {"patience": None, "keep": config.keep}
    return config.replace(**{name: value for name, value in chosen.items() if name not in given})


def choose(images: int, validation: int, *, steps: int = _STEPS) -> dict[str, Any]:
    """Return the batch size, the length of training and the learning rates for a number of training images.

    Training takes about `steps` steps. An epoch has at least eight steps where there are enough images. The learning
    rate falls to a twentieth, as in the paper. With few validation images, whose errors say little, all epochs are
    trained and the last one is kept.

    >>> choose(6, 1)
    {'batch_size': 8, 'epochs': 300, 'patience': None, 'keep': 'last', 'warmup': 3, 'lr_decay': 0.99}
    >>> choose(60_000, 6_000)
    {'batch_size': 128, 'epochs': 20, 'patience': 10, 'keep': 'best', 'warmup': 1, 'lr_decay': 0.861}
    """
    batch_size = min(max(2 ** int(math.log2(max(1, images / 8))), 8), 128)
    per_epoch = max(1, images // batch_size)
    epochs = min(max(round(steps / per_epoch), 20), 300)
    few = validation < _FEW
    return {
        "batch_size": batch_size,
        "epochs": epochs,
        "patience": None if few else max(10, epochs // 5),
        "keep": "last" if few else "best",
        "warmup": 1 if per_epoch >= 100 else 3,
        "lr_decay": round(0.05 ** (1 / epochs), 3),
    }
