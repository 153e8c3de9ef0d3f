"""Batches by index from images that already are on the device: no worker processes, no copies, no per-sample Python."""

from __future__ import annotations

import torch
from torch import Tensor

from equivariant_transformers.data.imageset import ImageSet


class Loader:
    """Shuffled batches of an `ImageSet`, the same on every machine for the same seed.

    An epoch is a matrix of indices; `batch` turns one of its rows into normalised images and labels with device
    operations only, so that a CUDA graph can hold it. The images after the last whole batch wait for the next epoch's
    order. With several processes each global batch is split among them.

    >>> digits = ImageSet(images=torch.zeros(10, 1, 8, 8, dtype=torch.uint8), labels=torch.arange(10), name="blank")
    >>> loader = Loader(digits, batch_size=4, seed=1)
    >>> loader.epoch(0).shape
    torch.Size([2, 4])
    >>> images, labels = loader.batch(loader.epoch(0)[0])
    >>> images.shape, labels.shape
    (torch.Size([4, 1, 8, 8]), torch.Size([4]))
    """

    def __init__(
        self, dataset: ImageSet, *, batch_size: int, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        if not 0 < batch_size <= len(dataset):
            raise ValueError(
                f"a batch size from 1 to {len(dataset)}, the number of images, is needed, got {batch_size}"
            )
        if batch_size % world_size:
            raise ValueError(f"{world_size} processes cannot share batches of {batch_size} evenly")
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size

    def in_order(self) -> tuple[Tensor, Tensor]:
        """Indices `(steps, batch)` that visit every image once, and which count: the last batch is filled up."""
        steps = -(-len(self.dataset) // self.batch_size)
        places = torch.arange(steps * self.batch_size, device=self.dataset.images.device)
        places = places.reshape(steps, self.world_size, -1)[:, self.rank]
        return places.clamp_max(len(self.dataset) - 1), places < len(self.dataset)

    def epoch(self, number: int) -> Tensor:
        """The indices `(steps, batch)` of this process's share of each batch of an epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.dataset), generator=generator)[: len(self) * self.batch_size]
        share = order.reshape(len(self), self.world_size, -1)[:, self.rank]
        return share.to(self.dataset.images.device)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised images `(B, C, H, W)` and labels `(B,)` at `indices` `(B,)`."""
        return self.dataset.normalise(self.dataset.images[indices]), self.dataset.labels[indices]
