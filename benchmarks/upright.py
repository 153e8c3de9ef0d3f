"""Train the pretrained canonicalizer `upright` on CIFAR-10 and SVHN, without labels.

    OMP_NUM_THREADS=1 python benchmarks/upright.py --svhn FOLDER --minutes 60 --out upright.safetensors

Half of each batch are photographs of CIFAR-10, and half are house numbers of SVHN. Each is shown
through a small random warp, and the alignment loss trains a rotation layer to undo the warp. The learning rate follows
the elapsed part of `--minutes`, so that training ends in time on any machine. The file is written at the end, with the
share of held-out images whose canonical frame is right.

The shipped file was trained before the predictor moved training images by small warps of its own; the augmentation
here, which is in its card, contained them.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from photographs import in_circle
from torch import Tensor

import equivariant_transformers as et
from equivariant_transformers.hub.canonicalizers import save_canonicalizer
from equivariant_transformers.nn import Augmentation

AUGMENT = {"rotation": 0.26, "dilation": 0.15, "hyperbolic_rotation": 0.1, "x_shear": 0.1}
AUGMENT |= {"x_translation": 0.1, "y_translation": 0.1}
RATE, WEIGHT_DECAY, HALF = 3e-3, 0.05, 64
RIGHT = math.radians(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--svhn", type=Path, required=True, help="folder of the files of SVHN")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="file of the canonicalizer")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sets = {"cifar10": et.data.cifar10(), "svhn": et.data.svhn(root=given.svhn, accept_other_files=True)}
    torch.manual_seed(given.seed)
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3).to(device)
    augmentation = Augmentation(AUGMENT)
    optimizer = torch.optim.AdamW(canonicalizer.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    begun, steps, told, total = time.monotonic(), 0, 1, 0.0
    while (elapsed := (time.monotonic() - begun) / 60 / given.minutes) < 1:
        optimizer.param_groups[0]["lr"] = RATE * min(1, elapsed / 0.05) * (1 + math.cos(math.pi * elapsed)) / 2 + 1e-6
        images = torch.cat([drawn(part.train, device) for part in sets.values()])
        loss = et.alignment_loss(canonicalizer(images, augmentation.random(images)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps, total = steps + 1, total + loss.item()
        if steps % 500 == 0:
            print(f"{elapsed:.0%}: step {steps}, loss {total / 500:.3f}", flush=True)
            total = 0.0
        if elapsed > told * 0.1:
            told += 1
            print({name: measured(canonicalizer, part.validation, device) for name, part in sets.items()}, flush=True)
            canonicalizer.train()
    shares = {name: measured(canonicalizer, part.test, device) for name, part in sets.items()}
    print(steps, shares)
    training = {
        "data": ["cifar10", "svhn (rebuilt from format 1)"],
        "images": [len(part.train) for part in sets.values()],
        "steps": steps,
        "batch_size": 2 * HALF,
        "augment": AUGMENT,
        "seed": given.seed,
        "test": shares,
    }
    save_canonicalizer(canonicalizer.cpu(), given.out, training)


def drawn(images: et.data.ImageSet, device: torch.device) -> Tensor:
    """Return random training images, normalised."""
    return images.normalise(images.images[torch.randint(len(images), (HALF,))].to(device))


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
        upright = images.normalise(images.images[indices].to(device))
        turn = et.Warp.projective(et.group("rotation").matrix(theta[indices]))
        turned = in_circle(turn.image(upright, mode="bicubic", padding="border"))
        stay += int((canonicalizer(upright).pose[:, 0].abs() < RIGHT).sum())
        error = canonicalizer(turned).pose[:, 0] - theta[indices]
        back += int((torch.cos(error) > math.cos(RIGHT)).sum())
    return {"upright stay": 100 * stay / count, "turned back": 100 * back / count}


if __name__ == "__main__":
    main()
