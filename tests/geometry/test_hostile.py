"""Formulas are never evaluated from text, and flows that leave the plane leave no trace in images."""

import numpy as np
import pytest
import sympy
import torch

import equivariant_transformers as et

x, y, theta = sympy.symbols("x y theta")
SHOWN = r"sympy\.symbols"  # every refusal shows how to write symbols


class Hook:
    """An object that `sympify` would call, or whose text it would evaluate."""

    def __init__(self, ran):
        self.ran = ran

    def _sympy_(self):
        self.ran.append("_sympy_")
        return x

    def __str__(self):
        self.ran.append("__str__")
        return "x"


def test_text_is_not_evaluated(tmp_path):
    witness = tmp_path / "ran"
    attack = f"__import__('pathlib').Path({str(witness)!r}).touch() or x"
    for pair in ((attack, "y"), (x, attack), [attack, y], (np.str_(attack), y), (attack.encode(), y)):
        with pytest.raises((TypeError, ValueError), match=SHOWN):
            et.derive(pair)
    assert not witness.exists()


def test_hooks_of_objects_are_not_called():
    ran = []
    with pytest.raises(TypeError, match=SHOWN):
        et.derive((Hook(ran), y))
    assert "_sympy_" not in ran


@pytest.mark.parametrize(
    "pair",
    [
        (x, y),
        (x + 0 * theta, y),
        (x + sympy.I * theta, y),
        (x + 1 / theta, y),
        (x * sympy.log(theta), y),
        (x + theta + 1, y),
        (x + sympy.nan, y),
        (x + sympy.oo * theta, y),
        (x > y, y),
        (sympy.Matrix([x, y]), y),
        (x,),
        (x, y, theta),
        (x + theta * sympy.Symbol("z"), y),
        (x + theta**2, y),
        (None, None),
    ],
    ids=str,
)
def test_what_is_not_a_group_is_explained(pair):
    with pytest.raises((TypeError, ValueError), match=r"\w{3}"):
        et.derive(pair)


FIELDS = {
    "quadratic": lambda points: points.square() * 30,
    "cubic": lambda points: 50 * points**3,
    "exponential": lambda points: torch.exp(20 * points),
    "singular": lambda points: points / (points.square().sum(-1, keepdim=True) - 0.25),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("field", FIELDS)
def test_flows_that_overflow_make_no_nan(field, dtype):
    group = et.Group.from_flow(vector_field=FIELDS[field], name=field)
    images = torch.rand(2, 1, 16, 16, dtype=dtype, requires_grad=True)
    parameter = torch.tensor([0.5, -3.0], dtype=dtype, requires_grad=True)
    warp = et.Warp.flow(group.transform, parameter)
    seen = warp.image(images, fill=0.25)
    assert seen.isfinite().all()
    seen.sum().backward()
    assert images.grad.isfinite().all()
    assert parameter.grad.isfinite().all()
    assert warp.points(torch.rand(2, 5, 2, dtype=dtype)).isfinite().all()
