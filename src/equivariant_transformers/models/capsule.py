"""Capsule network of Sabour, Frosst and Hinton (2017), the paper's baseline on affNIST."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_TYPES, _PRIMARY, _CLASS = 32, 8, 16  # types of primary capsules, and the dimensions of a primary and a class capsule


class CapsuleNetwork(nn.Module):
    """Network of capsules that vote for classes. The logit of a class is the length of its capsule.

    A 9x9 convolution with 256 channels is followed by a 9x9 convolution with stride 2, whose outputs are 32 types of
    primary capsules of 8 dimensions. Routing computes one capsule of 16 dimensions per class. Train the network with
    `margin_loss` and, optionally, a `CapsuleDecoder` on its `capsules`.

    Args:
        in_channels: channels of the images.
        classes: number of logits.
        size: height and width of the images.
        iterations: number of routing iterations.

    >>> CapsuleNetwork(size=(20, 20))(torch.rand(2, 1, 20, 20)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, in_channels: int = 1, classes: int = 10, *, size: tuple[int, int] = (28, 28), iterations: int = 3
    ) -> None:
        super().__init__()
        if min(size) < 17:
            raise ValueError(f"two 9x9 convolutions need images of at least 17 x 17 pixels, got {size}")
        if iterations < 1:
            raise ValueError(f"routing needs at least one iteration, got {iterations}")
        self.classes = classes
        self.iterations = iterations
        self.conv = nn.Conv2d(in_channels, 256, 9)
        self.primary = nn.Conv2d(256, _PRIMARY * _TYPES, 9, stride=2)
        height, width = ((length - 17) // 2 + 1 for length in size)
        primary = _TYPES * height * width
        # The initial sum of the votes is short for any number of capsules. Long sums are squashed to lengths near 1,
        # where the gradient vanishes and the network does not learn.
        self.weight = nn.Parameter(primary**-0.5 * torch.randn(primary, _PRIMARY, classes * _CLASS))

    def capsules(self, images: Tensor) -> Tensor:
        """Return class capsules `(B, classes, 16)` for images `(B, C, H, W)`."""
        x = self.primary(F.relu(self.conv(images), inplace=True))
        primary = squash(x.reshape(x.shape[0], _PRIMARY, -1).mT)  # (B, primary capsules, 8)
        votes = torch.einsum("bni,nio->bno", primary, self.weight)
        return route(votes.reshape(*votes.shape[:2], self.classes, _CLASS), self.iterations)[0]

    def forward(self, images: Tensor) -> Tensor:
        """Return the lengths `(B, classes)` of the class capsules, each below 1, for images `(B, C, H, W)`."""
        lengths: Tensor = torch.linalg.vector_norm(self.capsules(images), dim=-1)
        return lengths


class CapsuleDecoder(nn.Module):
    """Three linear layers that reconstruct an image from the capsule of its class, to regularise a capsule network.

    >>> capsules, labels = torch.rand(2, 10, 16), torch.tensor([3, 7])
    >>> CapsuleDecoder()(capsules, labels).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(self, in_channels: int = 1, classes: int = 10, *, size: tuple[int, int] = (28, 28)) -> None:
        super().__init__()
        self.shape = (in_channels, *size)
        self.hidden1 = nn.Linear(classes * _CLASS, 512)
        self.hidden2 = nn.Linear(512, 1024)
        self.out = nn.Linear(1024, in_channels * size[0] * size[1])

    def forward(self, capsules: Tensor, labels: Tensor) -> Tensor:
        """Return pixels `(B, C, H, W)` between 0 and 1 for capsules `(B, classes, 16)` and labels `(B,)`."""
        chosen = capsules * F.one_hot(labels, capsules.shape[1])[..., None]
        x = F.relu(self.hidden2(F.relu(self.hidden1(chosen.flatten(1)))))
        return torch.sigmoid(self.out(x)).reshape(-1, *self.shape)


def squash(vectors: Tensor) -> Tensor:
    r"""Scale `vectors` `(..., d)` to lengths below 1: $s \mapsto \frac{|s|^2}{1 + |s|^2} \frac{s}{|s|}$.

    >>> squash(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[0.0000, 0.0000],
            [0.5769, 0.7692]])
    """
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)  # its gradient at 0 is 0
    return vectors * (length / (1 + length.square()))


def route(votes: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return capsules `(B, out, d)` and coupling coefficients `(B, in, out)` of votes `(B, in, out, d)`.

    Routing is by agreement. The coupling coefficients of an input capsule sum to 1. They are equal in the first
    iteration, and then grow for the output capsules that agree with its votes.
    """
    agreement = votes.new_zeros(votes.shape[:-1])
    for remaining in reversed(range(iterations)):
        coupling = agreement.softmax(-1)
        capsules = squash(torch.einsum("bnj,bnjd->bjd", coupling, votes))
        if remaining:
            agreement = agreement + torch.einsum("bnjd,bjd->bnj", votes, capsules)
    return capsules, coupling


def margin_loss(lengths: Tensor, labels: Tensor) -> Tensor:
    r"""Return the mean over the batch of $\max(0, 0.9 - |v_c|)^2 + \frac12\sum_{k \ne c} \max(0, |v_k| - 0.1)^2$.

    `lengths` $|v_k|$ have the shape `(B, classes)`, and `labels` $c$ the shape `(B,)`.

    >>> margin_loss(torch.tensor([[0.9, 0.1, 0.3]]), torch.tensor([0]))
    tensor(0.0200)
    """
    right = F.one_hot(labels, lengths.shape[1])
    missing = F.relu(0.9 - lengths).square()
    excess = F.relu(lengths - 0.1).square()
    return torch.where(right == 1, missing, 0.5 * excess).sum(1).mean()


def reconstruction_loss(reconstruction: Tensor, pixels: Tensor) -> Tensor:
    """Return 0.0005 times the summed squared error of a `CapsuleDecoder`, as the mean over the batch.

    `pixels` `(B, C, H, W)` are between 0 and 1. Add the result to `margin_loss`.
    """
    return 0.0005 * (reconstruction - pixels).square().flatten(1).sum(1).mean()
