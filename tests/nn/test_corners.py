"""Training shows half of the canonical images without corners, behind a layer for photographs that turns images."""

import pytest
import torch
from textures import textures
from torch import nn

import equivariant_transformers as et


class Seen(nn.Module):
    """A backbone that returns its input."""

    def forward(self, images):
        return images


def shown(layers, *, training=True, chart=None, size=(32, 32), **options):
    torch.manual_seed(0)
    images = textures(200, size)
    canonicalizer = et.Canonicalizer(layers, in_channels=3, channels=4, **options)
    model = et.Canonicalized(Seen(), canonicalizer, chart=chart).train(training)
    out = canonicalizer(images)
    return model.read(out), (out.image if chart is None else out.on(model.chart.grid).flatten(1, 2))


def corners(size, reach):
    height, width = size
    y, x = torch.meshgrid(torch.arange(height) - (height - 1) / 2, torch.arange(width) - (width - 1) / 2, indexing="ij")
    return torch.hypot(x, y) > reach * (min(size) - 1) / 2


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (40, 24)])
def test_half_of_the_images_have_corners_of_one_colour(size):
    seen, whole = shown(["rotation"], size=size)
    outside, inside = corners(size, 1 + 1e-4), ~corners(size, 1 - 1e-4)
    assert torch.equal(seen[..., inside], whole[..., inside])
    covered = (seen != whole).flatten(1).any(1)
    assert 70 < covered.sum() < 130
    colours = seen[covered][..., outside]
    assert torch.equal(colours, colours[..., :1].expand_as(colours))
    assert colours[..., 0].std(0).min() > 0.05
    assert torch.equal(seen[~covered], whole[~covered])


def test_corners_are_covered_in_the_coordinates_of_the_backbone():
    seen, whole = shown(["rotation"], chart="log_polar")
    beyond = et.chart("log_polar").grid()[0].norm(dim=-1) > 1
    covered = (seen != whole).flatten(1).any(1)
    assert 70 < covered.sum() < 130
    assert torch.equal(seen[..., ~beyond], whole[..., ~beyond])
    assert (seen[covered][..., beyond].std(-1) < 1e-6).all()


@pytest.mark.parametrize(
    ("layers", "options"),
    [(["rotation"], {"training": False}), (["x_shear"], {}), ([], {}), (["rotation"], {"predictor": "consistent"})],
)
def test_other_images_are_shown_whole(layers, options):
    seen, whole = shown(layers, **options)
    assert torch.equal(seen, whole)


def test_a_finished_backbone_reads_whole_images():
    images = textures(8, (32, 32))
    model = et.Canonicalized(Seen().eval(), et.Canonicalizer(["rotation"], in_channels=3, channels=4).eval())
    assert model.training
    out = model.canonicalizer(images)
    assert torch.equal(model.read(out), out.image)
