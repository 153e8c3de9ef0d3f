"""Train the pretrained canonicalizer `upright` on CIFAR-10 and SVHN, without labels.

    python benchmarks/upright.py --svhn FOLDER [--epochs 50] [--fast] --out upright.safetensors

The training images of both sets are shown through small random warps, and the alignment loss trains a rotation layer to
undo the warps. The script prints the shares of held-out and of test images whose canonical frame is right, and writes
the shares of test images into the card of the file.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from photographs import FINAL_RATE, in_circle

import equivariant_transformers as et
from equivariant_transformers.data import ImageSet, Splits
from equivariant_transformers.data.imageset import statistics
from equivariant_transformers.hub.canonicalizers import save_canonicalizer
from equivariant_transformers.training import Config, train
from equivariant_transformers.training.aligning import NO_NETWORK, make_alignment_job

AUGMENT = {"rotation": 0.26, "dilation": 0.15, "hyperbolic_rotation": 0.1, "x_shear": 0.1}
AUGMENT |= {"x_translation": 0.1, "y_translation": 0.1}
RIGHT = math.radians(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--svhn", type=Path, required=True, help="folder of the files of SVHN")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fast", action="store_true", help="compile the network, and train it in bfloat16")
    parser.add_argument("--out", type=Path, required=True, help="file of the canonicalizer")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sets = {"cifar10": et.data.cifar10(), "svhn": et.data.svhn(root=given.svhn, accept_other_files=True)}
    config = Config(
        dataset="+".join(sets),
        network=NO_NETWORK,
        layers=("rotation",),
        predictor="posterior",
        augment=tuple(f"{name}={limit:g}" for name, limit in AUGMENT.items()),
        alignment=1.0,
        epochs=given.epochs,
        batch_size=256,
        warmup=min(2, given.epochs - 1),
        lr_decay=FINAL_RATE ** (1 / given.epochs),
        keep="last",
        seed=given.seed,
        precision="bfloat16" if given.fast else "float32",
        compile=given.fast,
    )
    job = make_alignment_job(config, Splits(*(joined(parts, device) for parts in zip(*sets.values(), strict=True))))
    train([job], report=lambda now: print(now.epoch, now.history[-1:], flush=True) if not now.step else None)
    canonicalizer = job.module.canonicalizer
    save_canonicalizer(canonicalizer, given.out, {"data": [*sets]})  # the measurement follows
    held = {name: measured(canonicalizer, part.validation, device) for name, part in sets.items()}
    shares = {name: measured(canonicalizer, part.test, device) for name, part in sets.items()}
    print({"held out": held, "test": shares})
    training = {
        "data": ["cifar10", "svhn (rebuilt from format 1)"],
        "images": [len(part.train) for part in sets.values()],
        "epochs": given.epochs,
        "batch_size": config.batch_size,
        "augment": AUGMENT,
        "seed": given.seed,
        "test": shares,
    }
    save_canonicalizer(canonicalizer.cpu(), given.out, training)


def joined(parts: tuple[ImageSet, ...], device: torch.device) -> ImageSet:
    """Return the images of several sets as one set, on `device`."""
    images = torch.cat([part.images for part in parts])
    mean, std = statistics(images)
    labels = torch.zeros(len(images), dtype=torch.long)
    return ImageSet(images=images, labels=labels, name="photographs", mean=mean, std=std).to(device)


@torch.no_grad()
def measured(
    canonicalizer: et.Canonicalizer, images: et.data.ImageSet, device: torch.device, count: int = 2000
) -> dict[str, float]:
    """Return the shares in per cent of upright images that stay, and of turned images that are turned back.

    The tolerance is 20 degrees. A turned image is rotated by any angle, and only its largest circle is shown.
    """
    canonicalizer.eval()
    theta = (2 * torch.rand(count, generator=torch.Generator().manual_seed(1)) - 1).mul(math.pi).to(device)
    stay = back = 0
    for indices in torch.arange(min(count, len(images))).split(500):
        upright = images.normalise(images.images[indices]).to(device)
        turn = et.Warp.projective(et.group("rotation").matrix(theta[indices]))
        turned = in_circle(turn.image(upright, mode="bicubic", padding="border"))
        stay += int((canonicalizer(upright).pose[:, 0].abs() < RIGHT).sum())
        error = canonicalizer(turned).pose[:, 0] - theta[indices]
        back += int((torch.cos(error) > math.cos(RIGHT)).sum())
    return {"upright stay": 100 * stay / count, "turned back": 100 * back / count}


if __name__ == "__main__":
    main()
