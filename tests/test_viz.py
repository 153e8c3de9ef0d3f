"""Pictures of what layers do."""

from glyphs import glyphs
from torch import nn

import equivariant_transformers as et
from equivariant_transformers import viz


def test_every_pass_of_every_layer_has_its_row():
    stack = et.Canonicalizer(["x_shear", "rotation", "x_shear"], channels=4, iterations=2)
    figure = viz.layers(et.Canonicalized(nn.Identity(), stack, chart="log_polar").eval(), glyphs(32)[:1])
    titles = [axes.get_ylabel().split("\n")[0] for axes in figure.axes]
    assert titles == ["input", *["x shear", "rotation", "x shear"] * 2, "what the"]
