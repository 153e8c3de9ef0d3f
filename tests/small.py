"""A task that a network learns in a second: the class is the row of a bright bar."""

import torch
from torch import nn

from equivariant_transformers.data import ImageSet, Loader
from equivariant_transformers.training import Config, Job

CONFIG = Config(epochs=4, batch_size=16, learning_rate=1e-2)


def bars(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.randint(60, (count, 1, 8, 8), generator=generator)
    images[torch.arange(count), 0, 2 * labels] += 150
    return ImageSet(
        images=images.to(torch.uint8), labels=labels, name="bars", mean=(60.0,), std=(60.0,), classes=tuple("abcd")
    )


def network(seed, dropout=0.3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(6 * 36, 4)
    )


def plain(seed):
    """Return a network without batch statistics or dropout: its results do not depend on who computes them."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 4))


def job(config=CONFIG, directory=None, module=None, device="cpu", rank=0, world_size=1):
    share = {"rank": rank, "world_size": world_size}
    train, validation, test = (bars(count, seed).to(device) for seed, count in enumerate((100, 33, 40)))
    return Job(
        config=config,
        module=(module or network(config.seed)).to(device),
        train=Loader(train, batch_size=config.batch_size, seed=config.seed, **share),
        validation=Loader(validation, batch_size=16, **share),
        test=Loader(test, batch_size=16, **share),
        directory=directory,
    )
