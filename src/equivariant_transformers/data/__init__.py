"""Data sets of the paper and CIFAR-10: downloaded or generated, verified, cached and held on the device.

>>> import torch
>>> from equivariant_transformers import data
>>> digits = data.ImageSet(images=torch.zeros(9, 1, 8, 8, dtype=torch.uint8), labels=torch.arange(9), name="blank")
>>> len(data.Loader(digits, batch_size=3))
3
"""

from equivariant_transformers.data.affnist_set import affnist
from equivariant_transformers.data.cifar10_set import cifar10
from equivariant_transformers.data.folder import from_csv, from_dataset, from_folder
from equivariant_transformers.data.homnist_set import homnist
from equivariant_transformers.data.imageset import ImageSet, Splits
from equivariant_transformers.data.loader import BufferedLoader, Loader, each
from equivariant_transformers.data.mnist_set import mnist
from equivariant_transformers.data.projective_mnist_set import projective_mnist
from equivariant_transformers.data.registry import DATASETS, Source, load
from equivariant_transformers.data.rotated_mnist_set import mnist_rts, rotated_mnist, rs_mnist, scale_mnist, sim2mnist
from equivariant_transformers.data.stored import Stored
from equivariant_transformers.data.svhn_set import svhn

__all__ = [
    "DATASETS",
    "BufferedLoader",
    "ImageSet",
    "Loader",
    "Source",
    "Splits",
    "Stored",
    "affnist",
    "cifar10",
    "each",
    "from_csv",
    "from_dataset",
    "from_folder",
    "homnist",
    "load",
    "mnist",
    "mnist_rts",
    "projective_mnist",
    "rotated_mnist",
    "rs_mnist",
    "scale_mnist",
    "sim2mnist",
    "svhn",
]
