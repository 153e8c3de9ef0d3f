r"""Pose predictor for photographs: a deep network over the chart, and a prior that keeps uncertain images in place."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers.geometry.charts import Chart
from equivariant_transformers.geometry.projective import at_least_float32
from equivariant_transformers.nn.buffers import Exact
from equivariant_transformers.nn.candidates import undone_points
from equivariant_transformers.nn.conv import channels_last
from equivariant_transformers.nn.kernels import block_operations, standardised
from equivariant_transformers.nn.nuisance import Nuisance
from equivariant_transformers.nn.prediction import PoseReader, Prediction, check_channels, columns
from equivariant_transformers.nn.visibility import Window

_ROWS = 8  # rows of the chart that are left when one convolution reads them all
_REPEATS = 2  # further convolutions after each one that halves the number of rows
_PRIOR = 4.0  # log of the weight of pose 0 against a pose far away, without evidence
_WIDTH = 1 / 16  # standard deviation of the prior, as a fraction of the range of the pose
SHARPNESS = 4.0  # power of the posterior whose centre is the pose: a compromise between its mean and its mode
_DRAWN = 2.0  # power of the posterior from which poses are drawn in training


class PosteriorPredictor(Exact):
    r"""Predictor for photographs, which starts at the identity.

    A convolutional network over the chart returns the log evidence $\ell(u)$ for content at each position u of the pose
    axis. The heat map is the posterior $p(u) \propto \exp(\ell(u) + \lambda b(u))$ with a bump b around pose 0. An
    image without clear evidence keeps its pose. Where the evidence exceeds the prior, the pose follows the content,
    because the network is equivariant along the pose axis. The pose is the centre of $p^4$, close to the mode of p.

    Samples are weighted by `Window`. Brightness and contrast of the visible part are normalised per image.

    `alignment_loss` trains the evidence. The pose carries no gradient: the loss of a network behind the layer is lowest
    for poses that ignore the image, as long as the training images are upright, and would undo the alignment. In
    training, the pose is drawn from $p^2$. The network behind the layer is then prepared for wrong poses of ambiguous
    images, and is not deprived of the augmentation that the layer removes.
    """

    prior: Tensor
    undone: Tensor
    powers: Tensor

    def __init__(self, chart: Chart, in_channels: int, *, channels: int = 32) -> None:
        super().__init__()
        check_channels(in_channels=in_channels, channels=channels)
        if min(chart.size) < 4:
            raise ValueError(f"a chart must have at least 4 x 4 samples for a predictor, got {chart.size}")
        self.chart = chart
        self.poses = len(chart.groups)
        self.needs_valid = True
        trunk = _rows_to_profile if self.poses == 1 else _joint_map
        self.trunk = trunk(chart, in_channels * chart.sheets, channels)
        self.head = nn.Conv2d(2 * channels, 1, 1, bias=False)
        nn.init.zeros_(self.head.weight)
        self.window = Window(chart)
        self.keep_exact("prior", partial(_prior, chart))
        self.keep_exact("undone", partial(undone_points, chart))  # for the alignment loss
        self.keep_exact("powers", partial(torch.tensor, (1.0, SHARPNESS)))
        self.reader = PoseReader(chart)
        self.nuisance = Nuisance(chart.groups)

    def random_turns(self, images: Tensor) -> Tensor | None:
        """Return a random number of samples `(B,)` to shift a periodic pose axis by; None for other charts."""
        if not self.chart.periodic[0]:
            return None
        return torch.randint(self.chart.size[1], images.shape[:1], device=images.device)

    def forward(self, images: Tensor, valid: Tensor, turns: Tensor | None = None) -> Prediction:
        """Return the prediction for images `(B, C, sheets, H, W)`.

        Args:
            images: samples of the images on the grid of the chart.
            valid: mask `(B or 1, sheets, H, W)` of the samples inside the images.
            turns: number of samples `(B,)` by which the content of each image was shifted back along a periodic axis.
        """
        x = standardised(images, valid, self.window)
        evidence = self.head(self.trunk(x.flatten(1, 2)))[:, 0]  # (B, 1 or H, W)
        evidence = at_least_float32(evidence)
        if turns is not None:
            places = torch.arange(evidence.shape[-1], device=turns.device) - turns[:, None]
            evidence = evidence.gather(-1, (places % evidence.shape[-1])[:, None].expand_as(evidence))
        return self.read(evidence if self.poses == 2 else evidence[:, 0])

    def logits(self, evidence: Tensor) -> Tensor:
        """Return the log posterior `(B, samples)` of the poses up to a constant, without gradient to the `evidence`."""
        return evidence.detach().flatten(1) + self.prior.flatten()

    def read(self, evidence: Tensor) -> Prediction:
        """Return the prediction for the log `evidence`, `(B, W)` or, for two poses, `(B, H, W)`."""
        joint = torch.softmax(self.logits(evidence) * self.powers[:, None, None], -1)  # p and p^4, (2, B, samples)
        maps = [joint] if self.poses == 1 else _marginals(joint.reshape(*joint.shape[:2], *self.chart.size))
        found = self.reader(maps)
        posterior = tuple(heatmap[0] for heatmap in maps)
        pose = self._drawn(joint[0]) if self.training else found.pose[1]
        return Prediction(pose, found.confidence[0], posterior, evidence)

    def _drawn(self, posterior: Tensor) -> Tensor:
        """Draw poses `(B, k)` with probabilities proportional to a power of the `posterior` `(B, samples)`.

        A pose lies anywhere in the interval around the drawn sample.
        """
        times = torch.empty_like(posterior).exponential_() / posterior**_DRAWN  # until the event of each sample
        first = times.argmin(1)
        height, width = self.chart.size
        drawn = [(first, width)] if self.poses == 1 else [(first % width, width), (first // width, height)]
        poses = []
        for axis, (indices, samples) in enumerate(drawn):
            low, high = self.chart.ranges[axis]
            spacing = (high - low) / (samples if self.chart.periodic[axis] else samples - 1)
            places = indices + torch.rand(len(first), dtype=posterior.dtype, device=posterior.device)
            poses.append(self.chart.centre[axis] - low + spacing / 2 - spacing * places)
        return columns(poses)


class _Block(nn.Module):
    """Convolution, batch normalisation and SiLU, with a shortcut where the shape stays. Periodic axes wrap around.

    `_Blocks` computes it.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel: tuple[int, int],
        periodic: tuple[bool, bool],
        *,
        stride: int = 1,
        dilation: int = 1,
        whole_rows: bool = False,
    ) -> None:
        super().__init__()
        height, width = (dilation * (side // 2) for side in kernel)
        if whole_rows:
            height = 0
        wraps, wraps_down = periodic
        self.around = (width * wraps, height * wraps_down)  # the convolution pads the other axes with zeros
        zeros = (height * (not wraps_down), width * (not wraps))
        options: dict[str, Any] = {"stride": (stride, 1), "dilation": dilation, "padding": zeros, "bias": False}
        self.conv = nn.Conv2d(in_channels, channels, kernel, **options)
        self.norm = nn.BatchNorm2d(channels)
        self.residual = in_channels == channels and stride == 1 and not whole_rows


class _Blocks(nn.ModuleList):
    """Blocks in a row, in the memory format channels last."""

    def forward(self, x: Tensor) -> Tensor:
        """Return features `(B, channels, h, w)` for `(B, in_channels, H, W)`."""
        blocks: list[Any] = [*self]
        x = channels_last(x)
        compute = block_operations(x, [block.norm for block in blocks])
        paddings = [*(block.around for block in blocks), (0, 0)]
        features = compute.prepared(x, paddings[0])
        for block, own, following in zip(blocks, paddings, paddings[1:], strict=False):
            shortcut = features.shortcut if block.residual else None
            features = compute.activated(block.conv(features.padded), block.norm, shortcut, own, following)
        return features.padded


def _rows_to_profile(chart: Chart, in_channels: int, channels: int) -> _Blocks:
    """Return the network `(B, in_channels, H, W) -> (B, 2 * channels, 1, W)` for charts with one pose axis."""
    along = (chart.periodic[0], False)
    rows, features = chart.size[0], in_channels
    blocks: list[nn.Module] = []
    while not blocks or rows > _ROWS:
        before, features = features, 2 * channels if blocks else channels
        kernel = (3, 3) if blocks else (5, 5)
        blocks.append(_Block(before, features, kernel, chart.periodic, stride=2))
        blocks += [_Block(features, features, (3, 3), chart.periodic) for _ in range(_REPEATS)]
        rows = -(-rows // 2)
    blocks.append(_Block(features, 2 * channels, (rows, 3), along, whole_rows=True))
    blocks += [_Block(2 * channels, 2 * channels, (1, 9), along, dilation=step) for step in _steps(chart.size[1])]
    return _Blocks(blocks)


def _joint_map(chart: Chart, in_channels: int, channels: int) -> _Blocks:
    """Return the network `(B, in_channels, H, W) -> (B, 2 * channels, H, W)` for charts with two pose axes."""
    blocks = [_Block(in_channels, channels, (5, 5), chart.periodic)]
    blocks += [_Block(channels, channels, (3, 3), chart.periodic, dilation=step) for step in (1, 2, 4)]
    blocks.append(_Block(channels, 2 * channels, (1, 1), chart.periodic))
    return _Blocks(blocks)


def _steps(samples: int) -> list[int]:
    """Return the dilations of convolutions over 9 samples that together see a whole axis of `samples`."""
    return [2**k for k in range(max(1, math.ceil(math.log2(samples / 8))))]


def _marginals(joint: Tensor) -> list[Tensor]:
    """Return the probabilities `(..., samples)` along each pose axis of `joint` probabilities `(..., H, W)`."""
    return [joint.sum(-2), joint.sum(-1)]


def _prior(chart: Chart, *, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    """Return the log prior, `(1, width)` or `(height, width)`: a bump around pose 0 along each pose axis."""
    axes = chart.axes(dtype=dtype, device=device)[: len(chart.groups)]
    bumps = []
    for position, middle, (low, high), wraps in zip(axes, chart.centre, chart.ranges, chart.periodic, strict=False):
        turn = 2 * math.pi / (high - low)
        offset = position - middle
        distance = 2 * torch.sin(turn * offset / 2) / turn if wraps else offset
        bumps.append(torch.exp(-(distance / (_WIDTH * (high - low))).square() / 2))
    return _PRIOR * (bumps[0][None] if len(bumps) == 1 else bumps[0][None] * bumps[1][:, None])
