"""Canonical frames of two transformed copies of the same image."""

import math
from types import SimpleNamespace

import pytest
import torch
from glyphs import glyphs
from torch import nn

import equivariant_transformers as et
from equivariant_transformers import audit
from equivariant_transformers.nn.augment import Augmentation

GROUPS = ("rotation", "dilation", "x_shear", "hyperbolic_rotation", "x_perspective", "y_perspective")


def homographies(seed, batch=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.eye(3, dtype=dtype).expand(batch, 3, 3)
    for name in GROUPS:
        theta = 0.6 * torch.rand(batch, generator=generator, dtype=dtype) - 0.3
        matrix = matrix @ et.group(name).matrix(theta)
    return et.Warp.projective(matrix)


def canonical_frames(*warps):
    """A canonicalizer that returns the given warps, one per call."""
    remaining = iter(warps)
    return lambda _: SimpleNamespace(warp=next(remaining))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("modulo", [None, "similarity"])
def test_a_stack_that_removes_the_transformations_has_no_discrepancy(modulo, dtype):
    first, second = homographies(1, dtype=dtype), homographies(2, dtype=dtype)
    frame = homographies(3, dtype=dtype)  # any frame will do, if it is the same for both
    exact = canonical_frames(first.inverse() @ frame, second.inverse() @ frame)
    found = et.frame_consistency(exact, glyphs(64, dtype=dtype), (first, second), modulo=modulo)
    assert found.discrepancy.max() < (1e-4 if dtype == torch.float32 else 1e-10)
    assert found.no_layers.min() > 0.05
    assert found.modulo == modulo


def test_a_similarity_is_left_to_a_log_polar_network():
    first, second = homographies(1), homographies(2)
    angle, scale = et.group("rotation").matrix(2.0), et.group("dilation").matrix(0.4)
    turned = second.inverse() @ et.Warp.projective(angle @ scale)
    for modulo, allowed in (("similarity", (0, 1e-4)), (None, (1, 10))):
        found = et.frame_consistency(
            canonical_frames(first.inverse(), turned), glyphs(64), (first, second), modulo=modulo
        )
        assert allowed[0] <= found.discrepancy.min() <= found.discrepancy.max() < allowed[1]


def test_a_translation_is_not_a_similarity_about_the_centre():
    images = torch.zeros(1, 1, 41, 41)
    images[..., 18:23, 18:23] = 1
    shifts = [et.Warp.projective(et.group("x_translation").matrix(torch.tensor([shift]))) for shift in (0.1, 0.4)]
    spread = 0.05 * math.sqrt(2 * (4 + 1 + 0 + 1 + 4) / 5)  # of 5 x 5 pixels with a pitch of 0.05
    found = et.frame_consistency(et.Canonicalizer([]), images, tuple(shifts), batch_size=1, size=(41, 41))
    assert found.median == pytest.approx(0.3 / spread, rel=1e-4)
    assert found.quartiles_no_layers == found.quartiles
    fitted = et.frame_consistency(et.Canonicalizer([]), images, tuple(shifts), modulo="similarity", size=(41, 41))
    assert fitted.median > 0.5


def test_no_layers_are_the_identity():
    torch.manual_seed(0)
    found = et.frame_consistency(et.Canonicalizer([]), glyphs(64), {"rotation": 1.0, "x_shear": 0.5})
    torch.testing.assert_close(found.discrepancy, found.no_layers)
    assert found.discrepancy.shape == (4,)


def test_a_layer_that_follows_lowers_the_discrepancy():
    torch.manual_seed(0)
    layer = et.EquivariantTransformer("rotation").train()
    found = et.frame_consistency(layer, glyphs(256), {"rotation": math.pi}, size=(64, 64))
    assert found.median < 0.2 < 0.5 < found.quartiles_no_layers[1]
    assert layer.training
    model = et.Canonicalized(nn.Flatten(), layer)
    torch.manual_seed(1)
    inside = et.frame_consistency(model, glyphs(128), Augmentation({"rotation": math.pi}), size=(64, 64), crop=0.9)
    assert inside.median < 0.3


def test_batches_change_nothing_but_memory():
    pair = homographies(1), homographies(2)
    flow = et.Warp.flow(et.RADIAL_LENS.transform, torch.tensor([0.1, 0.0, -0.1, 0.05]))
    for warps in (pair, (pair[0] @ flow, et.Warp.identity())):
        torch.manual_seed(0)
        stack = et.Canonicalizer(["x_shear", "rotation"])
        whole, parts = (et.frame_consistency(stack, glyphs(48), warps, batch_size=size) for size in (4, 3))
        torch.testing.assert_close(parts.discrepancy, whole.discrepancy, atol=1e-3, rtol=1e-3)


def test_an_image_without_content_is_left_out():
    images = glyphs(48)
    images[0] = 0
    found = et.frame_consistency(et.Canonicalizer([]), images, (homographies(1), homographies(2)))
    assert found.discrepancy.isnan().tolist() == [True, False, False, False]
    assert math.isfinite(found.median)


def test_the_result_prints_as_a_table():
    found = audit.FrameConsistency(torch.tensor([0.1, 0.2, 0.4]).double(), torch.ones(3).double(), "similarity")
    first, _, layers, nothing = str(found).splitlines()
    assert first.startswith("frame consistency modulo similarity: ")
    assert first.endswith("images: 3")
    assert layers.split() == ["layers", "0.200", "0.150", "..", "0.300"]
    assert nothing.split()[:3] == ["no", "layers", "1.000"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"modulo": "affine"}, ValueError, "modulo must be 'similarity' or None, got 'affine'"),
        ({"transformations": (et.Warp.identity(),)}, ValueError, "two warps"),
        ({"transformations": ("rotation", 1)}, ValueError, "two warps"),
        ({"transformations": 3.0}, TypeError, "max_theta must map groups to numbers"),
        ({"canonicalizer": lambda images: images}, TypeError, r"a Warp as \.warp; got shape"),
        ({"crop": 2}, ValueError, "crop must be a fraction"),
        ({"images": torch.rand(1, 16, 16)}, ValueError, r"\(B, C, H, W\)"),
    ],
)
def test_mistakes_are_explained(changes, error, message):
    arguments = {"canonicalizer": et.Canonicalizer([]), "images": glyphs(16), "transformations": {"rotation": 1.0}}
    with pytest.raises(error, match=message):
        et.frame_consistency(**{**arguments, **changes})
