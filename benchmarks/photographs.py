"""Compare networks with and without layers on photographs: upright, turned by any angle, under strong homographies.

    OMP_NUM_THREADS=1 python benchmarks/photographs.py cifar10 [--examples 10000] [--epochs 12] [--seeds 0 1 2]
    OMP_NUM_THREADS=1 python benchmarks/photographs.py svhn --root FOLDER
    OMP_NUM_THREADS=1 python benchmarks/photographs.py FOLDER [--size 32]

FOLDER has one subfolder of upright pictures per class. Each network is a ResNet, trained with the same augmentation and
number of epochs with and without layers. The rows:

- trained within 15 degrees of upright: no layers; a rotation layer, trained with the alignment loss beside the class
  loss;
- a layer trained without labels, in front of the finished network without layers, whose weights do not change; and the
  pretrained layer `upright` in front of the same network;
- trained at any angle: no layers; a rotation layer;
- trained under strong homographies (rotations within 45 degrees, shears, scales and perspectives): no layers; layers
  for rotation and shear.

Test images are sampled once from the original by cubic convolution. In a turned image, pixels outside the largest
circle in the frame are replaced by the mean of the image, so that corners tell nothing. The script adds its runs to a
file of results and prints a table of all runs in the file.
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
from equivariant_transformers.models.resnet import resnet10, resnet18
from equivariant_transformers.nn import Augmentation

NETWORKS = {"resnet10": resnet10, "resnet18": resnet18}
STRONG = {"rotation": math.pi / 4, "x_shear": 0.4, "dilation": 0.2, "x_perspective": 0.3, "y_perspective": 0.3}
AUGMENT = {
    "15": {"rotation": math.radians(15), "dilation": 0.1},
    "180": {"rotation": math.pi, "dilation": 0.1},
    "strong": STRONG,
}
TITLES = {
    "none 15": "no layers, trained within 15 degrees",
    "layer 15": "rotation layer, trained within 15 degrees",
    "frozen 15": "the first row behind a layer trained without labels",
    "upright 15": "the first row behind the pretrained layer upright",
    "none 180": "no layers, trained at any angle",
    "layer 180": "rotation layer, trained at any angle",
    "none strong": "no layers, trained under strong homographies",
    "layer strong": "rotation and shear layers, trained under strong homographies",
}
ROWS = tuple(TITLES)
TESTS = ("upright", "turned", "strong")
BATCH, RATE, WEIGHT_DECAY, DROPOUT = 128, 3e-3, 0.05, 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="cifar10, svhn, or a folder with one subfolder of pictures per class")
    parser.add_argument("--root", type=Path, help="folder of the files of SVHN")
    parser.add_argument(
        "--size", type=int, default=32, help="side in pixels to which the pictures of a folder are fitted"
    )
    parser.add_argument("--examples", type=int, default=10_000, help="largest number of training images")
    parser.add_argument("--network", choices=NETWORKS, default="resnet10")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--test", type=int, help="largest number of test images; all by default")
    parser.add_argument("--out", type=Path, help="file of the runs; results/photographs_DATASET.json by default")
    parser.add_argument("--docs", type=Path, help="put the table into this page")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    splits = load(given)
    train, test = (part.to(device) for part in (splits.train, splits.test))
    test = test.take(torch.arange(min(len(test), given.test or len(test))))
    name = given.dataset if given.dataset in et.data.DATASETS else train.name
    out = given.out or Path(f"results/photographs_{name}.json")
    runs = json.loads(out.read_text())["runs"] if out.exists() else []
    for seed in given.seeds:
        finished: dict[str, et.Canonicalized] = {}
        for row in given.rows:
            begun = time.monotonic()
            finished[row] = network = make(row, finished, seed, given.network, len(train.classes)).to(device)
            if not row.startswith("upright"):
                fit(network, train, Augmentation(AUGMENT[row.split()[1]]), given.epochs, seed, row)
            entry: dict[str, Any] = {"dataset": name, "examples": len(train), "network": given.network}
            entry |= {"epochs": given.epochs, "row": row, "seed": seed, "test images": len(test)}
            runs = [run for run in runs if any(run[field] != value for field, value in entry.items())]
            entry |= {**errors(network, test), "seconds": round(time.monotonic() - begun)}
            runs.append(entry | {"device": str(device), "torch": torch.__version__})
            print(json.dumps(runs[-1]), flush=True)
            with atomic_write(out) as file:
                file.write((json.dumps({"runs": runs}, indent=1) + "\n").encode())
    print(table(runs))
    if given.docs:
        put(given.docs, f"photographs-{name}", table(runs))


def load(given: argparse.Namespace) -> et.data.Splits:
    """Return the data set of the command line."""
    if given.dataset not in et.data.DATASETS:
        splits = et.data.from_folder(given.dataset, size=given.size, channels=3)
        return splits._replace(train=splits.train.take(torch.arange(min(len(splits.train), given.examples))))
    options = {"accept_other_files": True} if given.dataset == "svhn" else {}
    return et.data.DATASETS[given.dataset].load(given.examples, root=given.root, **options)


def make(
    row: str, finished: dict[str, et.Canonicalized], seed: int, network: str = "resnet10", classes: int = 10
) -> et.Canonicalized:
    """Return the network of a row before training. Rows `frozen` and `upright` take over the backbone of the first."""
    torch.manual_seed(seed)
    kind, training = row.split()
    layers = [] if kind == "none" else ["rotation", "x_shear"] if training == "strong" else ["rotation"]
    if kind in ("frozen", "upright"):
        backbone = finished["none 15"].backbone.requires_grad_(False)
    else:
        backbone = NETWORKS[network](classes=classes, dropout=DROPOUT)
    canonicalizer = et.pretrained("upright") if kind == "upright" else et.Canonicalizer(layers, in_channels=3)
    return et.Canonicalized(backbone, canonicalizer)


def fit(
    network: et.Canonicalized, train: et.data.ImageSet, augmentation: Augmentation, epochs: int, seed: int, row: str
) -> None:
    """Train `network` with AdamW and one cycle of the learning rate."""
    labelled = not row.startswith("frozen")
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
    """Return the errors in per cent on upright and turned test images, and under strong homographies."""
    network.eval()
    theta = (2 * torch.rand(len(test), generator=torch.Generator().manual_seed(0)) - 1) * math.pi
    with torch.random.fork_rng():
        torch.manual_seed(0)
        strong = Augmentation(STRONG).random(test.images[:, :1, :1, :1].cpu()).matrix
    wrong = dict.fromkeys(TESTS, 0)
    for indices in torch.arange(len(test)).split(500):
        images = test.normalise(test.images[indices])
        turns = et.group("rotation").matrix(theta[indices])
        turned, bent = (
            et.Warp.projective(matrices.to(images.device)).image(images, mode="bicubic", padding="border")
            for matrices in (turns, strong[indices])
        )
        for name, shown in zip(TESTS, (images, in_circle(turned), bent), strict=True):
            wrong[name] += int((network(shown).argmax(1) != test.labels[indices]).sum())
    return {name: 100 * count / len(test) for name, count in wrong.items()}


def in_circle(images: Tensor) -> Tensor:
    """Return `images` with the pixels outside the largest circle in the frame replaced by the mean of each image."""
    x, y = pixel_centres((images.shape[-2], images.shape[-1]), images.dtype, images.device)
    return torch.where(x.square() + y.square() <= 1, images, images.mean((2, 3), keepdim=True))


def table(runs: list[dict[str, Any]]) -> str:
    """Return a Markdown table of the mean errors, with standard deviations where there are several seeds."""
    lines = [
        "| data, network, training images, epochs | layers | upright | turned | ratio | strong | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    same = ("dataset", "examples", "network", "epochs")
    for setting in sorted({tuple(run[name] for name in same) for run in runs}):
        dataset, examples, network, epochs = setting
        for row in ROWS:
            chosen = [run for run in runs if run["row"] == row and tuple(run[name] for name in same) == setting]
            if chosen:
                upright, turned, strong = ([run[name] for run in chosen if name in run] for name in TESTS)
                cells = (f"{dataset}, {network}, {examples:,}, {epochs}", TITLES[row], spread(upright), spread(turned))
                cells += (f"{mean(turned) / mean(upright):.2f}", spread(strong), str(len(chosen)))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Return the mean, with the standard deviation of several values; a dash if there are none."""
    if not values:
        return "-"
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
