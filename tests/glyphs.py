"""Pictures of strokes, drawn at any resolution by their distance from a polyline: stand-ins for handwritten digits."""

import itertools

import torch

STROKES = [
    [(-0.18, -0.28), (0.2, -0.28), (-0.05, 0.3)],  # a seven
    [(-0.16, 0.28), (-0.02, -0.3), (0.16, 0.28), (0.08, 0.06), (-0.1, 0.06)],  # an A
    [(0.18, -0.26), (-0.14, -0.26), (-0.14, 0.0), (0.14, 0.04), (0.1, 0.28), (-0.18, 0.26)],  # a five
    [(-0.15, -0.2), (0.1, -0.3), (0.18, -0.1), (-0.2, 0.28), (0.22, 0.26)],  # a two
]


def glyphs(pixels=256, width=0.05, dtype=torch.float32):
    """`(4, 1, pixels, pixels)`, white strokes with soft edges on black."""
    ticks = torch.linspace(-1, 1, pixels, dtype=dtype)
    points = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    pictures = []
    for corners in STROKES:
        nearest = torch.full((pixels, pixels), torch.inf, dtype=dtype)
        for start, end in itertools.pairwise(corners):
            start, end = torch.tensor(start, dtype=dtype), torch.tensor(end, dtype=dtype)
            along = end - start
            share = (((points - start) @ along) / along.dot(along)).clamp(0, 1)
            nearest = torch.minimum(nearest, (points - start - share[..., None] * along).norm(dim=-1))
        pictures.append(torch.exp(-((nearest / width) ** 2)))
    return torch.stack(pictures)[:, None]
