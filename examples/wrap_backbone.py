"""Train a network of timm or torchvision in an ordinary loop. The lines marked with + add a layer in front of it.

python examples/wrap_backbone.py FOLDER [--network resnet18] [--epochs 3]

FOLDER has a subfolder of images per class; docs/tutorial.md creates such a folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import equivariant_transformers as et  # +

try:
    from timm import create_model
except ImportError:
    from torchvision.models import get_model as create_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with a subfolder of images per class")
    parser.add_argument("--network", default="resnet18", help="name of a network in timm or torchvision")
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    splits = et.data.from_folder(given.folder)
    train, validation = splits.train, splits.validation

    model = create_model(given.network, num_classes=len(train.classes))
    model = et.Canonicalized(model, et.Canonicalizer(["rotation"], in_channels=3))  # +
    augment = et.Augmentation({"rotation": 0.26})  # + the images are upright, and shown within 15 degrees
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(given.epochs):
        model.train()
        for batch in torch.randperm(len(train)).split(32):
            images, labels = train.normalise(train.images[batch]), train.labels[batch]
            out = model.canonicalizer(images, augment.random(images))  # + instead of model(images)
            loss = nn.functional.cross_entropy(model.read(out), labels) + et.alignment_loss(out)  # +
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(validation.normalise(validation.images)).argmax(1) == validation.labels
        print(f"epoch {epoch + 1}: validation accuracy {100 * right.float().mean().item():.1f} %")
    et.calibrate(model.canonicalizer, validation.normalise(validation.images))  # + upright images stay upright


if __name__ == "__main__":
    main()
