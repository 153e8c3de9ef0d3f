"""Draw an animation: a digit moves, the digit in the chart slides, the canonical image does not change. No training.

python examples/orbit.py [--out out] [--frames 48]
"""

from __future__ import annotations

import argparse
import io
import math
from pathlib import Path

import torch
from first_look import digit
from matplotlib.figure import Figure
from PIL import Image

import equivariant_transformers as et
from equivariant_transformers import viz

BACKGROUND, INK = "#14161f", "#e8e8f0"
REACH = {"rotation": math.pi, "x_shear": 0.9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder to write the animation to")
    parser.add_argument("--frames", type=int, default=48)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    layers = {name: et.EquivariantTransformer(name, in_channels=1) for name in REACH}
    smaller = et.Warp.projective(et.group("dilation").matrix(0.25))  # leaves a margin around the digit
    picture = smaller.image(digit("2", 256), antialias=True)
    turns = (torch.arange(given.frames) / given.frames * 2 - 1).tolist()
    frames = [frame(layers, picture, turn) for turn in turns]
    path = given.out / "orbit.webp"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=70, loop=0, quality=70, method=6)
    print(f"wrote {path}")


def frame(layers: dict[str, et.EquivariantTransformer], picture: torch.Tensor, turn: float) -> Image.Image:
    """Return one frame of the animation. `turn` runs from -1 to 1."""
    figure = Figure(figsize=(7.6, 4.9), layout="constrained", facecolor=BACKGROUND)
    for row, (name, layer) in zip(figure.subplots(2, 3), layers.items(), strict=True):
        periodic = et.group(name).period is not None
        theta = REACH[name] * (turn if periodic else math.sin(math.pi * turn))
        moved = et.Warp.projective(et.group(name).matrix(theta)).image(picture, size=(128, 128), antialias=True)
        with torch.no_grad():
            out = layer(moved)
        words = name.replace("_", " ")
        viz.show(moved[0], row[0], f"input: {words} by {theta:+.2f}")
        viz.in_chart(layer.chart.replace(size=(128, 128)), moved[0], row[1])
        row[1].axvline(-float(out.pose), color=viz.POSE_COLOUR, linewidth=2.5)
        row[1].set(xticks=(), yticks=(), title="in its chart, with the pose")
        viz.show(out.image[0], row[2], "canonical")
        for axis in row:
            axis.title.set(color=INK, fontsize=10.5)
            axis.spines[:].set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, dpi=100, facecolor=BACKGROUND)
    return Image.open(file).convert("RGB")


if __name__ == "__main__":
    main()
