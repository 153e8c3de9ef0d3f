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

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.models.legacy_charts import COORDS
from equivariant_transformers.models.legacy_networks import (
    NETS,
    DirectPredictor,
    EquivariantPredictor,
    Stack,
    Transformer,
)


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
        lookup(COORDS, coords, "coordinate system")
        classifier = lookup(NETS, net, "net")
        predictor = EquivariantPredictor if equivariant else DirectPredictor
        try:
            self.transformer = Stack([Transformer(name, predictor, tf_opts) for name in tfs])
            self.net = classifier(**net_opts)
        except TypeError as error:
            raise ValueError(f"tf_opts {tf_opts} or net_opts {net_opts} cannot be used: {error}") from error

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(B, classes)` for normalised images `(B, C, H, W)`."""
        size = (images.shape[-2] // self.downsample, images.shape[-1] // self.downsample)
        warp = self.transformer(images, size)
        logits: Tensor = self.net(warp.sample(images, COORDS[self.coords].grid(size, images.device)))
        return logits


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
