"""Compare networks with and without layers on photographs: upright, turned by any angle, under strong homographies.

    python benchmarks/photographs.py cifar10 [--examples 10000] [--epochs 30] [--seeds 0 1 2] [--fast]
    python benchmarks/photographs.py svhn --root FOLDER
    python benchmarks/photographs.py FOLDER [--size 32]

FOLDER has one subfolder of upright pictures per class. Each network is a ResNet, trained with the same augmentation and
number of epochs with and without layers, as `et train` does it. On a GPU, the seeds of a row are trained side by side.
The rows:

- trained within 15 degrees of upright: no layers; a rotation layer, trained with the alignment loss beside the class
  loss;
- a layer trained without labels, in front of the finished network without layers, whose weights do not change; and the
  pretrained layer `upright` in front of the same network, calibrated on validation images;
- trained at any angle: no layers; a rotation layer;
- trained under strong homographies (rotations within 45 degrees, shears, scales and perspectives): no layers; layers
  for rotation and shear.

Test images are sampled once from the original by cubic convolution. In a turned image, pixels outside the largest
circle in the frame are replaced by the mean of the image, so that corners tell nothing. The column "angle known" is the
error of the network behind the layers on turned images that were turned back by their true angles: the least that a
layer can reach. Two columns repeat upright and turned images with `et.SeveralPoses`. The script adds its runs to a file
of results and prints a table of all runs in the file.
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
from consistency import put
from torch import Tensor

import equivariant_transformers as et
from equivariant_transformers.data import Splits
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.geometry.frame import pixel_centres
from equivariant_transformers.nn import Augmentation
from equivariant_transformers.training import Config, train
from equivariant_transformers.training.aligning import NO_NETWORK, make_alignment_job
from equivariant_transformers.training.job import make_job

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
POSES = 3
TESTS = ("upright", "turned", "strong", "known", "upright, several", "turned, several")
COLUMNS = {
    "known": "angle known",
    "upright, several": f"upright, {POSES} poses",
    "turned, several": f"turned, {POSES} poses",
}
FINAL_RATE = 0.02  # of the first learning rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="cifar10, svhn, or a folder with one subfolder of pictures per class")
    parser.add_argument("--root", type=Path, help="folder of the files of SVHN")
    parser.add_argument(
        "--size", type=int, default=32, help="side in pixels to which the pictures of a folder are fitted"
    )
    parser.add_argument("--examples", type=int, default=10_000, help="largest number of training images")
    parser.add_argument("--network", choices=("resnet10", "resnet18"), default="resnet10")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--test", type=int, help="largest number of test images; all by default")
    parser.add_argument("--out", type=Path, help="file of the runs; results/photographs_DATASET.json by default")
    parser.add_argument("--docs", type=Path, help="put the table into this page")
    parser.add_argument("--fast", action="store_true", help="compile the networks, and train them in bfloat16")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    splits = Splits(*(part.to(device) for part in load(given)))
    test = splits.test.take(torch.arange(min(len(splits.test), given.test or len(splits.test)), device=device))
    name = given.dataset if given.dataset in et.data.DATASETS else test.name
    out = given.out or Path(f"results/photographs_{name}.json")
    finished: dict[str, list[et.Canonicalized]] = {}
    for row in given.rows:
        begun = time.monotonic()
        finished[row] = networks = [network.to(device) for network in trained(row, given, splits, finished)]
        seconds = round((time.monotonic() - begun) / len(networks))
        runs = json.loads(out.read_text())["runs"] if out.exists() else []
        for seed, network in zip(given.seeds, networks, strict=True):
            entry: dict[str, Any] = {"dataset": name, "examples": len(splits.train), "network": given.network}
            entry |= {"epochs": given.epochs, "row": row, "seed": seed, "test images": len(test)}
            runs = [run for run in runs if any(run[field] != value for field, value in entry.items())]
            entry |= {**errors(network, test), "seconds": seconds, "fast": given.fast}
            runs.append(entry | {"device": str(device), "torch": torch.__version__})
            print(json.dumps(runs[-1]), flush=True)
        with atomic_write(out) as file:
            file.write((json.dumps({"runs": runs}, indent=1) + "\n").encode())
    print(table(runs))
    if given.docs:
        put(given.docs, f"photographs-{name}", table(runs))


def load(given: argparse.Namespace) -> Splits:
    """Return the data set of the command line."""
    if given.dataset not in et.data.DATASETS:
        splits = et.data.from_folder(given.dataset, size=given.size, channels=3)
        return splits._replace(train=splits.train.take(torch.arange(min(len(splits.train), given.examples))))
    options = {"accept_other_files": True} if given.dataset == "svhn" else {}
    return et.data.DATASETS[given.dataset].load(given.examples, root=given.root, **options)


def trained(
    row: str, given: argparse.Namespace, splits: Splits, finished: dict[str, list[et.Canonicalized]]
) -> list[et.Canonicalized]:
    """Return the networks of a row, one per seed. Rows `frozen` and `upright` take over the backbones of the first."""
    kind = row.split()[0]
    if kind == "upright":
        upright, images = (
            et.pretrained("upright"),
            splits.validation.take(torch.arange(min(1000, len(splits.validation)))),
        )
        et.calibrate(upright.to(splits.train.labels.device), images.normalise(images.images))
        return [et.Canonicalized(first.backbone, upright) for first in finished["none 15"]]
    make = make_alignment_job if kind == "frozen" else make_job
    jobs = [make(config(row, given, seed), splits) for seed in given.seeds]
    train(
        jobs,
        report=lambda now: print(f"{row}: epoch {now.epoch} of {now.epochs}", flush=True) if not now.step else None,
    )
    modules = [job.module for job in jobs]
    if kind == "frozen":
        return [
            et.Canonicalized(first.backbone, module.canonicalizer)
            for first, module in zip(finished["none 15"], modules, strict=True)
        ]
    return modules


def config(row: str, given: argparse.Namespace, seed: int) -> Config:
    """Return the config of a row, which differs from that of the row without layers in the layers alone."""
    kind, training = row.split()
    layers = () if kind == "none" else ("rotation", "x_shear") if training == "strong" else ("rotation",)
    return Config(
        dataset=given.dataset,
        network=NO_NETWORK if kind == "frozen" else given.network,
        layers=layers,
        predictor="posterior",
        augment=tuple(f"{name}={limit:g}" for name, limit in AUGMENT[training].items()),
        alignment=1.0 if layers else 0.0,
        dropout=0.1,
        epochs=given.epochs,
        warmup=min(2, given.epochs - 1),
        lr_decay=FINAL_RATE ** (1 / given.epochs),
        keep="last",
        seed=seed,
        precision="bfloat16" if given.fast else "float32",
        compile=given.fast,
    )


@torch.no_grad()
def errors(network: et.Canonicalized, test: et.data.ImageSet) -> dict[str, float]:
    """Return the errors in per cent on upright and turned images, under strong homographies, and with known angles.

    For networks with layers, also those with several poses.
    """
    network.eval()
    several = et.SeveralPoses(network, POSES) if len(network.canonicalizer.layers) else None
    theta = (2 * torch.rand(len(test), generator=torch.Generator().manual_seed(0)) - 1) * math.pi
    with torch.random.fork_rng():
        torch.manual_seed(0)
        strong = Augmentation(STRONG).random(test.images[:, :1, :1, :1].cpu()).matrix
    wrong = dict.fromkeys(TESTS[: 6 if several else 4], 0)
    for indices in torch.arange(len(test)).split(500):
        images = test.normalise(test.images[indices])
        turn, bend = (
            et.Warp.projective(matrices.to(images.device))
            for matrices in (et.group("rotation").matrix(theta[indices]), strong[indices])
        )
        turned, bent = (warp.image(images, mode="bicubic", padding="border") for warp in (turn, bend))
        turned = in_circle(turned)
        outputs = [network(shown) for shown in (images, turned, bent)]
        outputs.append(network.backbone(turn.inverse().image(turned)))
        outputs += [several(shown) for shown in (images, turned)] if several else []
        for name, output in zip(wrong, outputs, strict=True):
            wrong[name] += int((output.argmax(1) != test.labels[indices]).sum())
    return {name: 100 * count / len(test) for name, count in wrong.items()}


def in_circle(images: Tensor) -> Tensor:
    """Return `images` with the pixels outside the largest circle in the frame replaced by the mean of each image."""
    x, y = pixel_centres((images.shape[-2], images.shape[-1]), images.dtype, images.device)
    return torch.where(x.square() + y.square() <= 1, images, images.mean((2, 3), keepdim=True))


def table(runs: list[dict[str, Any]]) -> str:
    """Return a Markdown table of the mean errors, with standard deviations where there are several seeds.

    Tests that no run has are left out.
    """
    tests = [name for name in TESTS if any(name in run for run in runs)]
    columns = (
        "data, network, training images, epochs",
        "layers",
        *(COLUMNS.get(name, name) for name in tests),
        "turned / upright",
        "seeds",
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    same = ("dataset", "examples", "network", "epochs")
    for setting in sorted({tuple(run[name] for name in same) for run in runs}):
        dataset, examples, network, epochs = setting
        for row in ROWS:
            chosen = [run for run in runs if run["row"] == row and tuple(run[name] for name in same) == setting]
            if chosen:
                found = {name: [run[name] for run in chosen if name in run] for name in tests}
                cells = (f"{dataset}, {network}, {examples:,}, {epochs}", TITLES[row], *map(spread, found.values()))
                cells += (f"{mean(found['turned']) / mean(found['upright']):.2f}", str(len(chosen)))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Return the mean, with the standard deviation of several values; a dash if there are none."""
    if not values:
        return "-"
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
