"""Train a small Equivariant Transformer network beside a plain CNN and draw what its layers do, in minutes on a CPU.

python examples/quickstart.py [--out out] [--examples 5000] [--epochs 4] [--seed 0]
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

NETWORKS = {  # the same classifier twice: on the image, and behind two layers in log-polar coordinates
    "plain CNN": {},
    "ET network": {"layers": ("x_shear", "hyperbolic_rotation"), "predictor": "softmax", "chart": "log_polar"},
}
EXAMPLES, EPOCHS = 5000, 4
SHOWN, COPIES = (0, 4, 11), 3  # test digits in the picture, and copies of each

Tell = Callable[[str, float], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="training images, up to 10,000")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of training")
    parser.add_argument("--seed", type=int, default=0, help="random seed for the weights and the order of the images")
    given = parser.parse_args()

    with progress() as tell:
        splits, shown = load(given.examples, tell)
    with progress() as tell:
        trained = {name: train(name, splits, given.epochs, given.seed, tell) for name in NETWORKS}

    print(f"\nWrong on {len(splits.test)} test digits, after {given.epochs} epochs with {given.examples} examples:")
    for name, (_, error) in trained.items():
        print(f"  {name:10} {error:5.1f} %")

    network, _ = trained["ET network"]
    given.out.mkdir(parents=True, exist_ok=True)
    picture = given.out / "quickstart.png"
    viz.layers(network.eval(), shown.normalise(shown.images), copies=COPIES).savefig(picture, dpi=120)
    print(f"\nWhat the layers did to {len(SHOWN)} digits, each in {COPIES} poses: {picture}")
    print("Try next:")
    print("  make demo                            distort digits with sliders, and watch a trained network's layers")
    print("  make pictures                        the coordinates that make this work")
    print("  python examples/quickstart.py --examples 10000 --epochs 30   more data and time, lower errors")
    print("  README.md, 'Use it in five lines'    the layers in front of your own network")


def load(examples: int, tell: Tell | None = None) -> tuple[data.Splits, data.ImageSet]:
    """Return digits under random rotation, scale, aspect ratio, shear and perspective, and the digits to draw."""
    full = data.projective_mnist(examples=examples, test_copies=COPIES, progress=tell)
    apart = len(full.test) // COPIES  # distance between two copies of a digit
    shown = full.test.take(torch.tensor([digit + copy * apart for digit in SHOWN for copy in range(COPIES)]))
    return data.Splits(full.train, first(250, full.validation), first(2000, full.test)), shown


def first(count: int, images: data.ImageSet) -> data.ImageSet:
    return images.take(torch.arange(min(count, len(images))))


def train(
    name: str, splits: data.Splits, epochs: int, seed: int, tell: Tell = lambda *_: None
) -> tuple[torch.nn.Module, float]:
    """Train one of `NETWORKS`; return it with its test error in per cent.

    Small batches, a falling learning rate and averaged weights make a short training depend little on the seed.
    """
    config = training.Config(
        epochs=epochs,
        batch_size=min(16, len(splits.train)),
        lr_decay=0.125 ** (1 / max(1, epochs)),  # to an eighth over all epochs
        dropout=0.0,
        ema_decay=0.99,
        keep="last",
        seed=seed,
        **NETWORKS[name],
    )
    job = make_job(config, splits, name=name)
    (result,) = training.train(
        [job], report=lambda at: tell(f"training the {name}", (at.epoch + at.step / at.steps) / at.epochs)
    )
    return job.module, result.test_error


@contextmanager
def progress() -> Iterator[Tell]:
    """Yield a function of a task and its finished share that draws bars on a terminal and prints lines elsewhere."""
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
