"""Random arguments, many of them junk: a network that works, or an error that says what is allowed."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.nn import TTA, Augmented, ChartSampler

REFUSALS = (TypeError, ValueError)
JUNK = [
    *(None, True, False, 0, 1, -1, 2, 0.5, 2.0, -0.5, 10**9, 10**400, 1e300, math.nan, math.inf, -math.inf, 1j),
    *(
        "",
        "a",
        "0.5",
        "rotation",
        "回転",
        "\0",
        b"rotation",
        (),
        (0, 1),
        (1, 0),
        [],
        [0.1, 0.2],
        [[]],
        {},
        {"rotation": 1},
    ),
    *({"rotation"}, object(), len, nn.Identity, range(3), slice(2), float, Ellipsis, [None], ["x_shear", None]),
]


@functools.cache
def values():
    """Junk, and what some arguments take."""
    tensors = [
        torch.tensor(0.5),
        torch.ones(2),
        torch.zeros(0),
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
    ]
    arrays = [np.float32(0.5), np.int64(3), np.array([0.0, 1.0]), np.array(["x_shear"])]
    small = et.chart("x_shear").replace(size=(8, 8))
    layers = [et.EquivariantTransformer(small, channels=2), et.SpatialTransformer("rotation", 3, channels=2)]
    return [*JUNK, *tensors, *arrays, small, et.group("rotation"), nn.Identity(), *layers]


def pick(random, *sensible):
    """One of the sensible values most of the time, else any value."""
    return random.choice(sensible) if random.random() < 0.6 else random.choice(values())


def some(random, **choices):
    """A random part of the arguments, each sensible most of the time."""
    return {name: pick(random, *sensible) for name, sensible in choices.items() if random.random() < 0.5}


def layer_arguments(random):
    return some(
        random,
        in_channels=[1, 3],
        channels=[1, 4],
        pose_range=[None, (-1, 1), [(0, 1), (0, 1)]],
        fill=[None, 0.0, 1],
    )


def constructors(random):
    chart = pick(random, "x_shear", "log_polar", "rotation", "cartesian", et.chart("x_shear").replace(size=(8, 8)))
    stack = functools.partial(et.Canonicalizer, ["x_shear"], channels=2)
    return [
        lambda: et.EquivariantTransformer(
            chart, **layer_arguments(random), **some(random, predictor=["consistent", "softmax", "centre"])
        ),
        lambda: et.SpatialTransformer(chart, **layer_arguments(random), **some(random, predictor=[None])),
        lambda: et.Canonicalizer(
            pick(random, ["x_shear"], ["rotation", chart], [et.EquivariantTransformer("x_shear", channels=2)]),
            **some(random, in_channels=[1, 3], channels=[1, 4], fill=[None, 0.0], predictor=["softmax"]),
            **some(random, iterations=[1, 2], min_confidence=[None, 0.5], pose_noise=[0.0, 0.1]),
        ),
        lambda: et.Canonicalized(
            pick(random, nn.Flatten()),
            pick(random, stack()),
            **some(random, chart=[None, "log_polar"]),
        ),
        lambda: ChartSampler(chart, **some(random, fill=[None, 0.5])),
        lambda: Augmented(et.Canonicalized(nn.Flatten(), stack()), pick(random, {"rotation": 1.0}, {})),
        lambda: TTA(et.Canonicalized(nn.Flatten(), stack()), pick(random, {"rotation": 1.0}), pick(random, 1, 2)),
    ]


@pytest.mark.filterwarnings("ignore:model.images. in training does not train:UserWarning")
def test_what_is_made_works(fuzz):
    def check(random):
        network = random.choice(constructors(random))()
        first = next((part for part in network.modules() if isinstance(part, (et.EquivariantTransformer,))), None)
        images = torch.rand(2, getattr(network, "in_channels", first.in_channels if first else 1), 9, 12)
        out = network.train(random.random() < 0.5)(images)
        result = out if isinstance(out, torch.Tensor) else out.image
        assert result.isfinite().all()

    fuzz(check, cases=120, allowed=REFUSALS)


def test_audits(fuzz):
    layer = et.EquivariantTransformer(et.chart("x_shear").replace(size=(8, 8)), channels=2)

    def check(random):
        audit = random.choice([et.self_consistency, et.invariance, et.assert_equivariant])
        limits = {"slope": [1.0], "median": [1.0], "rms": [1.0]} if audit is et.assert_equivariant else {}
        try:
            result = audit(
                pick(random, layer, et.Canonicalizer([layer], predictor="consistent")),
                pick(random, torch.rand(2, 1, 8, 8)),
                pick(random, (-0.1, 0.1), torch.tensor([0.1, 0.2])),
                **some(random, group=["x_shear", ["rotation"]], size=[(8, 8)], fill=[0.5], batch_size=[1, 64]),
                **some(random, crop=[None, 0.7], centre=[(0, 0), (1.5, 0)]),
                **some(random, **limits),
            )
        except AssertionError as error:
            result = error
        assert str(result)

    fuzz(check, cases=60, allowed=REFUSALS)
