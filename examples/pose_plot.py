"""Plot predicted against true poses of layers with random weights, for this library's and the paper's predictor.

python examples/pose_plot.py [--out out]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from first_look import digit
from matplotlib import pyplot as plt

import equivariant_transformers as et
from equivariant_transformers import viz

RANGES = {"rotation": (-math.pi, math.pi), "x_shear": (-1.5, 1.5), "dilation": (-math.log(2), 0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder to write the plot to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    pictures = torch.cat([digit(character, pixels=256) for character in "23479"])
    # Half the size, so that dilation does not crop them.
    pictures = et.Warp.projective(et.group("dilation").matrix(math.log(2))).image(pictures, antialias=True)
    figure, axes = plt.subplots(2, len(RANGES), figsize=(11, 7), layout="constrained")
    for row, predictor in zip(axes, ("consistent", "softmax"), strict=True):
        for axis, (name, theta) in zip(row, RANGES.items(), strict=True):
            torch.manual_seed(0)
            layer = et.EquivariantTransformer(name, in_channels=1, predictor=predictor)
            result = et.self_consistency(layer, pictures, torch.linspace(*theta, 17), size=(64, 64))
            viz.pose_plot(result, axis)
            axis.set_title(f"{name.replace('_', ' ')}, {predictor}: slope {float(result.slope):.2f}")
    figure.savefig(out / "pose_plot.png", dpi=90)
    print(f"wrote {out / 'pose_plot.png'}")


if __name__ == "__main__":
    main()
