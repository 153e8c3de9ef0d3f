"""Predictor of both translations at once: a centre that turns with the content when an image is rotated."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.geometry.atlas import CHARTS
from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.projective import at_least_float32
from equivariant_transformers.nn.buffers import Exact
from equivariant_transformers.nn.conv import CentredActivation, ScaleNorm
from equivariant_transformers.nn.prediction import PoseReader, Prediction, check_channels, weights_of
from equivariant_transformers.nn.visibility import distances

_TRANSLATIONS = CHARTS["cartesian"].groups
_BLUR = 1 / 16  # standard deviation of the Gaussian that smooths the image: two samples of 64
_WINDOW = 0.3  # standard deviation of the window around the centre
_DAMPING = 0.1  # of the steps, where the evidence is nearly even
_STEPS = 8
_EDGE = 4  # samples from the frame over which content counts as reaching it
_SHARES = (0.05, 0.2)  # evidence near the frame relative to its mean: below, content is centred; above, it stays


class CentrePredictor(Exact):
    r"""Predictor of the translations in x and y, whose centre also turns with content that is rotated about any point.

    The chart must be `cartesian`, perhaps with other ranges or another size. The content must be compact: for content
    much larger than the window, the centre that is found depends on the weights.

    The evidence is isotropic: it is a function of the lengths of gradients and of Laplacians of the image, mixed by
    learned weights, and turns with the image. A heat map over the plane is a power of the evidence, as in
    `ConsistentPredictor`.

    The centre c is a point at which the heat map, seen through a Gaussian window around c, has its centroid at c. Such
    a point does not depend on the frame of the image, as long as the window lies inside it. Newton's method finds it
    from the centre of the image, with damped steps.

    A picture whose content reaches the frame all around has no centre of its own: what enters and leaves the frame
    would move any centre. Such a picture stays in place (`_isolation`).

    Samples outside the image have no weight, and do not enter the smoothed image.
    """

    needs_valid = True
    radii: Tensor
    blur0: Tensor
    blur1: Tensor

    def __init__(self, chart: Chart, in_channels: int, *, channels: int = 32) -> None:
        super().__init__()
        check_channels(in_channels=in_channels, channels=channels)
        check_translations(chart)
        if min(chart.size) < 4:
            raise ValueError(f"a chart must have at least 4 x 4 samples for a predictor, got {chart.size}")
        self.chart = chart
        self.slopes = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.curvatures = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.norm1 = ScaleNorm(2 * channels)
        self.mix = nn.Conv2d(2 * channels, channels, 1, bias=False)
        self.norm2 = ScaleNorm(channels)
        self.activation = CentredActivation(channels)
        self.evidence = nn.Conv2d(channels, 1, 1, bias=False)
        self.log_excess = nn.Parameter(torch.tensor(math.log(0.25)))  # initially an exponent of 1.25
        self.bias = nn.Parameter(torch.zeros(2))
        for axis in (0, 1):
            self.keep_exact(f"blur{axis}", partial(_blur, _pitch(chart, axis)))
            self.keep_exact(f"places{axis}", partial(_places, chart, axis))
        self.keep_exact("radii", partial(distances, chart))
        self.reader = PoseReader(chart)

    def forward(self, images: Tensor, valid: Tensor) -> Prediction:
        """Return the prediction for images `(B, C, 1, H, W)`.

        `valid` `(B or 1, 1, H, W)` is a mask of the samples inside the images.
        """
        heat = self._heatmap(images[:, :, 0], valid)
        nearest = torch.where(valid, 1.0, self.radii.clamp(max=1)).flatten(1).amin(1, keepdim=True)
        width = _WINDOW * nearest.to(heat.dtype)  # (B or 1, 1)
        centre = heat.new_zeros(heat.shape[0], 2)
        for _ in range(_STEPS):
            centre = centre.detach()  # the last step alone has the gradient of the point that the steps converge to
            across, along = self._window(centre, width, 1), self._window(centre, width, 0)
            centre = centre + width * _step(across @ heat @ along.mT)
        centre = centre * _isolation(heat.detach(), valid)
        seen = heat * self._window(centre, width, 1)[:, 0, :, None] * self._window(centre, width, 0)[:, 0, None, :]
        seen = seen / (seen.sum((1, 2), keepdim=True) + 1e-6)
        found: Prediction = self.reader([seen.sum(1), seen.sum(2)])
        return found._replace(pose=self.bias * seen.sum((1, 2))[:, None] - centre)

    def _heatmap(self, images: Tensor, valid: Tensor) -> Tensor:
        """Return the weights `(B, H, W)` of the samples of `images` `(B, C, H, W)`, in float32 or wider."""
        shown = valid.to(images.dtype)
        x = images - images[..., :1, :1]  # exact for constant images
        x = self._smooth(x * shown) / self._smooth(shown).clamp_min(1e-3)
        gradient, laplacian = self._derivatives(x)
        along, across = (at_least_float32(self.slopes(part)).square() for part in gradient)
        slopes = torch.sqrt(along + across + 1e-12) - 1e-6  # finite gradients, and 0 for a constant image
        features = torch.cat((slopes.to(x.dtype), self.curvatures(laplacian)), 1)
        features = self.activation(self.norm2(self.mix(self.norm1(features))))
        evidence = at_least_float32(self.evidence(features))[:, 0] * valid[:, 0]
        exponent = 1 + at_least_float32(self.log_excess).exp()
        return weights_of(evidence.flatten(1), exponent).reshape(evidence.shape)

    def _smooth(self, x: Tensor) -> Tensor:
        """Smooth `x` `(B, C, H, W)` with a Gaussian. The ends are repeated."""
        batch, channels, height, width = x.shape
        along, across = self.blur0.to(x.dtype), self.blur1.to(x.dtype)
        reach = (len(along) // 2, len(across) // 2)
        y = x.reshape(-1, 1, height, width)
        y = F.conv2d(_extended(y, reach[0], -1), along[None, None, None])
        y = F.conv2d(_extended(y, reach[1], -2), across[None, None, :, None])
        return y.reshape(batch, channels, height, width)

    def _derivatives(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradient and the Laplacian of `x` `(B, C, H, W)`, per standard deviation of the blur."""
        gradient, laplacian = [], torch.zeros_like(x)
        for axis, dim in enumerate((-1, -2)):
            samples = x.shape[dim]
            wide, scale = _extended(x, 1, dim), _BLUR / _pitch(self.chart, axis)
            before, after = wide.narrow(dim, 0, samples), wide.narrow(dim, 2, samples)
            gradient.append((after - before) * (scale / 2))
            laplacian = laplacian + (after - 2 * x + before) * scale**2
        return gradient, laplacian

    def _window(self, centre: Tensor, width: Tensor, axis: int) -> Tensor:
        """Return the window along an axis times powers 0, 1 and 2 of the offset in windows, `(B, 3, samples)`."""
        offset = (getattr(self, f"places{axis}") - centre[:, axis, None]) / width
        window = torch.exp(-offset.square() / 2)
        return torch.stack((window, window * offset, window * offset.square()), 1)


def check_translations(chart: Chart) -> None:
    """Raise a ValueError unless `chart` is for both translations, as the centre predictor needs."""
    if chart.groups != _TRANSLATIONS:
        raise ValueError(
            f"the predictor centre is for the chart 'cartesian' alone, got {chart.name!r}: use the predictor "
            "consistent or posterior, and put EquivariantTransformer('cartesian', ..., predictor='centre') in front"
        )


def _step(moments: Tensor) -> Tensor:
    r"""Return the damped Newton step `(B, 2)` towards a centre whose window has its centroid m there, in windows.

    In units of the window, the derivative of m is $A = S - 1$ with the covariance S. The step minimises
    $|As + m|^2 + \epsilon^2|s|^2$, and is shortened smoothly to at most one window.
    """
    total = moments[:, 0, 0] + 1e-6
    x, y = moments[:, 0, 1] / total, moments[:, 1, 0] / total
    a = moments[:, 0, 2] / total - x.square() - 1
    b = moments[:, 1, 1] / total - x * y
    d = moments[:, 2, 0] / total - y.square() - 1
    # normal equations (A A + eps^2) s = -A m
    p, q, r = a.square() + b.square() + _DAMPING**2, b * (a + d), b.square() + d.square() + _DAMPING**2
    u, v = -(a * x + b * y), -(b * x + d * y)
    step = torch.stack((r * u - q * v, p * v - q * u), -1) / (p * r - q.square())[:, None]
    return step * torch.rsqrt(1 + step.square().sum(-1, keepdim=True))


def _isolation(heat: Tensor, valid: Tensor) -> Tensor:
    """Return 1 for content on an even ground and 0 for content that reaches the frame all around, `(B, 1)`.

    The evidence near the frame is averaged as a power mean with a small exponent: content that touches the frame at
    one side counts little.
    """
    shown = valid.to(heat.dtype)
    inside = F.avg_pool2d(shown, 2 * _EDGE + 1, stride=1, padding=_EDGE) > 1 - 1e-3
    near = (shown * ~inside)[:, 0]
    level = ((heat + 1e-12) ** 0.25 * near).sum((1, 2)) / near.sum((1, 2)).clamp_min(1)
    mean = heat.sum((1, 2)) / shown.sum((1, 2, 3)).clamp_min(1) + 1e-9
    share = level**4 / mean
    low, high = _SHARES
    return ((high - share) / (high - low)).clamp(0, 1)[:, None]


def _extended(x: Tensor, reach: int, dim: int) -> Tensor:
    """Repeat the ends of `x` along `dim`, `reach` times."""
    shape = [*x.shape]
    shape[dim] = reach
    first, last = x.narrow(dim, 0, 1), x.narrow(dim, x.shape[dim] - 1, 1)
    return torch.cat((first.expand(shape), x, last.expand(shape)), dim)


def _pitch(chart: Chart, axis: int) -> float:
    """Return the distance between neighbouring samples along an axis."""
    low, high = chart.ranges[axis]
    return (high - low) / (chart.size[1 - axis] - 1)


def _blur(pitch: float, *, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    """Return a Gaussian kernel with the standard deviation of the blur, at least half a sample."""
    width = max(_BLUR / pitch, 0.5)
    reach = math.ceil(3 * width)
    places = torch.arange(-reach, reach + 1, dtype=dtype, device=device)
    return torch.softmax(-(places / width).square() / 2, 0)


def _places(chart: Chart, axis: int, *, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    return chart.axes(dtype=dtype, device=device)[axis] - chart.centre[axis]
