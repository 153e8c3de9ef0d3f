"""Classifiers by name: those of the paper, and those of timm, torchvision and the user."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.models.affnist import AffNISTCNN
from equivariant_transformers.models.capsule import CapsuleNetwork
from equivariant_transformers.models.resnet import resnet10, resnet18, resnet34
from equivariant_transformers.models.z2cnn import Z2CNN
from equivariant_transformers.text import quote

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "z2cnn": Z2CNN,
    "affnist": AffNISTCNN,
    "affnist-small": partial(AffNISTCNN, width=64),
    "resnet10": resnet10,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "capsule": CapsuleNetwork,
}
"""Classifiers of the library by name."""
LIBRARIES = ("timm", "torchvision")
"""Libraries whose classifiers have names such as `timm:resnet18`."""

Network = Callable[[int, int], nn.Module]
"""Function of the user from the number of input channels and of classes to a classifier."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # no address of a hub and no path
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class OwnNetworkError(ValueError):
    """Error for a network of the user that is given by its name only."""


def check_name(network: str) -> None:
    """Raise a ValueError unless `network` is a name in `NETWORKS`, `library:name` or `module:function`.

    >>> check_name("timm:hf-hub:someone/something")
    Traceback (most recent call last):
    ValueError: a network of timm must be a name such as timm:resnet18, got 'timm:hf-hub:someone/something'
    """
    if not isinstance(network, str):
        raise ValueError(f"a network has a name, such as resnet10 or module:function, got {quote(network)}")
    library, colon, name = network.partition(":")
    if not colon:
        lookup(NETWORKS, network, "network")
    elif library in LIBRARIES:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a network of {library} must be a name such as {library}:resnet18, got {quote(network)}")
    elif not _FUNCTION.fullmatch(network):
        raise ValueError(f"a network must be a name, library:name or module:function, got {quote(network)}")


def check_pretrained(network: str | Network, pretrained: bool) -> None:
    """Raise a ValueError if a network without pretrained weights is to have them."""
    if pretrained and not (isinstance(network, str) and network.partition(":")[0] in LIBRARIES):
        raise ValueError(f"only networks of timm and torchvision have pretrained weights, got {quote(network)}")


def is_own(network: str) -> bool:
    """Return whether a network is a function of the user, `module:function`.

    >>> is_own("resnet10"), is_own("timm:resnet18"), is_own("nets:small")
    (False, False, True)
    """
    return ":" in network and network.partition(":")[0] not in LIBRARIES


def import_network(network: str) -> Network:
    """Import the function `module:function`. Importing a module runs its code: the name must come from the user.

    >>> import_network("os.path:join").__name__
    'join'
    """
    check_name(network)
    module, _, name = network.partition(":")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ValueError(f"the module {module} has no function {name}")
    made: Network = function
    return made


def import_library(network: str) -> Any:
    """Import the library of `timm:NAME` or `torchvision:NAME`. Return None for any other network."""
    library = network.partition(":")[0]
    if library not in LIBRARIES:
        return None
    try:
        return importlib.import_module("timm" if library == "timm" else "torchvision.models")
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(f"the network {network} needs {library}: pip install {library}") from missing


def make_backbone(
    network: str | Network, in_channels: int, classes: int, *, pretrained: bool = False, **options: Any
) -> nn.Module:
    """Return a classifier with random weights, or with the pretrained weights of timm or torchvision.

    Args:
        network: name in `NETWORKS`, `timm:NAME`, `torchvision:NAME`, or a function of the user. The name of a function,
            `module:function`, raises an error, because it may come from a file.
        in_channels: channels of the images.
        classes: number of logits.
        pretrained: start from the weights of the library, which downloads them unless they are in its cache. The last
            layer, and any other layer of another shape, has random weights.
        options: further arguments of the classifiers in `NETWORKS`.
    """
    check_pretrained(network, pretrained)
    if not isinstance(network, str):
        return _checked(network(in_channels, classes))
    check_name(network)
    library, _, name = network.partition(":")
    if network in NETWORKS:
        return NETWORKS[network](in_channels, classes, **options)
    if library not in LIBRARIES:
        raise OwnNetworkError(
            f"the network {network} is a function of your own, and is not imported because a file names it: pass the "
            f"function as network=..., or --network {network} on the command line"
        )
    module = import_library(network)
    if library == "timm":
        return _checked(module.create_model(name, pretrained=pretrained, num_classes=classes, in_chans=in_channels))
    if in_channels != 3:
        raise ValueError(f"networks of torchvision take 3 channels, got {in_channels}; timm:{name} takes any number")
    made = _checked(module.get_model(name, weights=None, num_classes=classes))
    if pretrained:
        own, weights = made.state_dict(), module.get_model_weights(name).DEFAULT.get_state_dict(progress=False)
        made.load_state_dict(own | {key: weights[key] for key in own if weights[key].shape == own[key].shape})
    return made


def _checked(made: Any) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise TypeError(f"a function for a network must return a module, got {quote(made)}")
    return made
