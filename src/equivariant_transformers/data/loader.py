"""Batches by index from images on the device, without worker processes, copies or per-sample Python."""

from __future__ import annotations

import torch
from torch import Tensor

from equivariant_transformers.data.imageset import ImageSet


class Loader:
    """Shuffled batches of an `ImageSet`. The order depends on the seed only and is the same on every machine.

    An epoch is a matrix of indices. `batch` converts one row into normalised images and labels with device operations
    only, so that a CUDA graph can capture it. Images after the last full batch are dropped for the epoch. With several
    processes, each global batch is split among the processes.

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
            raise ValueError(f"batch_size must be from 1 to {len(dataset)}, the number of images, got {batch_size}")
        if batch_size % world_size:
            raise ValueError(f"batch_size must be a multiple of the {world_size} processes, got {batch_size}")
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size

    def in_order(self) -> tuple[Tensor, Tensor]:
        """Return indices `(steps, batch)` that cover every image once, and a mask that is False for padding."""
        steps = -(-len(self.dataset) // self.batch_size)
        places = torch.arange(steps * self.batch_size, device=self.dataset.images.device)
        places = places.reshape(steps, self.world_size, -1)[:, self.rank]
        return places.clamp_max(len(self.dataset) - 1), places < len(self.dataset)

    def epoch(self, number: int) -> Tensor:
        """Return the indices `(steps, batch)` of an epoch for this process."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.dataset), generator=generator)[: len(self) * self.batch_size]
        share = order.reshape(len(self), self.world_size, -1)[:, self.rank]
        return share.to(self.dataset.images.device)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised images `(B, C, H, W)` and labels `(B,)` at `indices` `(B,)`."""
        return self.dataset.normalise(self.dataset.images[indices]), self.dataset.labels[indices]
