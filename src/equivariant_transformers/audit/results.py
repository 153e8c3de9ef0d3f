"""Results of an audit: measures of self-consistency and invariance, and their tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SelfConsistency:
    r"""Predicted against true changes of pose, for `k` parameters, `n` values of theta and `B` images.

    Each measure is a tensor `(k,)`, one entry per parameter. `rms` and `median` are relative to the range of theta,
    `rms_theta` is in the unit of the group, and `rms_pixels` in pixels of the test images.
    """

    names: tuple[str, ...]
    """Names of the groups of the parameters."""
    theta: Tensor
    """True changes `(n,)`, float64."""
    predicted: Tensor
    r"""Predicted changes $f(T_\theta\phi) - f(\phi)$, `(k, n, B)`; for a periodic group, the value nearest to theta."""
    displacement: Tensor
    """Displacement `(k, n, B)` in pixels that the error of the pose causes: the root mean square over the image points
    within 0.7 of the centre, limited to the longer side of the image."""

    @property
    def error(self) -> Tensor:
        """Predicted minus true change `(k, n, B)`, relative to the range of theta."""
        return (self.predicted - self.theta[:, None]) / (self.theta.max() - self.theta.min())

    @property
    def slopes(self) -> Tensor:
        """Least-squares slope `(k, B)` of predicted against true change, per image."""
        centred = self.theta - self.theta.mean()
        return torch.einsum("n,knb->kb", centred, self.predicted) / centred.square().sum()

    @property
    def slope(self) -> Tensor:
        """Least-squares slope over all images: 1 for a self-consistent predictor, 0 for a constant predictor."""
        return self.slopes.mean(-1)

    @property
    def slope_interval(self) -> Tensor:
        """Half-width of the 95 % confidence interval of `slope`, from the slopes of the images; NaN for one image."""
        images = self.predicted.shape[-1]
        if images == 1:
            return torch.full_like(self.slope, torch.nan)
        return 1.96 * self.slopes.std(-1) / math.sqrt(images)

    @property
    def rms(self) -> Tensor:
        """Root mean square of the error."""
        return self.error.square().mean((1, 2)).sqrt()

    @property
    def median(self) -> Tensor:
        """Median of the absolute error."""
        return self.error.abs().flatten(1).quantile(0.5, dim=-1)

    @property
    def rms_theta(self) -> Tensor:
        """Root mean square of predicted minus true change, in the unit of the group; radians for rotation."""
        return (self.predicted - self.theta[:, None]).square().mean((1, 2)).sqrt()

    @property
    def rms_pixels(self) -> Tensor:
        """Root mean square of the displacement in pixels that the error of the pose causes, see `displacement`."""
        return self.displacement.square().mean((1, 2)).sqrt()

    def __str__(self) -> str:
        _, values, images = self.predicted.shape
        width = max(len("parameter"), *map(len, self.names))
        lines = [
            f"self-consistency: {values} values of theta from {self.theta.min():.3g} to {self.theta.max():.3g}, "
            f"images: {images}; rms and median relative to that range",
            f"{'parameter':<{width}}    slope   (95 %)     rms   median  rms theta  rms pixels",
        ]
        measures = (self.slope, self.slope_interval, self.rms, self.median, self.rms_theta, self.rms_pixels)
        for name, slope, interval, rms, median, theta, pixels in zip(self.names, *measures, strict=True):
            lines.append(
                f"{name:<{width}}  {slope:7.3f} ± {interval:<6.3f} {rms:7.4f}  {median:7.4f}"
                f"  {theta:9.4f}  {pixels:10.2f}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Invariance:
    r"""Difference of the outputs for $\phi$ and $T_\theta\phi$, for `n` values of theta and `B` images.

    The relative error is $\sqrt{\sum (L(T_\theta\phi) - L(\phi))^2 / \sum L(\phi)^2}$, with sums over the entries of an
    output. For canonical images, the sums are over the pixels that are valid in both images, and the mean of the
    reference over these pixels is subtracted in the denominator. The error is NaN if there are no such pixels.
    """

    name: str
    """Name of the group."""
    theta: Tensor
    """Parameters `(n,)` of the group, float64."""
    squared_difference: Tensor
    """Numerator `(n, B)` for each theta and image."""
    squared_reference: Tensor
    """Denominator `(n, B)` for each theta and image."""
    changed: Tensor | None
    """Mask `(n, B)` of outputs whose argmax changed; None for outputs that are not `(B, classes)`."""

    @property
    def error(self) -> Tensor:
        """Relative error `(n, B)` per theta and image."""
        return (self.squared_difference / self.squared_reference).sqrt()

    @property
    def per_theta(self) -> Tensor:
        """Relative error `(n,)` with sums over all images."""
        return (self.squared_difference.sum(1) / self.squared_reference.sum(1)).sqrt()

    @property
    def overall(self) -> float:
        """Relative error with sums over all images and values of theta."""
        return (self.squared_difference.sum() / self.squared_reference.sum()).sqrt().item()

    @property
    def changed_per_theta(self) -> Tensor | None:
        """Fraction `(n,)` of images whose argmax changed; None for outputs that are not `(B, classes)`."""
        return None if self.changed is None else self.changed.double().mean(1)

    @property
    def changed_overall(self) -> float | None:
        """Fraction of all outputs whose argmax changed; None for outputs that are not `(B, classes)`."""
        return None if self.changed is None else self.changed.double().mean().item()

    def __str__(self) -> str:
        labels = [*(f"{theta:.3f}" for theta in self.theta), "overall"]
        errors = [*self.per_theta.tolist(), self.overall]
        rows = [
            "   theta     error",
            *(f"{label:>8}  {error:8.4f}" for label, error in zip(labels, errors, strict=True)),
        ]
        if self.changed is not None:
            shares = [*self.changed.double().mean(1), self.changed.double().mean()]
            column = ["argmax changed", *(f"{share:14.1%}" for share in shares)]
            rows = [f"{row}  {entry}" for row, entry in zip(rows, column, strict=True)]
        return "\n".join((f"invariance under {self.name}: relative error, images: {self.error.shape[1]}", *rows))
