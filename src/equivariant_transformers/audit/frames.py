r"""Consistency of whole stacks: the canonical frames of two transformed copies of the same image.

A stack maps $\phi\circ H_1$ and $\phi\circ H_2$ to canonical images whose frames are $F_i = H_i W_i$ in the coordinates
of $\phi$, where $W_i$ is the warp of the stack. If the stack removes $H_1$ and $H_2$ completely, $F_1 = F_2$.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from typing_extensions import Unpack

from equivariant_transformers.audit.rendering import Function, Rendering, make_renderer, shape_of
from equivariant_transformers.geometry.frame import pixel_centres
from equivariant_transformers.geometry.resampling import outside
from equivariant_transformers.geometry.steps import FlowStep
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.nn.augment import Augmentation, MaxTheta
from equivariant_transformers.nn.canonicalizer import Canonicalized
from equivariant_transformers.nn.modes import evaluating
from equivariant_transformers.text import quote

Modulo: TypeAlias = Literal["similarity"] | None

_CONTENT = 0.1  # smallest difference of content from the fill value, as a fraction of the largest difference


@dataclass(frozen=True, eq=False)
class FrameConsistency:
    """Discrepancy between the canonical frames of two transformed copies of each of `B` images.

    The discrepancy is the rms distance between corresponding content points of the two frames, divided by the rms
    distance of the points from their mean. It is 0 for a stack that removes the transformations completely.
    """

    discrepancy: Tensor
    """Discrepancy `(B,)` of each image, float64; NaN for an image without content."""
    no_layers: Tensor
    """Discrepancy `(B,)` without layers: the one between the two transformations themselves."""
    modulo: Modulo
    """Transformation that was fitted and removed first."""

    @property
    def median(self) -> float:
        """Median of the discrepancy over the images."""
        return self.quartiles[1]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Quartiles of the discrepancy over the images; the second is the median."""
        return _quartiles(self.discrepancy)

    @property
    def quartiles_no_layers(self) -> tuple[float, float, float]:
        """Quartiles of the discrepancy without layers."""
        return _quartiles(self.no_layers)

    def __str__(self) -> str:
        modulo = f" modulo {self.modulo}" if self.modulo else ""
        lines = [
            f"frame consistency{modulo}: distance between two canonical frames relative to the size of the content, "
            f"images: {len(self.discrepancy)}",
            "            median  quartiles",
        ]
        for name, (low, median, high) in (("layers", self.quartiles), ("no layers", self.quartiles_no_layers)):
            lines.append(f"{name:<10}  {median:6.3f}  {low:.3f} .. {high:.3f}")
        return "\n".join(lines)


def frame_consistency(
    canonicalizer: Function,
    images: Tensor,
    transformations: Augmentation | MaxTheta | tuple[Warp, Warp],
    *,
    modulo: Modulo = None,
    **rendering: Unpack[Rendering],
) -> FrameConsistency:
    """Measure how far the canonical frames of two transformed copies of the same image differ.

    Args:
        canonicalizer: a `Canonicalizer`, a layer, a `Canonicalized` network, or a callable that maps images to an
            object with the warp from the canonical frame to the input as `.warp`. A module is run in evaluation mode.
        images: `(B, C, H, W)`. The content of an image is what differs from its fill value.
        transformations: `Augmentation` or `max_theta` of each group to draw both transformations of each image from, or
            two warps of `B` transformations each.
        modulo: transformation that the network behind the stack absorbs, which is fitted and removed first:
            `"similarity"` is rotation and uniform scale about the centre, for a log-polar network. None removes
            nothing.
        rendering: options for the transformed images, see `Rendering`.

    >>> import equivariant_transformers as et
    >>> disc = torch.linspace(-1, 1, 32).square()
    >>> disc = (disc + disc[:, None] < 0.3).float()[None, None]
    >>> result = frame_consistency(et.Canonicalizer([]), disc, {"rotation": 3.0}, modulo="similarity")
    >>> result.median < 1e-5  # no layers, but the network behind absorbs rotations
    True
    """
    canonicalizer = canonicalizer.canonicalizer if isinstance(canonicalizer, Canonicalized) else canonicalizer
    if modulo not in (None, "similarity"):
        raise ValueError(f"modulo must be 'similarity' or None, got {quote(modulo)}")
    test = make_renderer(canonicalizer, images, **rendering)
    pair = _pair(transformations, images)
    rows = []
    with evaluating(canonicalizer):
        for batch, originals in test.batches(images):
            warps = [_take(warp, batch, test.device) for warp in pair]
            frames = []
            for warp in warps:
                out = canonicalizer(test.image(originals, warp))
                found = getattr(out, "warp", None)
                if not isinstance(found, Warp):
                    raise TypeError(
                        f"the canonicalizer must return an object with a Warp as .warp; got {shape_of(out)}"
                    )
                frames.append(warp @ found)
            points, content = _content(test.image(originals, Warp.identity()), test.fill)
            pairs = (frames, warps)
            rows.append(torch.stack([_discrepancy(a, b, points, content, modulo) for a, b in pairs]))
    discrepancy, no_layers = torch.cat(rows, 1).cpu()
    return FrameConsistency(discrepancy, no_layers, modulo)


def _content(images: Tensor, fill: float | None) -> tuple[Tensor, Tensor]:
    """Return the pixel centres `(1, H W, 2)` and the mask `(B, H W)` of the pixels that differ from the fill value."""
    x, y = pixel_centres((images.shape[-2], images.shape[-1]), torch.float64, images.device)
    points = torch.stack(torch.broadcast_tensors(x, y), -1).flatten(1, 2)  # type: ignore[no-untyped-call]
    difference = (images - outside(images, fill)).abs().amax(1).flatten(1)
    return points, difference > _CONTENT * difference.amax(1, keepdim=True)


def _discrepancy(first: Warp, second: Warp, points: Tensor, content: Tensor, modulo: Modulo) -> Tensor:
    """Return the discrepancy `(B,)` of two frames at `points` `(1, n, 2)` of the image, where `content` `(B, n)`."""
    to_frames = first.inverse(), second.inverse()
    known = content & to_frames[0].visible(points) & to_frames[1].visible(points)
    p, q = (torch.where(known, torch.view_as_complex(to_frame.points(points)), 0) for to_frame in to_frames)
    count = known.sum(1).double()
    if modulo == "similarity":  # least squares for p = a q, where a complex number a is a rotation and a scale
        q = q * ((q.conj() * p).sum(1) / q.abs().square().sum(1))[:, None]
    spread = p.abs().square().sum(1) / count - (p.sum(1) / count).abs().square()
    return ((q - p).abs().square().sum(1) / count / spread).sqrt()


def _pair(transformations: Augmentation | MaxTheta | tuple[Warp, Warp], images: Tensor) -> tuple[Warp, Warp]:
    if isinstance(transformations, (tuple, list)):
        if len(transformations) != 2 or not all(isinstance(warp, Warp) for warp in transformations):
            raise ValueError(f"transformations must be two warps, or max_theta; got {quote(transformations)}")
        return transformations[0], transformations[1]
    augmentation = transformations if isinstance(transformations, Augmentation) else Augmentation(transformations)
    return augmentation.random(images), augmentation.random(images)


def _take(warp: Warp, rows: slice, device: torch.device) -> Warp:
    """Return the transformations `rows` of a batched warp, on `device`."""

    def part(values: Tensor, single: int) -> Tensor:
        return (values[rows] if values.ndim > single and len(values) > 1 else values).to(device)

    steps = [
        FlowStep(step.flow, part(step.theta, 0)) if isinstance(step, FlowStep) else part(step, 2) for step in warp.steps
    ]
    return Warp(tuple(steps))


def _quartiles(values: Tensor) -> tuple[float, float, float]:
    low, median, high = values.nanquantile(values.new_tensor([0.25, 0.5, 0.75])).tolist()
    return low, median, high
