"""Training of a canonicalizer alone, without labels, on upright images."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from equivariant_transformers.audit.probes import MAX_THETA
from equivariant_transformers.data import ImageSet, Splits
from equivariant_transformers.data.cache import sha256
from equivariant_transformers.data.stored import checksums
from equivariant_transformers.geometry.atlas import chart
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.alignment import TOLERANCE, frame_distance
from equivariant_transformers.nn.augment import Augmentation, parse_max_theta
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.nn.canonicalizer import Canonicalizer
from equivariant_transformers.training.config import Config
from equivariant_transformers.training.job import evaluation_batch, make_loader, place
from equivariant_transformers.training.run import Job

NO_NETWORK = "none"
"""Network of a config that trains a canonicalizer alone."""
_ALWAYS = {"rotation": 0.26, "dilation": 0.1}  # small changes that hide interpolation and the edges of the images


class Frames(nn.Module):
    """Canonicalizer as a network of two classes: 0 for a right canonical frame and 1 for a wrong one.

    In evaluation, image number i of a batch is transformed by the transformation number i of `checks`, without the
    pixels outside of the image. Its frame is right if the canonicalizer undoes the transformation.

    Args:
        canonicalizer: canonicalizer to train.
        checks: transformations to undo in evaluation.
    """

    def __init__(self, canonicalizer: Canonicalizer, checks: Augmentation) -> None:
        super().__init__()
        self.canonicalizer = canonicalizer
        self.checks = checks

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(B, 2)` for upright images `(B, C, H, W)`."""
        start = self.checks.each(images)
        count, _, height, width = images.shape
        mask = start.valid((height, width), images.device).expand(count, -1, -1, -1)
        out: Canonicalization = self.canonicalizer(start.image(images), mask=mask)
        return _logits(start.compose(out.warp), images)

    def read(self, out: Canonicalization) -> Tensor:
        """Return logits `(B, 2)` for the result of the canonicalizer."""
        return _logits(out.warp, out.images)


def default_augment(layers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the augmentation for `layers`: small rotations and dilations, and the other groups of the layers.

    >>> default_augment(("rotation", "x_shear"))
    ('rotation=0.26', 'dilation=0.1', 'x_shear=0.4')
    """
    groups = [acting.name for name in layers for acting in chart(name).groups]
    limits = _ALWAYS | {name: MAX_THETA[name] for name in groups if name not in _ALWAYS}
    return tuple(f"{name}={limit:g}" for name, limit in limits.items())


def make_alignment_job(config: Config, splits: Splits) -> Job:
    """Return a job that trains a canonicalizer on upright images. Labels are not used.

    The errors of the job are shares of wrong canonical frames in per cent.
    """
    if config.network != NO_NETWORK or not config.alignment:
        raise ValueError(f"the alignment of a canonicalizer needs network: {NO_NETWORK} and alignment: 1")
    train, validation, test = (_unlabelled(part) for part in splits)
    device = train.images.device
    torch.manual_seed(config.seed)
    canonicalizer = Canonicalizer(
        config.layers, train.images.shape[1], predictor=config.predictor, iterations=config.iterations
    )
    augmentation = Augmentation(parse_max_theta(config.augment))
    evaluated = evaluation_batch(device)
    return Job(
        config=config,
        module=place(Frames(canonicalizer, checks(canonicalizer, augmentation)), device),
        train=make_loader(train, config.batch_size, seed=config.seed),
        validation=make_loader(validation, evaluated),
        test=make_loader(test, evaluated),
        augmentation=augmentation,
        loss=lambda logits, _: torch.zeros((), device=logits.device),
        labels=" ".join(sha256(checksums(part.images)) for part in splits),
    )


def checks(canonicalizer: Canonicalizer, augmentation: Augmentation) -> Augmentation:
    """Return the transformations that a trained canonicalizer should undo.

    These are the groups of its layers: whole turns for a periodic chart, and otherwise the range of the augmentation.
    """
    given = {acting.name: limit for acting, limit in augmentation.max_theta.items()}
    limits: dict[str, float] = {}
    for layer in canonicalizer.layers:
        for acting, wraps in zip(layer.chart.groups, layer.chart.periodic, strict=False):  # type: ignore[union-attr, arg-type]
            if not wraps and acting.name not in given:
                raise ValueError(
                    f"the layers cannot learn {acting.name} without augmentation: add {acting.name}="
                    f"{MAX_THETA.get(acting.name, 0.3):g} to augment"
                )
            limits[acting.name] = math.pi if wraps else given[acting.name]
    return Augmentation(limits)


def _logits(warp: Warp, images: Tensor) -> Tensor:
    excess = frame_distance(warp, images).detach() - TOLERANCE
    return torch.stack((-excess, excess), -1)


def _unlabelled(part: ImageSet) -> ImageSet:
    labels = torch.zeros(len(part), dtype=torch.long, device=part.labels.device)
    return dataclasses.replace(part, labels=labels, classes=("right", "wrong"))
