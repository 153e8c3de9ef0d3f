"""Networks of the paper, and baselines.

>>> import torch
>>> from equivariant_transformers import models
>>> model = models.build("resnet10", layers=["cartesian", "log_polar", "x_scale"], in_channels=3, size=(32, 32))
>>> model(torch.rand(2, 3, 32, 32)).shape
torch.Size([2, 10])
"""

from equivariant_transformers.models.affnist import AffNISTCNN
from equivariant_transformers.models.backbones import (
    NETWORKS,
    Network,
    check_name,
    import_library,
    import_network,
    is_own,
)
from equivariant_transformers.models.capsule import CapsuleDecoder, CapsuleNetwork, margin_loss, reconstruction_loss
from equivariant_transformers.models.discrete import DiscretelyCanonicalized, DiscretePredictor, prior_loss
from equivariant_transformers.models.paper import build
from equivariant_transformers.models.resnet import ResNet, resnet10, resnet18, resnet34
from equivariant_transformers.models.search import PoseSearch, Span
from equivariant_transformers.models.steerable import SteerableCNN
from equivariant_transformers.models.z2cnn import Z2CNN

__all__ = [
    "NETWORKS",
    "Z2CNN",
    "AffNISTCNN",
    "CapsuleDecoder",
    "CapsuleNetwork",
    "DiscretePredictor",
    "DiscretelyCanonicalized",
    "Network",
    "PoseSearch",
    "ResNet",
    "Span",
    "SteerableCNN",
    "build",
    "check_name",
    "import_library",
    "import_network",
    "is_own",
    "margin_loss",
    "prior_loss",
    "reconstruction_loss",
    "resnet10",
    "resnet18",
    "resnet34",
]
