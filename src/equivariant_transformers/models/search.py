"""Search over poses at test time, a baseline: the pose for which a classifier is most confident."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equivariant_transformers.arguments import whole_number
from equivariant_transformers.geometry.groups import group
from equivariant_transformers.geometry.motion import remove_pose

_AT_ONCE = 1024  # images per forward pass


class Span(NamedTuple):
    """Poses of a group to search: `points` poses from `-max_theta` to `max_theta` at first, then poses between them.

    With one point, the search starts at pose 0 with steps of half of `max_theta`.
    """

    max_theta: float
    points: int

    @property
    def step(self) -> float:
        """First step of the refinement: half the distance of the poses."""
        return self.max_theta / (self.points - 1 if self.points > 1 else 2)


class PoseSearch(nn.Module):
    """Classifier that removes from each image the pose for which its largest probability is highest.

    A coarse grid over all groups is followed by a refinement: each round tries one step up and down along each group
    and halves the steps. In training, the network is called as it is.

    Args:
        network: classifier that takes images `(B, C, H, W)` and a starting `Warp`, such as `Canonicalized`.
        spans: poses of each group, by name. The poses are removed in this order.
        rounds: number of rounds of the refinement.

    >>> import equivariant_transformers as et
    >>> backbone = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> search = PoseSearch(et.Canonicalized(backbone, et.Canonicalizer([])), {"rotation": Span(0.5, 5)}).eval()
    >>> search(torch.rand(2, 1, 16, 16)).shape, search.evaluations
    (torch.Size([2, 10]), 13)
    """

    grid: Tensor
    steps: Tensor

    def __init__(self, network: nn.Module, spans: Mapping[str, Span], *, rounds: int = 4) -> None:
        super().__init__()
        if not spans:
            raise ValueError("a search needs the poses of at least one group, got none")
        self.network = network
        self.groups = [group(name) for name in spans]
        self.rounds = whole_number("rounds", rounds, least=0)
        lines = [
            torch.linspace(-limit, limit, count) if count > 1 else torch.zeros(1) for limit, count in spans.values()
        ]
        self.register_buffer("grid", torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).flatten(0, -2))
        self.register_buffer("steps", torch.tensor([span.step for span in spans.values()]))

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the network per image."""
        return len(self.grid) + 2 * len(self.groups) * self.rounds

    def forward(self, images: Tensor) -> Tensor:
        """Return the logarithms of the probabilities `(B, classes)` at the best pose of each image."""
        if self.training:
            logits: Tensor = self.network(images)
            return logits
        pose, found = self._best(images, self.grid[:, None].expand(-1, images.shape[0], -1))
        moves = torch.diag(self.steps)
        for _ in range(self.rounds):
            moved, better = self._best(images, pose + torch.cat((moves, -moves))[:, None])
            gain = (better.amax(1) > found.amax(1))[:, None]
            pose, found = torch.where(gain, moved, pose), torch.where(gain, better, found)
            moves = moves / 2
        return found

    def _best(self, images: Tensor, poses: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best of the `poses` `(K, B, k)` of each image, `(B, k)`, and its log-probabilities."""
        batch = images.shape[0]
        parts = []
        for some in poses.split(max(1, _AT_ONCE // batch)):  # type: ignore[no-untyped-call]
            logits = self.network(images.repeat(len(some), 1, 1, 1), remove_pose(self.groups, some.flatten(0, 1)))
            parts.append(logits.log_softmax(1).unflatten(0, (-1, batch)))
        shares = torch.cat(parts)  # (K, B, classes)
        best = shares.amax(2).argmax(0)
        rows = torch.arange(batch, device=images.device)
        return poses[best, rows], shares[best, rows]
