"""Networks and settings of the demo that runs in a browser without a server, on a page of the documentation."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers.data.projective_mnist_set import PERSPECTIVE, POSE_NAMES
from equivariant_transformers.data.synthesis import pose_matrix
from equivariant_transformers.demo import opening, photographs, uploads
from equivariant_transformers.demo.drawing import words
from equivariant_transformers.demo.photographs import Uprighting
from equivariant_transformers.demo.poses import PHOTOGRAPH_SLIDERS, SLIDERS, Slider
from equivariant_transformers.demo.scene import seen_through
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.export import TOLERANCE, ExportError, serialise
from equivariant_transformers.hub.zoo import find


class DigitNetworks(nn.Module):
    """Digit in a pose, the canonical image, the predicted poses, and the probabilities of two networks."""

    def __init__(self, model: Classifier, plain: Classifier) -> None:
        super().__init__()
        self.model = model
        self.plain = plain

    def forward(self, source: Tensor, pose: Tensor) -> dict[str, Tensor]:
        """Run the networks on digits `source` `(1, 1, 28, 28)` of bytes in a `pose` `(1, 6)`."""
        distorted = seen_through(self.model, source[0, 0], pose_matrix(pose, POSE_NAMES))
        out = self.model.canonicalize(distorted)
        return {
            "distorted": distorted,
            "canonical": self.model.to_bytes(out.image),
            "predicted": out.pose,
            "shares": self.model.module.read(out).softmax(1),
            "plain_shares": self.plain(distorted).softmax(1),
        }


def digit_networks() -> DigitNetworks:
    """Return the networks for digits."""
    return DigitNetworks(find("projective-mnist"), find("projective-mnist-plain")).eval()


def settings(digits: DigitNetworks, upright: Uprighting) -> dict[str, Any]:
    """Return what the page needs besides the networks, as values of JSON: sliders, samples and the first pictures."""
    drawn, shot = uploads.samples(), photographs.samples()
    digit, pose = opening.of_digits(digits.model, digits.plain, drawn)
    photograph, turn = opening.of_photographs(upright, shot)
    return {
        "order": POSE_NAMES,
        "digits": {
            "side": uploads.SIDE,
            "channels": 1,
            "classes": digits.model.card.classes,
            "layers": [words(name) for name in digits.model.card.config.layers],
            "perspective": PERSPECTIVE,
            "sliders": [_slider(slider, pose[slider.group]) for slider in SLIDERS],
            "names": [*map(str, range(len(drawn)))],
            "samples": _file("samples.png"),
            "first": digit,
        },
        "photographs": {
            "side": photographs.SIDE,
            "channels": 3,
            "layers": ["Rotation"],
            "sliders": [_slider(slider, turn if slider.group == "rotation" else 0.0) for slider in PHOTOGRAPH_SLIDERS],
            "names": photographs.NAMES,
            "samples": _file("photographs.jpg"),
            "first": photograph,
        },
    }


def _file(name: str) -> str:
    """Return a strip of samples as a data URL."""
    content = base64.b64encode(Path(__file__).with_name(name).read_bytes()).decode()
    return f"data:image/{'png' if name.endswith('png') else 'jpeg'};base64,{content}"


def _slider(slider: Slider, theta: float) -> dict[str, Any]:
    return {
        "group": slider.group,
        "label": slider.label,
        "min": round(slider.range[0], 2),
        "max": round(slider.range[1], 2),
        "step": slider.step,
        "rest": slider.rest,
        "value": round(slider.from_theta(theta), 2),
    }


@torch.no_grad()
def to_onnx(module: nn.Module, source: Tensor) -> bytes:
    """Return `module`, a map from `source` and `pose` to named tensors, as an ONNX file for one picture.

    An `ExportError` is raised if the file computes anything else than the module.
    """
    import onnxruntime

    pose = torch.linspace(-0.3, 0.3, len(POSE_NAMES))[None]
    expected: Mapping[str, Tensor] = module(source, pose)
    content = serialise(
        torch.export.export(module, (source, pose)), input_names=["source", "pose"], output_names=[*expected]
    )
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    results = session.run(None, {"source": source.numpy(), "pose": pose.numpy()})
    for (name, there), here in zip(expected.items(), map(torch.as_tensor, results), strict=True):
        difference = (here.double() - there.double()).abs().max()
        if not difference <= (TOLERANCE if there.is_floating_point() else 1):  # levels of a picture
            raise ExportError(f"the exported network differs from the network itself in {name} by {difference:.1e}")
    return content
