"""Draw the paper's coordinate systems, and each group acting on a digit.

python examples/first_look.py [--out out]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

import equivariant_transformers as et
from equivariant_transformers import viz

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

FIGURE_CHARTS = (
    "rotation",
    "dilation",
    "x_shear",
    "hyperbolic_rotation",
    "x_perspective",
)  # charts in the paper's appendix figure
THETA = {  # parameter of each group
    "x_translation": 0.4,
    "y_translation": 0.4,
    "rotation": math.pi / 4,
    "dilation": -math.log(1.6),
    "x_scale": -math.log(1.6),
    "y_scale": -math.log(1.6),
    "hyperbolic_rotation": -math.log(1.5),
    "x_shear": 0.8,
    "y_shear": 0.8,
    "x_perspective": 0.6,
    "y_perspective": 0.6,
}


def digit(character: str = "5", pixels: int = 128) -> torch.Tensor:
    """Return a picture `(1, 1, pixels, pixels)` of a character, white on black."""
    figure = Figure(figsize=(1, 1), dpi=pixels, facecolor="black")
    figure.text(0.5, 0.47, character, color="white", fontsize=48, ha="center", va="center", weight="bold")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return torch.from_numpy(np.asarray(canvas.buffer_rgba())[..., 0].copy())[None, None].float() / 255


def draw_coordinates(image: torch.Tensor, path: Path) -> None:
    figure, axes = plt.subplots(2, len(FIGURE_CHARTS), figsize=(15, 6.2), layout="constrained")
    for column, name in zip(axes.T, FIGURE_CHARTS, strict=True):
        chart = et.chart(name)
        viz.show(image[0], column[0], name.replace("_", " "))
        viz.coordinate_lines(chart, column[0])
        viz.in_chart(chart.replace(size=(128, 128)), image[0], column[1])
        column[1].set_xlabel("pose coordinate")
    axes[0, 0].set_ylabel("the plane")
    axes[1, 0].set_ylabel("in canonical coordinates")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_groups(image: torch.Tensor, path: Path) -> None:
    figure, axes = plt.subplots(2, 6, figsize=(13, 4.8), layout="constrained")
    viz.show(image[0], axes.flat[0], "input")
    for axis, (name, theta) in zip(axes.flat[1:], THETA.items(), strict=True):
        warp = et.Warp.projective(et.group(name).matrix(theta))
        viz.show(warp.image(image)[0], axis, f"{name.replace('_', ' ')}\nθ = {theta:.2f}")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder to write the pictures to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    image = digit()
    for draw, name in ((draw_coordinates, "coordinates.png"), (draw_groups, "groups.png")):
        draw(image, out / name)
        print(f"wrote {out / name}")


if __name__ == "__main__":
    main()
