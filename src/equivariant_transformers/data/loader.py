"""Batches by index from images on the device, and batches that the host reads or transforms one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from equivariant_transformers.data.imageset import ImageSet
from equivariant_transformers.data.stored import read_batches

Transform = Callable[[Tensor], Tensor]
"""Function from uint8 images `(B, C, H, W)` to uint8 images of the same shape."""


class Loader:
    """Shuffled batches of an `ImageSet`. The order depends on the seed only and is the same on every machine.

    An epoch is a matrix of indices. `batch` converts one row into normalised images and labels with device operations
    only, so that a CUDA graph can capture it. Images after the last full batch are dropped for the epoch. With several
    processes, each global batch is split among the processes. Images that are not in memory are decoded by `batch`;
    `BufferedLoader` decodes them ahead.

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

    def start(self, order: Tensor) -> None:
        """Do nothing: all batches are at hand. See `BufferedLoader`."""

    def advance(self) -> None:
        """Do nothing, likewise."""

    def close(self) -> None:
        """Do nothing, likewise."""


class BufferedLoader:
    """Batches that the host prepares one by one, in a tensor that stays in its place, where a CUDA graph can read it.

    The order is that of a `Loader`. Images that are not in memory are decoded ahead by worker processes. A transform is
    applied on the device, with the random numbers of the main process: a run that is resumed from a checkpoint repeats
    them.

    >>> digits = ImageSet(images=torch.zeros(10, 1, 8, 8, dtype=torch.uint8), labels=torch.arange(10), name="blank")
    >>> loader = BufferedLoader(Loader(digits, batch_size=4), transform=lambda images: 255 - images)
    >>> order = loader.epoch(0)
    >>> loader.start(order)
    >>> for indices in order:
    ...     loader.advance()
    ...     images, labels = loader.batch(indices)
    >>> images.mean().item()
    1.0

    Args:
        loader: loader with the images and their order.
        transform: random transform of each batch, such as one of torchvision's v2 transforms. It maps uint8 images
            `(B, C, H, W)` to uint8 images of the same shape. See `each` for transforms of single images.
    """

    def __init__(self, loader: Loader, transform: Transform | None = None) -> None:
        self.loader = loader
        self.transform = transform
        images = loader.dataset.images
        shape = (loader.batch_size // loader.world_size, *images.shape[1:])
        self.buffer = torch.zeros(shape, dtype=torch.uint8, device=images.device)
        self._coming: Iterator[Tensor] = iter(())

    def __len__(self) -> int:
        return len(self.loader)

    def in_order(self) -> tuple[Tensor, Tensor]:
        """Return indices and mask as `Loader.in_order`."""
        return self.loader.in_order()

    def epoch(self, number: int) -> Tensor:
        """Return the indices `(steps, batch)` of an epoch for this process."""
        return self.loader.epoch(number)

    def start(self, order: Tensor) -> None:
        """Begin to prepare the batches at `order` `(steps, batch)`. Call `advance` before each of them."""
        images = self.loader.dataset.images
        self._coming = read_batches(images, order if isinstance(images, Tensor) else order.cpu())

    def advance(self) -> None:
        """Put the next batch into the buffer."""
        images = next(self._coming)
        if self.transform is not None:
            images = self.transform(images.to(self.buffer.device))
            if images.dtype != torch.uint8 or images.shape != self.buffer.shape:
                raise ValueError(
                    f"the transform must return uint8 images of shape {tuple(self.buffer.shape)}, which the loader "
                    f"normalises, got {images.dtype} of shape {tuple(images.shape)}"
                )
        self.buffer.copy_(images, non_blocking=True)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised images in the buffer, and the labels at `indices` `(B,)`, which must be its indices."""
        dataset = self.loader.dataset
        return dataset.normalise(self.buffer), dataset.labels[indices]

    def close(self) -> None:
        """End the worker processes, if any."""
        self._coming = iter(())


def each(transform: Transform) -> Transform:
    """Return a transform of batches that applies `transform` to one image `(C, H, W)` at a time.

    A random transform of torchvision draws the same numbers for all images of a batch. Use `each` to draw numbers for
    every image.

    >>> each(lambda image: image.flip(-1))(torch.tensor([[[[1, 2]]]])).tolist()
    [[[[2, 1]]]]
    """
    return lambda images: torch.stack([transform(image) for image in images])
