"""Benchmarks published since the paper, as cells: one recipe for all sets of transformed digits, and its baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from equivariant_transformers.experiments import paper
from equivariant_transformers.experiments.paper import FOUR, SHEAR_HYPERBOLIC, ST_LEARNING_RATE, Cell, Experiment
from equivariant_transformers.training import Config

IMAGES = 1_500_000
"""Images per run: the number of training images times the number of epochs."""
AFFINE = ("cartesian", *SHEAR_HYPERBOLIC)
"""Layers that with log-polar coordinates cover the affine group."""
PROJECTIVE = ("cartesian", *FOUR)
"""Layers that with log-polar coordinates cover the projective group."""
_REACH = {
    "dilation": 0.15,
    "hyperbolic_rotation": 0.15,
    "x_shear": 0.15,
    "x_perspective": 0.1,
    "y_perspective": 0.1,
    "x_translation": 0.1,
    "y_translation": 0.1,
}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Protocol of a data set, and the best published value."""

    title: str
    dataset: str
    examples: int
    """Number of training images."""
    published: float
    source: str
    """Name of the published network."""
    accuracy: bool = False
    """True if accuracies are published, False if errors are."""
    network: str = "affnist-small"
    turn: float = 0.2
    """Largest random rotation in rows with augmentation."""

    @property
    def epochs(self) -> int:
        return IMAGES // self.examples


BENCHMARKS = {
    "affnist-centred": Benchmark(
        title="affNIST, trained on centred digits",
        dataset="affnist-centred",
        examples=50_000,
        published=98.45,
        source="InvarLayer",
        accuracy=True,
    ),
    "homnist": Benchmark(
        title="homNIST", dataset="homnist", examples=50_000, published=96.0, source="LieLAC", accuracy=True
    ),
    "rotated-mnist": Benchmark(
        title="Rotated MNIST",
        dataset="rotated-mnist",
        examples=10_000,
        published=0.89,
        source="PTN-CNN-B++",
        turn=math.pi,
    ),
    "rts": Benchmark(title="MNIST-RTS", dataset="mnist-rts", examples=55_000, published=0.5, source="STN"),
    "sim2mnist": Benchmark(
        title="SIM2MNIST without clutter",
        dataset="sim2mnist",
        examples=10_000,
        published=5.03,
        source="PTN-B+",
        network="z2cnn",
        turn=math.pi,
    ),
    "rs-mnist": Benchmark(
        title="RS-MNIST",
        dataset="rs-mnist",
        examples=5_000,
        published=95.80,
        source="InvarPDEs-Net",
        accuracy=True,
        network="z2cnn",
        turn=math.pi,
    ),
    "scale-mnist": Benchmark(
        title="Scale-MNIST",
        dataset="scale-mnist",
        examples=10_000,
        published=98.30,
        source="InvarPDEs-Net",
        accuracy=True,
    ),
}
"""Benchmarks by the name of their experiment."""


def cells(benchmark: Benchmark) -> Iterator[Cell]:
    """Yield the rows of a benchmark: the recipe, one change at a time, and networks without equivariant layers.

    The runs of all benchmarks show as many images and end at the same learning rate. The weights of the last epoch are
    tested: upright validation images cannot select an epoch for transformed test images.
    """
    plain = Config(
        dataset=benchmark.dataset,
        examples=benchmark.examples,
        network=benchmark.network,
        fill="black",
        epochs=benchmark.epochs,
        lr_decay=round(0.046 ** (1 / benchmark.epochs), 5),
        ema_decay=0.998,
        keep="last",
    )
    augment = {"augment": (f"rotation={benchmark.turn:.4g}", *(f"{name}={far:g}" for name, far in _REACH.items()))}
    recipe = plain.replace(layers=PROJECTIVE, chart="log_polar", pose_noise=0.015)
    spatial = recipe.replace(predictor="direct", pose_noise=0.0, learning_rate=ST_LEARNING_RATE)
    wide = {"affnist-small": "affnist"}.get(benchmark.network)
    rows = {
        "ET-LP projective": recipe,
        "ET-LP projective, augmentation": recipe.replace(**augment),
        "no layers": plain,
        "no layers, augmentation": plain.replace(**augment),
        "ST-LP projective, augmentation": spatial.replace(**augment),
        "ET-LP affine": recipe.replace(layers=AFFINE),
        "ET-LP projective, without pose noise": recipe.replace(pose_noise=0.0),
        "ET-Cartesian projective, rotation/scale layer": recipe.replace(layers=(*PROJECTIVE, "log_polar"), chart=None),
        "ET-LP projective, augmentation, 8-fold TTA": recipe.replace(tta=8, **augment),
        **({"ET-LP projective, augmentation, wide": recipe.replace(network=wide, **augment)} if wide else {}),
    }
    column = f"{benchmark.examples:,} training images, {benchmark.epochs} epochs"
    for place, (row, config) in enumerate(rows.items()):
        yield Cell(
            row=row,
            column=column,
            config=config,
            paper=None if place else benchmark.published,  # beside the recipe
            source=benchmark.source,
            priority=(0 if place < 5 else 1, place),
        )


EXPERIMENTS: dict[str, Experiment] = paper.EXPERIMENTS | {
    name: Experiment(
        title=benchmark.title,
        cells=tuple(cells(benchmark)),
        metric="test accuracy" if benchmark.accuracy else "test error",
        costs=True,
    )
    for name, benchmark in BENCHMARKS.items()
}
"""Experiments that consist of training runs, by name: those of the paper, and the benchmarks."""
