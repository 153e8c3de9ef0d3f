"""Figures that `et audit` and `et train` print: self-consistency of each layer, and frames of the whole stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equivariant_transformers.audit import FrameConsistency, SelfConsistency, frame_consistency, self_consistency
from equivariant_transformers.audit.frames import Modulo
from equivariant_transformers.audit.probes import MAX_THETA, THETA, filling_crop, fills_frame
from equivariant_transformers.audit.rendering import off_grid
from equivariant_transformers.cli import console
from equivariant_transformers.data import ImageSet
from equivariant_transformers.geometry.groups import Group, lookup
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.augment import Augmentation
from equivariant_transformers.nn.calibration import MOVED
from equivariant_transformers.nn.canonicalizer import Canonicalized, Canonicalizer
from equivariant_transformers.nn.layers import Layer
from equivariant_transformers.nn.modes import evaluating
from equivariant_transformers.training import Config

_LARGE = 128  # side in pixels that images are enlarged to, at most four-fold
CANVAS_LIMITS = {name: max(map(abs, theta)) for name, theta in THETA.items()}
"""Largest theta of each group on a canvas."""

_AUDITED = (4, 16)  # smallest and largest number of images for the audit at the end of training
_AUDITED_PIXELS = 2**16  # in these images together, so that the audit takes a few seconds
_STACK_CROP = 0.5  # leaves room for the product of several transformations
_SEED = 0  # of the transformations of a stack


@dataclass(frozen=True)
class Row:
    """Self-consistency of one parameter of a layer."""

    content: str
    """Content of the test images, for the reader of the table."""
    theta: tuple[float, float]
    result: SelfConsistency

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of the row for JSON."""
        measures = {
            "slope": self.result.slope,
            "interval": self.result.slope_interval,  # NaN for a single image
            "rms": self.result.rms,
            "median": self.result.median,
            "rms_theta": self.result.rms_theta,
            "rms_pixels": self.result.rms_pixels,
        }
        numbers = {name: _number(value.item()) for name, value in measures.items()}
        return {"name": self.result.names[0], "content": self.content, "theta": list(self.theta), **numbers}

    @property
    def cells(self) -> list[str]:
        """Cells of the row of a table."""
        found = self.result
        slope, interval = found.slope.item(), found.slope_interval.item()
        return [
            found.names[0],
            self.content,
            f"{self.theta[0]:+.2f} .. {self.theta[1]:+.2f}",
            f"{slope:.3f}" if math.isnan(interval) else f"{slope:.3f} ± {interval:.3f}",
            *(f"{value.item():.4f}" for value in (found.rms, found.median, found.rms_theta)),
            f"{found.rms_pixels.item():.2f}",
        ]


def on_canvas_rows(stack: Canonicalizer, canvases: Tensor, size: tuple[int, int]) -> list[Row]:
    """Measure each layer of a stack on content in the middle of `canvases`, over the range `THETA`."""
    rows = []
    for layer, index, acting in _parameters(stack):
        theta = lookup(THETA, acting.name, "group")
        rows.append(Row("on a canvas", theta, _follow(layer, index, acting, canvases, theta, size, None)))
    return rows


def fixed_frame_rows(
    stack: Canonicalizer, images: Tensor, size: tuple[int, int], max_theta: dict[str, float]
) -> list[Row]:
    """Measure each layer of a stack on content that moves inside the fixed frame of `images` `(B, C, H, W)`.

    The range of theta is from minus to plus `max_theta`. Images that fill their frame are cropped, so that the frame is
    full at every theta.
    """
    originals, fills = _enlarged(images, size), fills_frame(images)
    rows = []
    for layer, index, acting in _parameters(stack):
        limit = lookup(max_theta, acting.name, "group")
        crop = filling_crop(acting, off_grid(-limit, limit), size) if fills else None
        content = f"{crop:.2f} of the image" if crop else "whole image"
        result = _follow(layer, index, acting, originals, (-limit, limit), size, crop)
        rows.append(Row(content, (-limit, limit), result))
    return rows


def audit_images(
    stack: Canonicalizer, validation: ImageSet, augmentation: Augmentation, modulo: Modulo = None
) -> tuple[list[Row], FrameConsistency | None]:
    """Measure a trained stack on the first validation images, within `frame_limits`."""
    size, limits = (validation.images.shape[-2], validation.images.shape[-1]), frame_limits(augmentation)
    least, most = _AUDITED
    count = max(least, min(most, _AUDITED_PIXELS // (size[0] * size[1])))
    images = validation.normalise(validation.images[:count]).to(validation.labels.device)
    return fixed_frame_rows(stack, images, size, limits), stack_frames(stack, images, size, limits, modulo)


def frame_limits(augmentation: Augmentation) -> dict[str, float]:
    """Return the largest theta of each group in a fixed frame: that of the augmentation, at most `MAX_THETA`.

    Rotations are whole turns, because a layer follows them beyond the augmentation.
    """
    given = {group.name: limit for group, limit in augmentation.max_theta.items() if group.name != "rotation"}
    return {name: min(limit, given.get(name, math.inf)) for name, limit in MAX_THETA.items()}


def stack_frames(
    stack: Canonicalizer,
    images: Tensor,
    size: tuple[int, int],
    max_theta: dict[str, float],
    modulo: Modulo,
) -> FrameConsistency | None:
    """Measure the frames of a stack under random products of its groups; None for fewer than two layers.

    With a similarity as `modulo`, the products include a rotation and a dilation.
    """
    if len(stack.layers) < 2:
        return None
    names = [acting.name for _, _, acting in _parameters(stack)] + (["rotation", "dilation"] if modulo else [])
    limits = {name: lookup(max_theta, name, "group") for name in names}
    crop = _STACK_CROP if fills_frame(images) else None
    torch.manual_seed(_SEED)
    return frame_consistency(stack, _enlarged(images, size), limits, modulo=modulo, size=size, crop=crop)


def print_audit(rows: Sequence[Row], frames: FrameConsistency | None) -> None:
    """Print the table of `rows`, and the discrepancy of the stack's frames."""
    columns = ("parameter", "content", "theta", ">slope (95 %)", ">rms", ">median", ">rms theta", ">rms pixels")
    console.table(*columns, rows=[row.cells for row in rows])
    if frames is not None:
        console.say(str(frames))


def say_calibration(config: Config, factors: Sequence[float]) -> None:
    """Print the factors by which the evidence of the layers was scaled, or that the images are not fit for it."""
    if config.layers and config.alignment and config.predictor == "posterior" and not factors:
        console.say(
            "the layers move more than half of the validation images and were not calibrated: upright images are needed"
        )
    elif any(factor != 1 for factor in factors):
        scaled = ", ".join(f"{factor:.2f}" for factor in factors)
        console.say(
            f"evidence of the layers times {scaled}, chosen on upright validation images to move at most {MOVED:.0%}"
        )


def frame_figures(frames: FrameConsistency | None) -> dict[str, Any] | None:
    """Return the figures of a stack for JSON."""
    if frames is None:
        return None
    layers, no_layers = ([_number(value) for value in part] for part in (frames.quartiles, frames.quartiles_no_layers))
    return {"modulo": frames.modulo, "quartiles": layers, "quartiles_no_layers": no_layers}


def modulo_of(network: Canonicalized) -> Modulo:
    """Return the transformation that the backbone of a network absorbs: a similarity in log-polar coordinates."""
    groups = () if network.chart is None else network.chart.sampled.groups
    return "similarity" if {acting.name for acting in groups} == {"rotation", "dilation"} else None


def _follow(
    layer: Layer,
    index: int,
    acting: Group,
    originals: Tensor,
    theta: tuple[float, float],
    size: tuple[int, int],
    crop: float | None,
) -> SelfConsistency:
    with evaluating(layer):
        return self_consistency(
            lambda images: layer(images).pose[:, index],
            originals,
            off_grid(*theta),
            group=acting,
            size=size,
            crop=crop,
            fill=layer.fill,
        )


def _parameters(stack: Canonicalizer) -> list[tuple[Layer, int, Group]]:
    layers: Any = stack.layers
    return [(layer, index, acting) for layer in layers for index, acting in enumerate(layer.chart.groups)]


def _enlarged(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return `images` enlarged to up to four times `size`, for sampling test images; larger images are not changed."""
    factor = min(4, max(1, math.ceil(_LARGE / max(size))))
    if min(images.shape[-2] / size[0], images.shape[-1] / size[1]) >= factor:
        return images
    return Warp.identity().image(images, size=(factor * size[0], factor * size[1]), mode="bicubic", padding="border")


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
