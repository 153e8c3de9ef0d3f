"""Pictures and poses that the demo opens with, found by running the networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equivariant_transformers.data.projective_mnist_set import POSE_NAMES
from equivariant_transformers.data.synthesis import pose_matrix
from equivariant_transformers.demo.photographs import Uprighting
from equivariant_transformers.demo.poses import SLIDERS, Pose, possible
from equivariant_transformers.demo.scene import seen_through
from equivariant_transformers.geometry.projective import wrap
from equivariant_transformers.hub.classifier import Classifier

_POSES = 24  # poses that are tried at most
_SURE = 0.9  # least probability of the right class with layers
_TURN = 60  # degrees, the largest rotation of a digit: a 6 must not become a 9
_ANGLES = 12  # rotations of a photograph


@torch.inference_mode()
def of_digits(model: Classifier, plain: Classifier | None, digits: Tensor) -> tuple[int, Pose]:
    """Return a digit of `digits` `(10, 28, 28)`, which are 0 to 9, and its pose.

    Of some poses in which the plain network is wrong and the model is sure of the right class, it is the mildest. If
    there is no such pose, or no plain network, the 7 is returned upright.
    """
    upright = dict.fromkeys(POSE_NAMES, 0.0)
    classes = model.card.classes
    names = [str(digit) for digit in range(len(digits))]
    if plain is None or not set(names) <= set(classes):
        return 7, upright
    labels = torch.tensor([classes.index(name) for name in names])
    for pose in _draw(_POSES):
        matrix = pose_matrix(torch.tensor([[pose[name] for name in POSE_NAMES]]), POSE_NAMES)
        images = torch.cat([seen_through(model, digit, matrix) for digit in digits])
        for digit in (plain(images).argmax(1) != labels).nonzero()[:, 0].tolist():
            if model(images[digit : digit + 1]).softmax(1)[0, labels[digit]] >= _SURE:
                return digit, pose
    return 7, upright


def _draw(count: int) -> list[Pose]:
    """Return random poses at whole steps of the sliders, from the mildest to the strongest, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    poses = []
    for _ in range(count):
        values = {}
        for slider in SLIDERS:
            low, high = (-_TURN, _TURN) if slider.group == "rotation" else slider.range
            value = low + (high - low) * float(torch.rand((), generator=generator))
            values[slider.group] = slider.to_theta(slider.nearest(slider.step * round(value / slider.step)))
        poses.append(possible(values))
    return sorted(poses, key=_strength)


def _strength(pose: Pose) -> float:
    """Return the parameters of a pose relative to their ranges, as the root of the sum of squares."""
    return math.hypot(*(pose[slider.group] / max(map(abs, slider.thetas)) for slider in SLIDERS))


@torch.inference_mode()
def of_photographs(uprighting: Uprighting, photographs: Tensor) -> tuple[int, float]:
    """Return a photograph of `photographs` `(N, 3, SIDE, SIDE)` and its rotation.

    It is the one that is turned back best, of rotations by a quarter turn or more. The rotation that the layer predicts
    for the upright photograph counts as an error as well.
    """
    turns = torch.linspace(-math.pi, math.pi, _ANGLES + 1)[:-1]
    turns = turns[turns.abs() >= math.pi / 2 - 1e-3]
    poses = torch.zeros(1 + len(turns), len(POSE_NAMES))
    poses[1:, POSE_NAMES.index("rotation")] = turns
    errors = []
    for photograph in photographs:
        found = uprighting(photograph.expand(len(poses), -1, -1, -1), poses)["predicted"][:, 0]
        errors.append(wrap(found[1:] - turns, 2 * math.pi).abs() + found[0].abs())
    best = int(torch.stack(errors).argmin())
    return best // len(turns), float(turns[best % len(turns)])
