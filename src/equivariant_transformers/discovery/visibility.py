r"""Directions along which a further small motion of the images is invisible.

If images are moved by $T_\theta$ with theta spread over a wide range, then a moved image that is moved a little further
along the same group resembles any other image of the set. A network is shown each image through a small random warp
$\exp(\sum_k a_k B_k)$ and predicts $a$. The covariance that it explains on images that it was not trained on is nearly
zero along the hidden group, and only there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from equivariant_transformers.discovery.families import Family
from equivariant_transformers.discovery.images import STEP, blurred
from equivariant_transformers.geometry.warp import Warp

_SIDE, _BLUR = 24, 2.0  # of the images that the network reads; the blur hides the pixel grid
_VIEW = 0.8  # part of the image that is shown, so that the border does not reveal the motion
_SIZE = 0.02  # of the random motion along each direction, in half widths of a translation
_BATCH = 128
_MOTIONS = 4  # random motions of each image in the measurement
_COMPARED = 400  # images that the inner product of generators is computed from
_RATE, _DECAY = 2e-3, 0.02


class Visibility:
    """Explained covariance of small motions, measured with two networks, each trained on the other half of the images.

    Args:
        images: images `(B, C, H, W)`.
        family: family of generators.
        generator: random number generator on the CPU.
        report: callback that receives the completed fraction.
    """

    def __init__(
        self, images: Tensor, family: Family, generator: torch.Generator, report: Callable[[float], None]
    ) -> None:
        images = images - images.mean((0, 2, 3), keepdim=True)
        images = images / images.std()
        metric = self._metric(images[:_COMPARED], family)
        self.whiten = torch.linalg.inv(torch.linalg.cholesky(metric)).T
        """Matrix `(k, k)` from coordinates in which each direction changes the images equally to coefficients."""
        parts = images[::2], images[1::2]
        halves = []
        for half in range(2):

            def share(fraction: float, half: int = half) -> None:
                report((half + fraction) / 2)

            network = self._trained(parts[half], family, generator, share)
            halves.append(self._explained(network, parts[1 - half], family, generator))
        self.halves = torch.stack(halves)
        """Explained covariance `(2, k, k)`, as a share of the covariance of the motion, measured on each half."""

    def directions(self) -> tuple[Tensor, Tensor]:
        """Return the stationary values `(k,)` of the explained share, least first, and their coefficients `(k, k)`."""
        values, vectors = torch.linalg.eigh(self.halves.mean(0))
        return values, (self.whiten @ vectors).T

    def agreement(self, count: int) -> float:
        """Return the smallest cosine between the spaces of the `count` least visible directions of the two halves."""
        first, second = (torch.linalg.eigh(half)[1][:, :count] for half in self.halves)
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

    def _explained(self, network: nn.Module, images: Tensor, family: Family, generator: torch.Generator) -> Tensor:
        """Return the covariance `(k, k)` of random motions that the predictions of `network` explain."""
        total = images.new_zeros(family.dimension, family.dimension)
        for part in torch.split(images, 512):
            for _ in range(_MOTIONS):
                motion = torch.randn(len(part), family.dimension, generator=generator).to(images)
                predicted = network(self._moved(part, family, motion))
                total += predicted.T @ motion + motion.T @ predicted - predicted.T @ predicted
        return total / (_MOTIONS * len(images))

    def _moved(self, images: Tensor, family: Family, motion: Tensor) -> Tensor:
        return _shown(images, family, _SIZE * motion @ self.whiten.T)


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
    for width, size in ((24, 5), (48, 3), (64, 3)):
        layers += [nn.Conv2d(channels, width, size, 2, size // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(9 * 64, 128), nn.ReLU(), nn.Linear(128, outputs)
    )
