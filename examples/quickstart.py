"""Train a small Equivariant Transformer network beside a plain CNN and draw what its layers do, in minutes on a CPU.

python examples/quickstart.py [--out out] [--examples 1500] [--epochs 7] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.progress import Progress

from equivariant_transformers import data, training, viz
from equivariant_transformers.training.job import make_job

NETWORKS = {
    "plain CNN": {},
    "ET network": {"layers": ("x_shear", "hyperbolic_rotation"), "chart": "log_polar"},
}
SHOWN, VERSIONS = (0, 4, 11), 3  # the test digits in the picture, and how many versions of each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the picture goes")
    parser.add_argument("--examples", type=int, default=1500, help="training images")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    # Digits under random rotation, scale, aspect ratio, shear and perspective. Choices are made on validation images.
    with progress() as tell:
        full = data.projective_mnist(examples=given.examples, test_copies=VERSIONS, progress=tell)
    splits = data.Splits(full.train, first(500, full.validation), first(2000, full.test))

    # The same classifier twice. One sees the image; the other sees it with the poses that two layers read removed, in
    # coordinates in which rotation and scale are shifts.
    jobs = []
    for name, network in NETWORKS.items():
        config = training.Config(
            epochs=given.epochs, batch_size=min(32, given.examples), lr_decay=0.75, seed=given.seed, **network
        )
        jobs.append(make_job(config, splits, name=name))
    with progress() as tell:

        def report(at: training.Progress) -> None:
            tell(f"training the {at.name}", (at.epoch + at.step / at.steps) / at.epochs)

        results = training.train(jobs, report=report)

    print(f"\nWrong on {len(splits.test)} test digits, after {given.epochs} epochs with {given.examples} examples:")
    for job, result in zip(jobs, results, strict=True):
        print(f"  {job.name:10} {result.test_error:5.1f} %")

    apart = len(full.test) // VERSIONS  # from a version of a digit to the next
    digits = full.test.take(torch.tensor([digit + copy * apart for digit in SHOWN for copy in range(VERSIONS)]))
    given.out.mkdir(parents=True, exist_ok=True)
    picture = given.out / "quickstart.png"
    viz.layers(jobs[1].module.eval(), digits.normalise(digits.images), copies=VERSIONS).savefig(picture, dpi=120)
    print(f"\nWhat the layers did to {len(SHOWN)} digits, each in {VERSIONS} poses: {picture}")
    print("Try next:")
    print("  make demo                            distort digits with sliders, and watch a trained network's layers")
    print("  make pictures                        the coordinates that make this work")
    print("  python examples/quickstart.py --examples 10000 --epochs 30   more data and time, lower errors")
    print("  README.md, 'Use it in five lines'    the layers in front of your own network")


def first(count: int, images: data.ImageSet) -> data.ImageSet:
    return images.take(torch.arange(min(count, len(images))))


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """A function that is told what is done and which share of it: bars on a terminal, a few lines elsewhere."""
    if not sys.stdout.isatty():
        said = set()

        def say(what: str, share: float) -> None:
            quarters = int(4 * share)
            if (what, quarters) not in said:
                said.add((what, quarters))
                print(f"{what}: {quarters / 4:.0%}", flush=True)

        yield say
        return
    with Progress() as bars:
        tasks = {}

        def draw(what: str, share: float) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=1.0)
            bars.update(tasks[what], completed=share)

        yield draw


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, training.Stopped):
        sys.exit("stopped")
