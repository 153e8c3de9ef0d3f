"""Compare networks with and without a rotation layer on photographs, upright and turned by any angle.

    OMP_NUM_THREADS=1 python benchmarks/photographs.py cifar10 [--examples 10000] [--epochs 12] [--seeds 1]
    OMP_NUM_THREADS=1 python benchmarks/photographs.py svhn --root FOLDER

Each network is a ResNet-10, trained with the same augmentation and number of epochs with and without a layer. The rows:

- trained within 15 degrees of upright: no layers; a layer, trained with the alignment loss beside the class loss;
- a layer trained without labels, in front of the finished network without layers, whose weights do not change;
- trained at any angle: no layers; a layer.

A turned test image is sampled once from the original by cubic convolution. Pixels outside the largest circle in the
frame are replaced by the mean of the image, so that corners tell nothing. The script adds its runs to a file of
results and prints a table of all runs in the file.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from consistency import put
from torch import Tensor, nn

import equivariant_transformers as et
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.geometry.frame import pixel_centres
from equivariant_transformers.models.resnet import resnet10
from equivariant_transformers.nn import Augmentation

SMALL, WHOLE = math.radians(15), math.pi
ROWS = ("none 15", "layer 15", "frozen", "none 180", "layer 180")
TITLES = {
    "none 15": "no layers, trained within 15 degrees",
    "layer 15": "rotation layer, trained within 15 degrees",
    "frozen": "the first row behind a layer trained without labels",
    "none 180": "no layers, trained at any angle",
    "layer 180": "rotation layer, trained at any angle",
}
BATCH, RATE, WEIGHT_DECAY, DROPOUT = 128, 3e-3, 0.05, 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", choices=("cifar10", "svhn"))
    parser.add_argument("--root", type=Path, help="folder of the files of the data set")
    parser.add_argument("--examples", type=int, default=10_000, help="number of training images")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--test", type=int, help="number of test images; all by default")
    parser.add_argument("--out", type=Path, help="file of the runs; results/photographs_DATASET.json by default")
    parser.add_argument("--docs", type=Path, help="put the table into this page")
    given = parser.parse_args()
    out = given.out or Path(f"results/photographs_{given.dataset}.json")
    options = {"accept_other_files": True} if given.dataset == "svhn" else {}
    splits = et.data.DATASETS[given.dataset].load(given.examples, root=given.root, **options)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, test = splits.train.to(device), splits.test.to(device)
    test = test.take(torch.arange(min(len(test), given.test or len(test))))
    runs = json.loads(out.read_text())["runs"] if out.exists() else []
    for seed in given.seeds:
        finished: dict[str, et.Canonicalized] = {}
        for row in given.rows:
            begun = time.monotonic()
            finished[row] = network = make(row, finished, seed).to(device)
            limit = SMALL if row in ("none 15", "layer 15", "frozen") else WHOLE
            fit(network, train, Augmentation({"rotation": limit, "dilation": 0.1}), given.epochs, seed, row)
            entry: dict[str, Any] = {"dataset": given.dataset, "examples": given.examples, "epochs": given.epochs}
            entry |= {"row": row, "seed": seed, **errors(network, test), "test images": len(test)}
            entry |= {"seconds": round(time.monotonic() - begun), "device": str(device), "torch": torch.__version__}
            print(json.dumps(entry), flush=True)
            same = ("dataset", "examples", "epochs", "row", "seed", "test images")
            runs = [run for run in runs if any(run[name] != entry[name] for name in same)] + [entry]
            with atomic_write(out) as file:
                file.write((json.dumps({"runs": runs}, indent=1) + "\n").encode())
    print(table(runs))
    if given.docs:
        put(given.docs, f"photographs-{given.dataset}", table(runs))


def make(row: str, finished: dict[str, et.Canonicalized], seed: int) -> et.Canonicalized:
    """Return the untrained network of a row. The row `frozen` takes over the finished backbone of the first row."""
    torch.manual_seed(seed)
    layers = [] if row.startswith("none") else ["rotation"]
    if row != "frozen":
        return et.Canonicalized(resnet10(dropout=DROPOUT), et.Canonicalizer(layers, in_channels=3))
    backbone = finished["none 15"].backbone
    return et.Canonicalized(backbone.requires_grad_(False), et.Canonicalizer(layers, in_channels=3))


def fit(
    network: et.Canonicalized, train: et.data.ImageSet, augmentation: Augmentation, epochs: int, seed: int, row: str
) -> None:
    """Train `network` with AdamW and one cycle of the learning rate."""
    labelled = row != "frozen"
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    steps = len(train) // BATCH
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps, pct_start=0.2)
    torch.manual_seed(seed)
    for epoch in range(epochs):
        network.train()
        total = 0.0
        for indices in torch.randperm(len(train), device=train.labels.device)[: steps * BATCH].split(BATCH):
            images, labels = train.normalise(train.images[indices]), train.labels[indices]
            if train.name == "cifar10":  # digits have no mirror images
                images = torch.where(
                    torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, images.flip(-1), images
                )
            out = network.canonicalizer(images, augmentation.random(images))
            loss = et.alignment_loss(out)
            if labelled:
                loss = loss + F.cross_entropy(network.read(out), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"{row}: epoch {epoch + 1} of {epochs}, loss {total / steps:.3f}", flush=True)


@torch.no_grad()
def errors(network: nn.Module, test: et.data.ImageSet) -> dict[str, float]:
    """Return the errors in per cent on upright and on turned test images."""
    network.eval()
    theta = (2 * torch.rand(len(test), generator=torch.Generator().manual_seed(0)) - 1) * math.pi
    wrong = {"upright": 0, "turned": 0}
    for indices in torch.arange(len(test)).split(500):
        images = test.normalise(test.images[indices])
        matrices = et.group("rotation").matrix(theta[indices].to(images.device))
        turned = et.Warp.projective(matrices).image(images, mode="bicubic", padding="border")
        for name, shown in (("upright", images), ("turned", in_circle(turned))):
            wrong[name] += int((network(shown).argmax(1) != test.labels[indices]).sum())
    return {name: 100 * count / len(test) for name, count in wrong.items()}


def in_circle(images: Tensor) -> Tensor:
    """Return `images` with the pixels outside the largest circle in the frame replaced by the mean of each image."""
    x, y = pixel_centres((images.shape[-2], images.shape[-1]), images.dtype, images.device)
    return torch.where(x.square() + y.square() <= 1, images, images.mean((2, 3), keepdim=True))


def table(runs: list[dict[str, Any]]) -> str:
    """Return a Markdown table of the mean errors, with standard deviations where there are several seeds."""
    lines = [
        "| data, training images, epochs | network | upright | turned | ratio | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for dataset, examples, epochs in sorted({(run["dataset"], run["examples"], run["epochs"]) for run in runs}):
        for row in ROWS:
            same = {"dataset": dataset, "examples": examples, "epochs": epochs, "row": row}
            chosen = [run for run in runs if same.items() <= run.items()]
            if chosen:
                upright, turned = ([run[name] for run in chosen] for name in ("upright", "turned"))
                cells = (f"{dataset}, {examples:,}, {epochs}", TITLES[row], spread(upright), spread(turned))
                lines.append(f"| {' | '.join(cells)} | {mean(turned) / mean(upright):.2f} | {len(chosen)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
