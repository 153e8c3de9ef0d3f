"""Small networks in the place of libraries that need not be installed."""

import sys
import types

import pytest
from torch import nn


def small_network(name, num_classes):
    """What `timm.create_model` and `torchvision.models.get_model` are called with and return, in small."""
    assert name == "resnet18"
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)
    )


def backbones_of(library, monkeypatch):
    """Let `import timm` find a stand-in, timm itself, or nothing but torchvision; skip what is not installed."""
    if library == "stand-in":
        module = types.ModuleType("timm")
        module.create_model = small_network
        monkeypatch.setitem(sys.modules, "timm", module)
        return
    pytest.importorskip(library)
    if library == "torchvision":
        monkeypatch.setitem(sys.modules, "timm", None)
