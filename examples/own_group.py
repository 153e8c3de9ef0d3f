"""Define a group by its formula, derive its canonical coordinates, and measure the self-consistency of a layer.

python examples/own_group.py
"""

from __future__ import annotations

import sympy
import torch

import equivariant_transformers as et


def flags(pixels: int = 96) -> torch.Tensor:
    """Return three blurred pictures `(3, 1, pixels, pixels)` of a flag on a pole."""
    ticks = torch.linspace(-1, 1, pixels)
    x, y = torch.meshgrid(ticks, ticks, indexing="xy")
    flag = (x.abs() < 0.12) & (y.abs() < 0.5) | ((y + 0.35).abs() < 0.15) & (x > 0) & (x < 0.4)
    picture = torch.nn.functional.avg_pool2d(flag.float()[None, None], 5, stride=1, padding=2)
    return torch.cat((picture, picture.flip(-1), picture.mT))


def main() -> None:
    x, y, theta = sympy.symbols("x y theta")
    wave = (x + theta * sympy.sin(3 * y), y)  # shifts each row by a sine of its height
    chart = et.derive(wave, name="wave")
    print(chart)
    print(chart.formulas)

    torch.manual_seed(0)
    layer = et.EquivariantTransformer(chart, in_channels=1)  # random weights
    print(et.self_consistency(layer, flags(), (-0.4, 0.4)))


if __name__ == "__main__":
    main()
