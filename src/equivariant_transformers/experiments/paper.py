"""Tables and figures of the paper as cells: the runs of each cell, and the paper's value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from equivariant_transformers.experiments.results import Record
from equivariant_transformers.training import Config

Metric = Literal["test error", "test accuracy", "validation error"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One entry of a table: runs that differ only in their seed."""

    row: str
    column: str
    config: Config
    paper: float | None = None
    """Published value, in per cent; None if there is none."""
    source: str = "paper"
    """Name of the publication of the value."""
    priority: tuple[int, int] = (0, 0)
    """(tier, place). All seeds of a tier run before the next tier; within a seed, lower places run first."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table, or the data of a figure."""

    title: str
    cells: tuple[Cell, ...]
    metric: Metric = "test error"
    seeds: int = 3
    """Number of runs per cell."""
    together: int = 3
    """Number of runs that share a GPU."""
    costs: bool = False
    """True to show the number of parameters and the training time of each row."""

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows, in order."""
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(dict.fromkeys(cell.column for cell in self.cells))

    def value(self, record: Record) -> float:
        """Return the metric of a run, in per cent."""
        if self.metric == "validation error":
            return record.validation_error
        return 100 - record.test_error if self.metric == "test accuracy" else record.test_error

    def configs(self, *, seeds: int | None = None, only: Sequence[str] = (), fast: bool = False) -> list[Config]:
        """Return the runs, most informative first. `only` selects rows and columns; `fast` sets bfloat16, compile."""
        if unknown := set(only) - {*self.rows, *self.columns}:
            rows, columns = (", ".join(map(repr, names)) for names in (self.rows, self.columns))
            missing = ", ".join(map(repr, sorted(unknown)))
            raise ValueError(f"there is no row or column {missing}; the rows are {rows}, the columns {columns}")
        wanted = [set(only) & set(names) or set(names) for names in (self.rows, self.columns)]
        chosen = [cell for cell in self.cells if cell.row in wanted[0] and cell.column in wanted[1]]
        ordered = sorted(
            ((cell.priority[0], seed, cell.priority[1]), number, seed)
            for number, cell in enumerate(chosen)
            for seed in range(self.seeds if seeds is None else seeds)
        )
        machine = {"precision": "bfloat16", "compile": True} if fast else {}
        return [chosen[number].config.replace(seed=seed, **machine) for _, number, seed in ordered]


SHEAR = ("x_shear",)
SHEAR_HYPERBOLIC = (*SHEAR, "hyperbolic_rotation")
FOUR = (*SHEAR_HYPERBOLIC, "x_perspective", "y_perspective")
ST_LEARNING_RATE = 2e-4
"""Learning rate of the paper for networks with Spatial Transformers."""
_MNIST = Config(predictor="softmax", fill="black")
_LOG_POLAR = _MNIST.replace(chart="log_polar")
_SPATIAL = {"predictor": "direct", "learning_rate": ST_LEARNING_RATE}


COPIES = {"1 copy": 1, "2 copies": 2, "4 copies": 4, "8 copies": 8}
"""Number of copies of each training digit, by column."""

_TABLE1: dict[str, tuple[Config, tuple[float | None, ...], int]] = {
    # In the order of the paper: network, the paper's errors by number of copies, place in the queue.
    "Cartesian": (_MNIST, (11.91, 9.67, 7.64, 6.93), 4),
    "Log-polar": (_LOG_POLAR, (6.55, 5.05, 4.48, 3.83), 1),
    "ST-LP sh": (_LOG_POLAR.replace(layers=SHEAR, **_SPATIAL), (5.77, 4.27, 3.97, 3.47), 6),
    "ST-LP sh-hr": (_LOG_POLAR.replace(layers=SHEAR_HYPERBOLIC, **_SPATIAL), (4.92, 3.87, 3.22, 3.03), 5),
    "ST-LP sh-hr-px-py": (_LOG_POLAR.replace(layers=FOUR, **_SPATIAL), (None,) * 4, 7),
    "ET-LP sh": (_LOG_POLAR.replace(layers=SHEAR), (5.48, 4.67, 3.63, 3.21), 3),
    "ET-LP sh-hr": (_LOG_POLAR.replace(layers=SHEAR_HYPERBOLIC), (4.18, 3.17, 2.96, 2.62), 2),
    "ET-LP sh-hr-px-py": (_LOG_POLAR.replace(layers=FOUR), (3.76, 3.11, 2.80, 2.60), 0),
}


def table1() -> Iterator[Cell]:
    """Yield the cells of the paper's first table: error with 1, 2, 4 and 8 copies of each digit."""
    for row, (config, figures, place) in _TABLE1.items():
        for tier, ((column, copies), paper) in enumerate(zip(COPIES.items(), figures, strict=True)):
            yield Cell(
                row=row, column=column, config=config.replace(copies=copies), paper=paper, priority=(tier, place)
            )


_MAX_THETA = {
    "dilation": 0.2,
    "hyperbolic_rotation": 0.2,
    "x_shear": 0.5,
    "x_perspective": 0.3,
    "y_perspective": 0.3,
    "x_translation": 0.03,
    "y_translation": 0.03,
}
AUGMENTATION, HALF_AUGMENTATION = (
    ("rotation=3.1416", *(f"{group}={share * theta:g}" for group, theta in _MAX_THETA.items())) for share in (1, 0.5)
)
"""Random augmentation of the training images: a part of the ranges of the data set, and small shifts."""


def beat() -> Iterator[Cell]:
    """Yield changes to the networks of the first table, trained for at most two thirds of its epochs."""
    averaged: dict[str, object] = {"ema_decay": 0.998}
    augmented = {**averaged, "augment": AUGMENTATION}
    longer = {**augmented, "ema_decay": 0.99975}  # with 8 copies, averages as many epochs as 0.998 with 1 copy
    decayed = {**longer, "weight_decay": 1e-4}
    long = {**decayed, "epochs": 200, "lr_decay": 0.985}
    twice = {"iterations": 2, "weight_decay": 5e-4}
    last = {"keep": "last"}
    tta = {**last, "tta": 8}
    ours: dict[str, object] = {"predictor": "consistent", "pose_noise": 0.015}
    lighter = {**ours, **averaged, "dropout": 0.25}  # projective-mnist-plain has these
    both, one, eight = ("1 copy", "8 copies"), ("1 copy",), ("8 copies",)
    longest = {
        "200 epochs, longer EMA, augmentation, weight decay": (long, eight),
        "200 epochs, longer EMA, augmentation, weight decay, last epoch": ({**long, **last}, eight),
        "200 epochs, longer EMA, augmentation, weight decay, last epoch, 8-fold TTA": ({**long, **tta}, eight),
    }
    with_augmentation = {
        "EMA, augmentation": (augmented, both),
        "EMA, augmentation, last epoch": ({**augmented, **last}, one),
        "EMA, augmentation, last epoch, 8-fold TTA": ({**augmented, **tta}, one),
        **longest,
    }
    changes: dict[str, dict[str, tuple[dict[str, object], tuple[str, ...]]]] = {
        "ET-LP sh-hr-px-py": {
            "fewer epochs": ({}, one),
            "EMA": (averaged, one),
            "EMA, dropout 0.25": ({**averaged, "dropout": 0.25}, one),
            **with_augmentation,
            "EMA, augmentation, dropout 0.25": ({**augmented, "dropout": 0.25}, one),
            "EMA, augmentation, dropout 0.35": ({**augmented, "dropout": 0.35}, one),
            "EMA, augmentation, dropout 0.40": ({**augmented, "dropout": 0.4}, one),
            "EMA, augmentation, weight decay": ({**augmented, "weight_decay": 1e-4}, one),
            "EMA, augmentation, px-py-sh-hr": ({**augmented, "layers": (*FOUR[2:], *FOUR[:2])}, one),
            "EMA, augmentation, pose noise": ({**augmented, "pose_noise": 0.015}, one),
            "EMA, augmentation, two iterations": ({**augmented, "iterations": 2}, one),
            "EMA, augmentation, two iterations, weight decay 0.0005": ({**augmented, **twice}, one),
            "longer EMA, rotation augmentation": ({**longer, "augment": AUGMENTATION[:1]}, eight),
            "longer EMA, half the augmentation": ({**longer, "augment": HALF_AUGMENTATION}, eight),
            "longer EMA, augmentation": (longer, eight),
            "longer EMA, augmentation, weight decay": (decayed, eight),
            "200 epochs, longer EMA, augmentation, weight decay, pose noise": ({**long, "pose_noise": 0.015}, eight),
            "200 epochs, longer EMA, augmentation, weight decay 0.0005, two iterations": ({**long, **twice}, eight),
            "200 epochs, longer EMA, augmentation, weight decay 0.0005, two iterations, last epoch": (
                {**long, **twice, **last},
                eight,
            ),
            "consistent": ({"predictor": "consistent"}, one),
            "consistent, pose noise, EMA, dropout 0.25": (lighter, both),
            "consistent, pose noise, EMA, augmentation": ({**ours, **augmented}, one),
            "consistent, pose noise, EMA, augmentation, last epoch": ({**ours, **augmented, **last}, one),
            "consistent, pose noise, EMA, augmentation, last epoch, 8-fold TTA": ({**ours, **augmented, **tta}, one),
            "consistent, pose noise, longer EMA, augmentation": ({**ours, **longer}, eight),
            **{
                f"consistent, pose noise, {name}": ({**ours, **change}, columns)
                for name, (change, columns) in longest.items()
            },
        },
        "ET-LP sh-hr": with_augmentation,
        "ET-LP sh": with_augmentation,
        "Log-polar": with_augmentation,
        "Cartesian": {**with_augmentation, "EMA, dropout 0.25": (lighter, both)},
    }
    for row, rows in changes.items():
        network, errors, place = _TABLE1[row]
        figures = dict(zip(COPIES, errors, strict=True))
        for name, (change, columns) in rows.items():
            for column in columns:
                epochs = {"1 copy": 200, "8 copies": 60}[column]
                lr_decay = 0.985 ** (200 / epochs)  # ends at the same learning rate as 300 epochs of 0.99
                yield Cell(
                    row=f"{row}: {name}",
                    column=column,
                    config=network.replace(copies=COPIES[column], epochs=epochs, lr_decay=lr_decay).replace(**change),
                    paper=figures[column],
                    priority=(both.index(column), place),
                )


def predictors() -> Iterator[Cell]:
    """Yield the paper's predictor and the library's in the same network, with the same data and epochs."""
    base = _LOG_POLAR.replace(layers=FOUR, epochs=80, lr_decay=0.963, ema_decay=0.998)  # ends at the same learning rate
    changes: dict[str, dict[str, object]] = {
        "softmax": {},
        "softmax, pose noise": {"pose_noise": 0.015},
        "consistent": {},
        "consistent, pose noise": {"pose_noise": 0.015},
        "consistent, pose noise, dropout 0.40": {"pose_noise": 0.015, "dropout": 0.4},
    }
    for row, change in changes.items():
        config = base.replace(predictor=row.split(",")[0], **change)
        yield Cell(row=row, column="1 copy, 80 epochs", config=config, priority=(0 if "dropout" not in row else 1, 0))


LEARNING_RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 4e-3)


def learning_rates() -> Iterator[Cell]:
    """Yield the runs on sensitivity to the learning rate; the paper has a plot and no numbers."""
    # A tenth of the paper's epochs, because there are 120 runs. They end at the same learning rate.
    two = _LOG_POLAR.replace(layers=SHEAR_HYPERBOLIC, epochs=30, lr_decay=0.904)
    for row, config in {"ET": two, "ST": two.replace(predictor="direct")}.items():
        for rate in LEARNING_RATES:
            yield Cell(row=row, column=f"{rate:g}", config=config.replace(learning_rate=rate))


def affnist() -> Iterator[Cell]:
    """Yield networks trained on shifted or on centred digits and tested under affine transformations."""
    # The paper does not state the number of epochs; these end at the learning rate of its other experiments.
    cnn = _MNIST.replace(network="affnist", epochs=10, lr_decay=0.735)
    ours = cnn.replace(predictor="consistent", ema_decay=0.998, chart="log_polar")
    affine = ours.replace(layers=("cartesian", "x_shear", "hyperbolic_rotation"))  # with log-polar: the affine group
    long: dict[str, object] = {"epochs": 30, "lr_decay": 0.735 ** (1 / 3)}
    rows = {
        "CNN": (cnn, 88.3),
        "Log-polar": (cnn.replace(chart="log_polar"), 76.6),
        "ET-LP translation": (cnn.replace(layers=("cartesian",), chart="log_polar"), 98.1),
        "ET-LP translation, x-shear": (cnn.replace(layers=("cartesian", "x_shear"), chart="log_polar"), 98.3),
        "ET-Cartesian translation, rotation/scale": (cnn.replace(layers=("cartesian", "log_polar")), 98.2),
        "ET-LP translation, x-shear: consistent": (ours.replace(layers=("cartesian", "x_shear")), None),
        "ET-LP translation, x-shear, hyperbolic rotation: consistent": (affine, None),
        "the same, 30 epochs": (affine.replace(**long), None),
        "the same, 30 epochs, pose noise": (affine.replace(pose_noise=0.015, **long), None),
        "the same, 30 epochs, a quarter of the channels": (affine.replace(network="affnist-small", **long), None),
        "the same, 30 epochs, a quarter of the channels, pose noise": (
            affine.replace(network="affnist-small", pose_noise=0.015, **long),
            None,
        ),
        "Capsule network": (cnn.replace(network="capsule", learning_rate=2e-4), 79.0),
    }
    for row, (config, paper) in rows.items():
        yield Cell(row=row, column="moved digits", config=config.replace(dataset="affnist"), paper=paper)
        centred = config.replace(dataset="affnist-centred")
        yield Cell(row=row, column="centred digits", config=centred, priority=(1, 0))


def svhn() -> Iterator[Cell]:
    """Yield three residual networks on SVHN: alone, with Spatial Transformers and with equivariant layers."""
    layers = ("cartesian", "log_polar", "x_scale")
    base = Config(dataset="svhn", predictor="softmax")
    kinds = {
        "none": base,
        "spatial": base.replace(layers=layers, **_SPATIAL),
        "equivariant": base.replace(layers=layers),
    }
    sizes: dict[str, dict[str, object]] = {
        "10k": {"examples": 10_000},
        "20k": {"examples": 20_000},
        "68k": {},
        "600k": {"dataset": "svhn-extra", "epochs": 150},
    }
    figures = {
        "ResNet-10": ((9.83, 7.90, 5.35, 2.96), (9.80, 7.66, 4.96, 2.92), (8.24, 6.71, 4.84, 2.70)),
        "ResNet-18": ((9.23, 7.31, 4.81, 2.76), (9.10, 7.17, 4.51, 2.70), (7.81, 6.37, 4.50, 2.57)),
        "ResNet-34": ((8.73, 7.05, 4.67, 2.53), (8.60, 6.91, 4.37, 2.66), (7.72, 5.98, 4.23, 2.47)),
    }
    for network, table in figures.items():
        for (kind, config), row in zip(kinds.items(), table, strict=True):
            for place, ((column, size), paper) in enumerate(zip(sizes.items(), row, strict=True)):
                tier = place if network == "ResNet-10" and place < 2 else place + 2  # the cheapest runs go first
                named = config.replace(network=network.lower().replace("-", ""), **size)
                yield Cell(row=f"{network}, {kind}", column=column, config=named, paper=paper, priority=(tier, 0))


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(title="Projective MNIST", cells=tuple(table1())),
    "beat": Experiment(title="Projective MNIST, one change at a time", cells=tuple(beat())),
    "predictors": Experiment(title="Projective MNIST, the two predictors", cells=tuple(predictors())),
    "learning-rates": Experiment(
        title="Sensitivity to the learning rate",
        cells=tuple(learning_rates()),
        metric="validation error",
        seeds=10,
        together=10,
    ),
    "affnist": Experiment(title="affNIST", cells=tuple(affnist()), metric="test accuracy", together=1),
    "svhn": Experiment(title="SVHN", cells=tuple(svhn())),
}
"""Tables of the paper, by name."""
