"""Small networks in the place of libraries that need not be installed."""

import sys
import types

import pytest
from torch import nn

PRETRAINED = 0.25
"""Pretrained weights of the first layer."""


def small_network(name, num_classes, in_chans=3, **options):
    """What `timm.create_model` and `torchvision.models.get_model` are called with and return, in small."""
    assert name == "resnet18"
    assert options in ({}, {"pretrained": False}, {"pretrained": True}, {"weights": None})
    made = nn.Sequential(
        nn.Conv2d(in_chans, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)
    )
    if options.get("pretrained"):
        nn.init.constant_(made[0].weight, PRETRAINED)
    return made


class Weights:
    """Pretrained weights of torchvision for 1,000 classes."""

    def get_state_dict(self, progress):
        assert not progress
        made = small_network("resnet18", 1000)
        nn.init.constant_(made[0].weight, PRETRAINED)
        return made.state_dict()


def install(library, monkeypatch):
    """Let `import timm` or `import torchvision.models` find a stand-in."""
    module = types.ModuleType(library)
    if library == "timm":
        module.create_model = small_network
    else:
        module.models = types.ModuleType("torchvision.models")
        module.models.get_model = lambda name, weights, num_classes: small_network(name, num_classes, weights=weights)
        module.models.get_model_weights = lambda _: types.SimpleNamespace(DEFAULT=Weights())
        monkeypatch.setitem(sys.modules, "torchvision.models", module.models)
    monkeypatch.setitem(sys.modules, library, module)


def backbones_of(library, monkeypatch):
    """Let `import timm` find a stand-in, timm itself, or nothing but torchvision; skip what is not installed."""
    if library == "stand-in":
        install("timm", monkeypatch)
        return
    pytest.importorskip(library)
    if library == "torchvision":
        monkeypatch.setitem(sys.modules, "timm", None)
