"""Pictures of what layers do."""

import io

import pytest
import torch
from glyphs import glyphs
from matplotlib.figure import Figure
from torch import nn

import equivariant_transformers as et
from equivariant_transformers import viz


def test_every_pass_of_every_layer_has_its_row():
    stack = et.Canonicalizer(["x_shear", "rotation", "x_shear"], channels=4, iterations=2, predictor="consistent")
    figure = viz.layers(et.Canonicalized(nn.Identity(), stack, chart="log_polar").eval(), glyphs(32)[:1])
    titles = [axes.get_ylabel().split("\n")[0] for axes in figure.axes]
    assert titles == ["input", *["x shear", "rotation", "x shear"] * 2, "what the"]


@pytest.mark.parametrize("name", ["回転", "$\\frac{$", "a$b$", "\ttab", "\0", "é\n", ""])
def test_any_name_can_be_drawn(name):
    shear = et.Group.from_generator([[0, -1, 0], [0, 0, 0], [0, 0, 0]], name=name)
    chart = et.chart("x_shear").replace(name=name, groups=(shear,), size=(8, 8))
    model = et.Canonicalized(nn.Identity(), et.EquivariantTransformer(chart, channels=4), chart=chart).eval()
    images = glyphs(16)[:2]
    plot = Figure()
    viz.pose_plot(et.self_consistency(model, images, (-0.1, 0.1)), plot.subplots())
    for figure in (viz.layers(model, images), plot):
        figure.savefig(io.BytesIO(), format="png", dpi=20)  # warnings are errors


@pytest.mark.parametrize(("size", "extent"), [((9, 9), [-1, 1, 1, -1]), ((5, 9), [-1, 1, 0.5, -0.5])])
def test_a_picture_is_drawn_over_its_frame(size, extent):
    axes = Figure().subplots()
    viz.show(torch.rand(1, *size), axes)
    assert axes.images[0].get_extent() == extent


def test_a_dollar_is_a_dollar():
    plot = Figure()
    result = et.SelfConsistency(("$a_b$",), torch.linspace(0, 1, 3), *torch.rand(2, 1, 3, 2))
    viz.pose_plot(result, plot.subplots())
    assert plot.axes[0].get_title().startswith(r"\$a b\$: slope")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_images_of_any_precision_can_be_drawn(dtype):
    model = et.Canonicalized(nn.Identity(), et.EquivariantTransformer("x_shear", channels=4)).to(dtype).eval()
    viz.layers(model, glyphs(16)[:1].to(dtype))


@pytest.mark.parametrize(
    ("channels", "count", "options", "message"),
    [
        (2, 1, {}, "1, 3 or 4 channels, got shape"),
        (1, 0, {}, "at least one image"),
        (1, 1, {"copies": 0}, "copies must be at least 1"),
    ],
)
def test_mistakes_are_explained(channels, count, options, message):
    model = et.Canonicalized(nn.Identity(), et.EquivariantTransformer("x_shear", channels, channels=4)).eval()
    with pytest.raises(ValueError, match=message):
        viz.layers(model, torch.rand(count, channels, 16, 16), **options)


@pytest.mark.parametrize("count", [1, 2, 12, 25, 60])
def test_a_confusion_matrix_shows_names_and_numbers_while_they_fit(count):
    counts = torch.randint(0, 9, (count, count), generator=torch.Generator().manual_seed(0))
    counts[0] = 0  # a class without images
    names = [f"class ${number} with a long name" for number in range(count)]
    figure = viz.confusion(counts, names)
    (axes,) = figure.axes
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert (shown[:1] == ["class \\$0 with a lo..."]) == (count <= 30)
    written = [int(text.get_text()) for text in axes.texts]
    assert written == (counts[counts > 0].tolist() if count <= 15 else [])
    figure.savefig(io.BytesIO())
