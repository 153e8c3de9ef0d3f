"""Results of a layer or a stack, derived from one step per layer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils import _pytree

from equivariant_transformers.geometry.reduction import Pyramid
from equivariant_transformers.geometry.steps import FlowStep
from equivariant_transformers.geometry.warp import Warp

if TYPE_CHECKING:
    from equivariant_transformers.nn.layers import Layer


_SHOWN = 8  # images in the table of poses


@dataclass(frozen=True, eq=False)
class Step:
    """Contribution of one layer to a canonicalization."""

    layer: Layer
    pose: Tensor
    """Pose `(B, k)`, one column per group of the layer."""
    confidence: Tensor
    """Confidence `(B, k)`, from 0 to 1."""
    heatmaps: tuple[Tensor, ...]
    """Heat map `(B, samples)` of each parameter along its pose axis; empty for a `SpatialTransformer`."""
    warp: Warp
    """Map from the frame after this layer to the frame of the input."""
    evidence: Tensor | None = None
    """Logits of the content at each position of the pose axes, see `Prediction.evidence`."""


@dataclass(frozen=True, eq=False, repr=False)
class Canonicalization:
    """Canonical images of a batch, with the pose that each layer removed. `print` shows a table of the poses."""

    images: Tensor
    """Input images `(B, C, H, W)`."""
    steps: tuple[Step, ...]
    """Steps in the order of execution, one per layer and iteration."""
    fill: float | Tensor
    """Fill value outside the input, a number or `(B, C, 1, 1)`."""
    start: Warp = dataclasses.field(default_factory=Warp)
    """Warp applied to the input before the first layer: the augmentation in training, otherwise the identity."""
    mask: Tensor | None = None
    """Mask `(B, 1, H, W)` of the input pixels that show the picture; None if all do."""

    def __repr__(self) -> str:
        """Return a table of the poses of the first images, with the confidence of each pose in parentheses."""
        count, *shape = self.images.shape
        lines = [f"Canonicalization of {count} images, {' x '.join(map(str, shape))}"]
        if not self.steps:
            return lines[0]
        poses, confidence = (part[:_SHOWN].detach().tolist() for part in (self.pose, self.confidence))
        rows = [["image", *self.names]]
        for number, values in enumerate(zip(poses, confidence, strict=True)):
            rows.append([str(number), *(f"{pose:+.3f} ({share:.2f})" for pose, share in zip(*values, strict=True))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["  ".join(map(str.rjust, row, widths)) for row in rows]
        lines += [f"and {count - _SHOWN} more images"] if count > _SHOWN else []
        return "\n".join([*lines, "pose (confidence)"])

    @property
    def warp(self) -> Warp:
        """Map from the canonical frame to the frame of the input.

        `warp.points` and `warp.restore` map predictions back to the input.
        """
        return self.steps[-1].warp if self.steps else self.start

    @property
    def pose(self) -> Tensor:
        """Poses `(B, k)` of all steps, one column per parameter."""
        return self._columns([step.pose for step in self.steps])

    @property
    def confidence(self) -> Tensor:
        """Confidence `(B, k)` of each parameter, from 0 to 1."""
        return self._columns([step.confidence for step in self.steps])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups of the `k` parameters."""
        return tuple(group.name for step in self.steps for group in step.layer.chart.groups)

    @property
    def heatmaps(self) -> tuple[Tensor, ...]:
        """Heat maps `(B, samples)` of each parameter of the equivariant layers."""
        return tuple(heatmap for step in self.steps for heatmap in step.heatmaps)

    @property
    def image(self) -> Tensor:
        """Canonical images `(B, C, H, W)`, sampled once from the input at each access."""
        return self.warp.image(self.images, fill=self.fill) if self.warp.steps else self.images

    @property
    def valid(self) -> Tensor:
        """Mask `(B, 1, H, W)` of the canonical pixels that are sampled inside the picture."""
        size = (self.images.shape[-2], self.images.shape[-1])
        valid = self.warp.valid(size, self.images.device).expand(self.images.shape[0], -1, -1, -1)
        return valid if self.mask is None else valid & self.warp.mask(self.mask)

    def on(self, grid: Tensor) -> Tensor:
        """Return the canonical images at the points of `grid` `(..., h, w, 2)`, sampled once from the input."""
        return sample_on(Pyramid(self.images), self.warp, grid, self.fill)

    def after(self, steps: int) -> Canonicalization:
        """Return the result of the first `steps` steps.

        >>> import equivariant_transformers as et
        >>> out = et.Canonicalizer(["x_shear", "rotation"])(torch.rand(2, 1, 32, 32))
        >>> torch.equal(out.after(0).image, out.images), torch.equal(out.after(2).image, out.image)
        (True, True)
        """
        return dataclasses.replace(self, steps=self.steps[:steps])

    def _columns(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts, -1) if parts else self.images.new_zeros(self.images.shape[0], 0)


def sample_on(images: Pyramid, warp: Warp, grid: Tensor, fill: float | Tensor) -> Tensor:
    """Sample `images` through `warp` at `grid` `(..., h, w, 2)`. Images finer than the grid are smoothed."""
    _check_device(images.images, grid)
    return warp.sample(images.smoothed(grid), grid, fill=fill)


def sample_valid_on(images: Pyramid, warp: Warp, grid: Tensor, fill: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of `sample_on`, and the mask `(B or 1, ..., h, w)` of the samples that show the picture."""
    _check_device(images.images, grid)
    return warp.sample_valid(images.smoothed(grid), grid, images.mask, fill=fill)


def _check_device(images: Tensor, grid: Tensor) -> None:
    if images.device != grid.device:
        raise ValueError(f"the images are on {images.device} and the layer is on {grid.device}: move either with .to()")


# torch.export needs these registrations to pass or return a canonicalization.
_pytree.register_pytree_node(
    FlowStep,
    lambda step: ([step.theta], step.flow),
    lambda leaves, flow: FlowStep(flow, *leaves),
    serialized_type_name="equivariant_transformers.FlowStep",
)
_pytree.register_pytree_node(
    Step,
    lambda step: ([step.pose, step.confidence, step.heatmaps, step.warp, step.evidence], step.layer),
    lambda leaves, layer: Step(layer, *leaves),
    serialized_type_name="equivariant_transformers.Step",
)
for _type in (Warp, Canonicalization):
    torch.export.register_dataclass(_type)
