"""The paper's data sets, made or fetched, verified, cached, and kept on the device.

>>> import torch
>>> from equivariant_transformers import data
>>> digits = data.ImageSet(images=torch.zeros(9, 1, 8, 8, dtype=torch.uint8), labels=torch.arange(9), name="blank")
>>> len(data.Loader(digits, batch_size=3))
3
"""

from equivariant_transformers.data.folder import from_dataset, from_folder
from equivariant_transformers.data.imageset import ImageSet, Splits
from equivariant_transformers.data.loader import Loader
from equivariant_transformers.data.registry import DATASETS, Source, load
from equivariant_transformers.data.svhn import svhn

__all__ = ["DATASETS", "ImageSet", "Loader", "Source", "Splits", "from_dataset", "from_folder", "load", "svhn"]
