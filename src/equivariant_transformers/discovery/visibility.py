r"""Directions along which a further small motion of the images is invisible.

If images are moved by $T_\theta$ with theta spread over a wide range, then a moved image that is moved a little further
along the same group resembles any other image of the set. A network is shown each image through a small random warp
$\exp(\sum_k a_k B_k)$ and predicts $a$. The covariance that it explains on images that it was not trained on is nearly
zero along the hidden group, and only there. At the ends of the range of theta, a motion along the group is visible. The
images there have little weight.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from equivariant_transformers.discovery.families import Family
from equivariant_transformers.discovery.images import STEP, blurred
from equivariant_transformers.discovery.steps import Steps
from equivariant_transformers.geometry.warp import Warp

_SIDE, _BLUR = 24, 2.0  # of the images that the network reads; the blur hides the pixel grid
_VIEW = 0.8  # part of the image that is shown, so that the border does not reveal the motion
_SIZE = 0.03  # of the random motion along each direction, in half widths of a translation
_BATCH = 128
_MOTIONS = 8  # pairs of opposite motions of each image in the measurement
_READ = 0.2  # prediction along the group, in sizes of the motion, from which an image has little weight
_ROUNDS = 8  # of the weights and the directions
_RESOLUTION = 0.005  # of the visibility of a direction
_COMPARED = 400  # images that the inner product of generators is computed from
_RATE, _DECAY = 2e-3, 0.02


class Visibility:
    """Explained covariance of small motions, measured with two networks, each trained on the other half of the images.

    Args:
        images: images `(B, C, H, W)`.
        family: family of generators.
        generator: random number generator on the CPU.
        steps: finished steps of the search.
        report: callback that receives the completed fraction.
    """

    def __init__(
        self,
        images: Tensor,
        family: Family,
        generator: torch.Generator,
        steps: Steps,
        report: Callable[[float], None],
    ) -> None:
        images = images - images.mean((0, 2, 3), keepdim=True)
        images = images / images.std()
        metric = self._metric(images[:_COMPARED], family)
        self.whiten = torch.linalg.inv(torch.linalg.cholesky(metric)).T
        """Matrix `(k, k)` from coordinates in which each direction changes the images equally to coefficients."""
        parts = images[::2], images[1::2]
        halves = []
        for half in range(2):

            def measured(half: int = half) -> tuple[Tensor, Tensor]:
                network = self._trained(parts[half], family, generator, lambda done: report((half + done) / 2))
                return self._measured(network, parts[1 - half], family, generator)

            halves.append(steps.run(f"half {half}", measured))
            report((half + 1) / 2)
        self.halves = halves
        """Predicted and true motions `(N, k)` of the images of each half, which its network was not trained on."""

    def least(self, count: int) -> tuple[Tensor, float]:
        """Return the coefficients `(count, k)` of the least visible directions, and their relative visibility.

        The visibility of a direction is the median over the images of the squared prediction along it. It is divided by
        the visibility of the next direction.
        """
        predicted, motion = (torch.cat(both) for both in zip(*self.halves, strict=True))
        vectors = least_visible(predicted, motion, count)
        seen = (predicted @ vectors).square().median(0).values + _RESOLUTION
        return (self.whiten @ vectors[:, :count]).T, float(seen[:count].max() / seen[count:].min())

    def agreement(self, count: int) -> float:
        """Return the smallest cosine between the spaces of the `count` least visible directions of the two halves."""
        first, second = (least_visible(*half, count)[:, :count] for half in self.halves)
        return float(torch.linalg.svdvals(first.T @ second).min())

    def _metric(self, images: Tensor, family: Family) -> Tensor:
        """Return the mean square change of what the network reads, relative to that of a translation along x."""
        changes = []
        for basis in torch.eye(family.dimension, dtype=images.dtype, device=images.device):
            ahead, behind = (_shown(images, family, (sign * STEP * basis)[None]) for sign in (1, -1))
            changes.append((ahead - behind).flatten())
        gram = torch.stack(changes) @ torch.stack(changes).T
        gram = gram / gram[0, 0].clamp_min(1e-12)
        return gram + 1e-4 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)

    def _trained(
        self, images: Tensor, family: Family, generator: torch.Generator, report: Callable[[float], None]
    ) -> nn.Module:
        """Return a network that was trained to predict the motion of `images`."""
        steps = min(1500, max(60, len(images) // 5))
        seed = int(torch.randint(2**31, (), generator=generator))
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            network = _network(images, family.dimension).to(images.device)
            optimizer = torch.optim.AdamW(network.parameters(), _RATE, weight_decay=_DECAY)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
            for step in range(steps):
                chosen = torch.randint(len(images), (_BATCH,), generator=generator).to(images.device)
                motion = torch.randn(_BATCH, family.dimension, generator=generator).to(images)
                error = (network(self._moved(images[chosen], family, motion)) - motion).square().mean()
                optimizer.zero_grad()
                error.backward()
                optimizer.step()
                schedule.step()
                report((step + 1) / steps)
        return network.eval()

    def _measured(
        self, network: nn.Module, images: Tensor, family: Family, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return predicted and true motions `(N, k)`.

        The motions of each image are opposite pairs along perpendicular directions, so that chance correlations between
        them cancel.
        """
        size = family.dimension
        predicted, motions = [], []
        for part in torch.split(images, 512):
            frames = torch.linalg.qr(torch.randn(len(part), size, size, generator=generator))[0]
            for motion in (size**0.5 * frames.to(images)).unbind(-1)[:_MOTIONS]:
                for sign in (1, -1):
                    predicted.append(network(self._moved(part, family, sign * motion)))
                    motions.append(sign * motion)
        return torch.cat(predicted), torch.cat(motions)

    def _moved(self, images: Tensor, family: Family, motion: Tensor) -> Tensor:
        return _shown(images, family, _SIZE * motion @ self.whiten.T)


def least_visible(predicted: Tensor, motion: Tensor, count: int) -> Tensor:
    """Return the eigenvectors `(k, k)` of the explained covariance, least visible first.

    Images whose motion along the first `count` directions is predicted to be large have little weight. These are the
    images at the ends of the range of theta. A motion that is invisible remains so under any weights that depend on the
    moved images alone.

    Args:
        predicted: predicted motions `(N, k)`.
        motion: true motions `(N, k)`.
        count: dimension of the group.
    """
    weights = predicted.new_ones(len(predicted), 1)
    vectors = torch.eye(predicted.shape[1]).to(predicted)
    for _ in range(_ROUNDS):
        weighted = weights / weights.sum() * predicted
        cross = weighted.T @ motion
        vectors = torch.linalg.eigh(cross + cross.T - weighted.T @ predicted)[1]
        along = (predicted @ vectors[:, :count]).square().sum(1, keepdim=True)
        weights = (1 + along / _READ**2) ** -2
    return vectors


def _shown(images: Tensor, family: Family, coefficients: Tensor) -> Tensor:
    """Return the central part of `images`, moved by the flows of `coefficients` `(B, k)` for unit time and blurred."""
    central = Warp.projective(torch.diag(images.new_tensor([_VIEW, _VIEW, 1.0])))
    scale = _SIDE / max(images.shape[-2:])
    height, width = (max(8, round(scale * count)) for count in images.shape[-2:])
    warp = family.warp(coefficients, coefficients.new_ones(len(coefficients)))
    return blurred((warp @ central).image(images, size=(height, width), padding="border"), _BLUR)


def _network(images: Tensor, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = images.shape[1]
    for width, size in ((16, 5), (32, 3), (64, 3)):
        layers += [nn.Conv2d(channels, width, size, 2, size // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(9 * 64, 128), nn.ReLU(), nn.Linear(128, outputs)
    )
