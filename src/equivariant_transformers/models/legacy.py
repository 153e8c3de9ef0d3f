"""Networks that the paper's authors published in 2019, with the conventions that their weights were trained with.

The grids and predictors differ from those of the library:

- u runs along the width and v along the height. Both ends of a periodic axis are sampled.
- Sheets are stacked along the v axis. For hyperbolic rotation, this is the pose axis.
- The pose of y-scale is read from the x-scale chart.
- An image of any shape spans [-1, 1] x [-1, 1], so the unit of its shorter side is smaller.
- Padding is 0. Points behind the horizon are sampled like other points.
- A predicted value is the position of the content. It is applied to the sampling points unchanged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.geometry.frame import extent
from equivariant_transformers.geometry.groups import GROUPS, Group, lookup
from equivariant_transformers.geometry.warp import Warp
from equivariant_transformers.models.resnet import resnet10, resnet18, resnet34

Range = tuple[float, float]
Sheets = list[tuple[Tensor, Tensor]]
ToPlane = Callable[[Tensor, Tensor], Sheets]


def load_2019(path: str | os.PathLike[str]) -> Network2019:
    """Load the network of a checkpoint written by the authors' 2019 code, in evaluation mode on the CPU.

    The file is read as data, and code in it is not executed. Images are sampled with `align_corners=True`, the default
    of PyTorch when the weights were trained.

    >>> network = load_2019("etn-projmnist-8x.pt")  # doctest: +SKIP
    >>> logits = network((pixels - 16.2884) / 56.2673)  # doctest: +SKIP
    """
    checkpoint = _read(Path(path))
    weights = checkpoint.pop("state_dict")
    network = Network2019(**checkpoint)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights in {path} do not fit the network that it describes. {error}") from error
    return network.eval()


class Network2019(nn.Module):
    """Stack of transformers, followed by a classifier in the coordinates `coords`; returned by `load_2019`."""

    def __init__(
        self,
        *,
        tfs: Sequence[str],
        coords: str,
        net: str,
        equivariant: bool,
        downsample: int,
        tf_opts: dict[str, Any],
        net_opts: dict[str, Any],
        seed: int | None,
        epoch: int,
        valid_err: float,
    ) -> None:
        super().__init__()
        self.tfs = tuple(tfs)
        self.coords = coords
        self.equivariant = equivariant
        self.downsample = downsample
        self.seed = seed
        self.epoch = epoch
        self.valid_err = valid_err
        lookup(_COORDS, coords, "coordinate system")
        classifier = lookup(_NETS, net, "net")
        predictor = _EquivariantPredictor if equivariant else _DirectPredictor
        try:
            self.transformer = _Stack([_Transformer(name, predictor, tf_opts) for name in tfs])
            self.net = classifier(**net_opts)
        except TypeError as error:
            raise ValueError(f"tf_opts {tf_opts} or net_opts {net_opts} cannot be used: {error}") from error

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(B, classes)` for normalised images `(B, C, H, W)`."""
        size = (images.shape[-2] // self.downsample, images.shape[-1] // self.downsample)
        warp = self.transformer(images, size)
        logits: Tensor = self.net(warp.sample(images, _COORDS[self.coords].grid(size, images.device)))
        return logits


@dataclass(frozen=True)
class _Chart:
    """Grid of a coordinate system. `to_plane` maps u and v, both `(h, w)`, to (x, y) on each sheet."""

    to_plane: ToPlane
    u: Range = (-1, 1)
    """Range of u. An infinite lower end stands for the logarithm of about one pixel."""
    v: Range = (-1, 1)
    sheets: int = 1
    periodic_v: bool = False

    def grid(self, size: tuple[int, int], device: torch.device) -> Tensor:
        """Return points `(H, W, 2)` of the plane. With two sheets, an odd height repeats the last row of the first."""
        height, width = size
        low, high = self.u
        low = -math.log(width / self.sheets) if math.isinf(low) else low
        v = torch.linspace(*self.v, height // self.sheets, device=device)
        u = torch.linspace(low, high, width, device=device)
        v, u = torch.meshgrid(v, u, indexing="ij")
        sheets = [torch.stack(points, -1) for points in self.to_plane(u, v)]
        if height % self.sheets:
            sheets.insert(1, sheets[0][-1:])
        return torch.cat(sheets)

    def transposed(self) -> _Chart:
        """Return the chart with x and y exchanged."""
        return replace(self, to_plane=lambda u, v: [(x, y) for y, x in self.to_plane(u, v)])


def _hyperbolic(u: Tensor, v: Tensor) -> Sheets:
    x, y = u * v.exp(), u / v.exp()
    return [(x, y), (x, -y)]


def _perspective(u: Tensor, v: Tensor) -> Sheets:
    x, y = 1 / u, v.tan() / u
    return [(-x.flip(1), y.flip(1)), (x, y)]  # left, flipped so that 1 / x increases; right


_TURN = (-math.pi, math.pi)
_HALF_TURN = (-0.99 * math.pi / 2, 0.99 * math.pi / 2)
_CARTESIAN = _Chart(lambda u, v: [(u, v)])
_POLAR = _Chart(lambda u, v: [(u * v.cos(), u * v.sin())], u=(0, math.sqrt(2)), v=_TURN, periodic_v=True)
_LOG_POLAR = replace(_POLAR, to_plane=lambda u, v: _POLAR.to_plane(u.exp(), v), u=(-math.log(10), math.log(2) / 2))
_SHEAR = _Chart(lambda u, v: [(u * v, u)], v=(-5, 5))
_SCALE = _Chart(lambda u, v: [(u.exp(), v), (-u.exp(), v)], u=(-math.log(10), 0), sheets=2)
_HYPERBOLIC = _Chart(_hyperbolic, u=(-math.sqrt(0.5), math.sqrt(0.5)), v=(-math.log(6), math.log(6)), sheets=2)
_PERSPECTIVE = _Chart(_perspective, u=(1, 7), v=_HALF_TURN, sheets=2)

_COORDS = {
    "identity_grid": _CARTESIAN,
    "polar_grid": _POLAR,
    "logpolar_grid": replace(_LOG_POLAR, u=(-math.inf, math.log(2) / 2)),
    "shearx_grid": _SHEAR,
    "sheary_grid": _SHEAR.transposed(),
    "scalex_grid": replace(_SCALE, u=(-math.inf, 0)),
    "scaley_grid": replace(_SCALE, u=(-math.inf, 0)).transposed(),
    "hyperbolic_grid": _HYPERBOLIC,
    "perspectivex_grid": replace(_PERSPECTIVE, u=(1, 8)),
    "perspectivey_grid": replace(_PERSPECTIVE, u=(1, 8)).transposed(),
}


_TRANSFORMATIONS: dict[str, tuple[_Chart, dict[str, Group]]] = {
    "Translation": (_CARTESIAN, {"u": GROUPS["x_translation"], "v": GROUPS["y_translation"]}),
    "Rotation": (_POLAR, {"v": GROUPS["rotation"]}),
    "Scale": (_LOG_POLAR, {"u": GROUPS["dilation"]}),
    "RotationScale": (_LOG_POLAR, {"u": GROUPS["dilation"], "v": GROUPS["rotation"]}),
    "ShearX": (_SHEAR, {"v": Group.from_generator([[0, 1, 0], [0, 0, 0], [0, 0, 0]], name="ShearX")}),
    "ShearY": (_SHEAR.transposed(), {"v": GROUPS["y_shear"]}),
    "ScaleX": (_SCALE, {"u": GROUPS["x_scale"]}),
    "ScaleY": (_SCALE, {"u": GROUPS["y_scale"]}),
    "HyperbolicRotation": (_HYPERBOLIC, {"v": GROUPS["hyperbolic_rotation"]}),
    "PerspectiveX": (_PERSPECTIVE, {"u": GROUPS["x_perspective"]}),
    "PerspectiveY": (_PERSPECTIVE.transposed(), {"u": GROUPS["y_perspective"]}),
}
"""Chart of each transformation, and the groups whose parameters are read from the chart's axes."""


class _Stack(nn.Module):
    """Sequence of transformers."""

    def __init__(self, transformers: list[_Transformer]) -> None:
        super().__init__()
        self.transformers = nn.ModuleList(transformers)

    def forward(self, images: Tensor, size: tuple[int, int] | None = None) -> Warp:
        """Return the warp that removes the pose of images `(B, C, H, W)`, which are sampled on grids of `size`.

        The warp maps points of [-1, 1] x [-1, 1] to points of the frame of the images.
        """
        shape = (images.shape[-2], images.shape[-1])
        size, frame = size or shape, extent(shape)
        square = frame == (1, 1)
        warp = Warp.identity() if square else Warp.projective(_stretch(*frame, images.device))
        for transformer in self.transformers:
            warp = transformer(images, warp, size)
        return warp


def _stretch(x: float, y: float, device: torch.device) -> Tensor:
    """Return the matrix that multiplies coordinates by `x` and `y`; no number is copied to the device."""
    return torch.stack([torch.full((), factor, device=device) for factor in (x, y, 1.0)]).diag()


class _Transformer(nn.Module):
    """Transformer layer that predicts the parameters of a transformation on its chart."""

    def __init__(
        self, name: str, predictor: type[_EquivariantPredictor | _DirectPredictor], options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.name = name
        chart, groups = lookup(_TRANSFORMATIONS, name, "transformation")
        self.predictor = predictor(tuple(groups), chart.periodic_v, **options)

    def forward(self, images: Tensor, warp: Warp, size: tuple[int, int]) -> Warp:
        """Return the next warp for images `(B, C, H, W)` that are sampled through `warp`."""
        chart, groups = _TRANSFORMATIONS[self.name]
        found = self.predictor(warp.sample(images, chart.grid(size, images.device)))
        for (axis, group), value in zip(groups.items(), found.unbind(-1), strict=True):
            low, high = chart.u if axis == "u" else chart.v
            # A flow, not a matrix: the matrix of a warp hides points behind the horizon.
            warp = warp @ Warp.flow(group.transform, (high - low) / 2 * value)
        return warp


class _Trunk(nn.Module):
    """Convolutions that both predictors share."""

    def __init__(
        self,
        axes: tuple[str, ...],
        periodic_v: bool,
        *,
        in_channels: int,
        nf: int,
        kernel_size: int = 5,
        strides: Sequence[int] = (2, 2),
    ) -> None:
        super().__init__()
        self.axes = axes
        self.padding = ("constant", "circular" if periodic_v else "constant")
        self.reach = kernel_size // 2
        self.stride = strides[0] * strides[1]
        self.conv1 = nn.Conv2d(in_channels, nf, kernel_size, strides[0], bias=False)
        self.bn1 = nn.BatchNorm2d(nf)
        self.conv2 = nn.Conv2d(nf, nf, kernel_size, strides[1], bias=False)
        self.bn2 = nn.BatchNorm2d(nf)

    def features(self, x: Tensor) -> Tensor:
        """Return the second convolution's output `(B, nf, h, w)`, before `bn2`, for `(B, C, H, W)`."""
        x = F.leaky_relu(self.bn1(self.conv1(_pad(x, self.reach, self.padding))), 0.1)
        out: Tensor = self.conv2(_pad(x, self.reach, self.padding))
        return out


class _EquivariantPredictor(_Trunk):
    """Centroid of a softmax along each predicted axis. Both heads exist, even if only one is used."""

    def __init__(self, axes: tuple[str, ...], periodic_v: bool, **options: Any) -> None:
        super().__init__(axes, periodic_v, **options)
        nf, kernel_size = self.conv2.out_channels, self.conv2.kernel_size[0]
        self.conv_u = nn.Conv1d(nf, 1, kernel_size, bias=False)
        self.conv_v = nn.Conv1d(nf, 1, kernel_size, bias=False)
        self.bias_u = nn.Parameter(torch.zeros(()))
        self.bias_v = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the position of the content on each predicted axis, `(B, 1 or 2)`, in units of half the axis."""
        features = F.leaky_relu(self.bn2(self.features(x)), 0.1)
        pad_u, pad_v = self.padding
        u = self._centroid(self.conv_u, features.amax(2), pad_u, x.shape[3]) + self.bias_u.tanh()
        v = self._centroid(self.conv_v, features.amax(3), pad_v, x.shape[2]) + self.bias_v.tanh()
        return torch.stack([{"u": u, "v": v}[axis] for axis in self.axes], -1)

    def _centroid(self, conv: nn.Conv1d, features: Tensor, padding: str, samples: int) -> Tensor:
        """Return the centroid `(B,)` of features `(B, nf, n)` along an axis of `samples` points before the strides."""
        heatmap: Tensor = conv(_pad(features, self.reach, (padding,)))[:, 0].softmax(-1)
        index = torch.arange(heatmap.shape[-1], dtype=heatmap.dtype, device=heatmap.device)
        positions = 2 * self.stride / (samples - 1) * (index - index[-1] / 2)
        if padding == "circular":
            angles = math.pi * positions
            return torch.atan2(heatmap @ angles.sin(), heatmap @ angles.cos()) / math.pi
        return heatmap @ positions


class _DirectPredictor(_Trunk):
    """Regression from pooled features, which skip `bn2`."""

    def __init__(self, axes: tuple[str, ...], periodic_v: bool, **options: Any) -> None:
        super().__init__(axes, periodic_v, **options)
        nf, self.bins = self.conv2.out_channels, self.conv2.kernel_size[0]
        self.fc = nn.Linear(nf * self.bins**2, len(axes))

    def forward(self, x: Tensor) -> Tensor:
        """Return a value for each predicted axis, `(B, 1 or 2)`, in units of half the axis."""
        pooled = F.adaptive_max_pool2d(self.features(x), self.bins)
        out: Tensor = self.fc(pooled.flatten(1)).tanh()
        return out


class _BasicCNN(nn.ModuleDict):
    """Z2CNN of the paper: seven convolutions and a maximum over the image."""

    def __init__(
        self,
        *,
        nf: int = 20,
        p_dropout: float = 0.0,
        pad_mode: str | Sequence[str | None] = (None, None),
        pool: Sequence[bool] = (True, True, False),
        strides: Sequence[int] = (1, 1, 1),
        input_channels: int = 1,
        output_size: int = 10,
    ) -> None:
        super().__init__()
        modes = (pad_mode, pad_mode) if isinstance(pad_mode, str) else pad_mode
        self.padding = [
            mode and lookup({"constant": "constant", "cyclic": "circular"}, mode, "padding") for mode in modes
        ]
        self.p_dropout = p_dropout
        self.pooled = [layer for layer, wanted in enumerate(pool, 1) if wanted]
        for layer, stride in enumerate((*strides, 1, 1, 1), 1):
            self[f"conv{layer}"] = nn.Conv2d(input_channels if layer == 1 else nf, nf, 3, stride, bias=False)
            self[f"bn{layer}"] = nn.BatchNorm2d(nf)
        self["conv7"] = nn.Conv2d(nf, output_size, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(B, classes)` for images `(B, C, H, W)`."""
        for layer in range(1, 7):
            x = F.relu(self[f"bn{layer}"](self[f"conv{layer}"](_pad(x, 1, self.padding))))
            if layer in self.pooled:
                x = F.avg_pool2d(x, 2)
            if layer in (3, 6):
                x = F.dropout(x, self.p_dropout, self.training)
        out: Tensor = self["conv7"](_pad(x, 1, self.padding))
        return out.amax((2, 3))


def _resnet(
    make: Callable[..., nn.Module],
    *,
    nf: int = 32,
    p_dropout: float = 0.0,
    pad_mode: str | Sequence[str] = "constant",
    in_channels: int = 3,
    output_size: int = 10,
) -> nn.Module:
    """Return a ResNet of the library. Its parameters have the same names as in the authors' code."""
    modes = (pad_mode, pad_mode) if isinstance(pad_mode, str) else pad_mode
    wraps = tuple(lookup({"constant": False, "cyclic": True}, mode, "padding") for mode in modes)
    return make(in_channels, output_size, width=nf, dropout=p_dropout, wraps=wraps)


_NETS: dict[str, Callable[..., nn.Module]] = {
    "BasicCNN": _BasicCNN,
    "resnet10": partial(_resnet, resnet10),
    "resnet18": partial(_resnet, resnet18),
    "resnet34": partial(_resnet, resnet34),
}


def _pad(x: Tensor, amount: int, modes: Sequence[str | None]) -> Tensor:
    """Pad the last axes of `x` by `amount` samples on each side; `modes` starts with the last axis."""
    for axis, mode in enumerate(modes):
        if mode is not None:
            sides = [0, 0] * len(modes)
            sides[2 * axis : 2 * axis + 2] = amount, amount
            x = F.pad(x, sides, mode=mode)
    return x


_FORMAT: dict[str, tuple[type, ...]] = {
    "tfs": (list, tuple),
    "coords": (str,),
    "net": (str,),
    "equivariant": (bool,),
    "downsample": (int,),
    "tf_opts": (dict,),
    "net_opts": (dict,),
    "seed": (int, type(None)),
    "epoch": (int,),
    "valid_err": (float, int),
    "state_dict": (dict,),
}


def _read(path: Path) -> dict[str, Any]:
    """Return the entries of a checkpoint, checked against the format."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a checkpoint of 2019: it cannot be read as tensors and plain data") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a checkpoint of 2019: it holds a {type(content).__name__}, not a dictionary")
    missing = [key for key in _FORMAT if key not in content]
    unknown = [str(key) for key in content if key not in _FORMAT]
    if missing or unknown:
        raise ValueError(
            f"{path} is not a checkpoint of 2019: missing entries are {', '.join(missing) or 'none'}, "
            f"and unknown entries are {', '.join(unknown) or 'none'}"
        )
    for key, kinds in _FORMAT.items():
        if not isinstance(content[key], kinds):
            allowed = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{path}: {key} must be {allowed}, got {content[key]!r}")
    return content
