"""Experiment of the paper's first figure: predicted against true rotation, for networks trained on the true angles."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equivariant_transformers.audit import self_consistency
from equivariant_transformers.data import Loader, Splits
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.data.rotated_mnist_set import ROTATED, by_recipe
from equivariant_transformers.experiments import results
from equivariant_transformers.nn.layers import make_layer
from equivariant_transformers.training import Stopped

NAME = "rotation"
RECIPE = replace(ROTATED, counts=(50_000, 5_000, 10_000), pooled=False)
EPOCHS = 30
LEARNING_RATE = 2e-3
DECAY = 0.9
DIGITS = 20
"""Number of test digits in the figure."""
ANGLES = 33


class Case(NamedTuple):
    """Network of the figure: title, predictor and number of training images."""

    title: str
    kind: str
    examples: int


CASES = {
    "plain-10k": Case("plain CNN, 10,000 examples", "direct", 10_000),
    "plain-50k": Case("plain CNN, 50,000 examples", "direct", 50_000),
    "softmax-10k": Case("equivariant CNN (softmax), 10,000 examples", "softmax", 10_000),
    "consistent-10k": Case("equivariant CNN (consistent), 10,000 examples", "consistent", 10_000),
}


def reproduce(
    root: Path,
    *,
    device: torch.device,
    epochs: int = EPOCHS,
    budget: float = math.inf,
    say: Callable[[str], None] = print,
    data: Callable[[], Splits] | None = None,
) -> None:
    """Train each of `CASES` that has no file in the folder `rotation` of `root`, and write its predictions.

    Raises `Stopped` after `budget` seconds. The state of the current network, minutes of training, is then lost.
    """
    deadline = time.monotonic() + budget
    load = cache(data or (lambda: by_recipe(RECIPE, device=device)))
    for name, case in CASES.items():
        path = root / NAME / f"{name}.json"
        if path.exists():
            continue
        splits = load()
        size = splits.train.images.shape[-1]
        torch.manual_seed(0)
        layer = make_layer("rotation", predictor=case.kind, size=(size, size), strides=(1, 1)).to(device)
        started = time.monotonic()
        loss = regress(layer, splits, case.examples, epochs=epochs, deadline=deadline)
        seconds = time.monotonic() - started
        say(f"{case.title}: loss {loss:.4f} after {seconds:.0f} s")
        test = splits.test.take(torch.arange(min(DIGITS, len(splits.test))))
        found = self_consistency(layer, test.normalise(test.images[:]), torch.linspace(-math.pi, math.pi, ANGLES))
        fields = {
            "title": case.title,
            "examples": case.examples,
            "epochs": epochs,
            "loss": loss,
            "slope": found.slope.item(),
            "rms": found.rms.item(),
            "median": found.median.item(),
            "true": [round(value, 5) for value in found.theta.tolist()],
            "predicted": [[round(value, 4) for value in row] for row in found.predicted[0].T.tolist()],
            "seconds": round(seconds, 1),
            "origin": splits.train.origin,
            "device": results.device_name(),
            "torch": torch.__version__.split("+")[0],
            "commit": results.commit(),
        }
        with atomic_write(path) as file:
            file.write((json.dumps(fields) + "\n").encode())


def regress(layer: nn.Module, splits: Splits, examples: int, *, epochs: int, deadline: float) -> float:
    r"""Minimise $1 - \cos(\hat\theta - \theta)$ over the first `examples`, and return its mean in the last epoch."""
    chosen = splits.train.take(torch.arange(min(examples, len(splits.train))))
    assert chosen.poses is not None
    loader = Loader(chosen, batch_size=min(128, len(chosen)))
    optimizer = torch.optim.Adam(layer.parameters(), lr=LEARNING_RATE, amsgrad=True, fused=True)
    layer.train()
    mean = math.nan
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * DECAY**epoch
        total = torch.zeros((), device=chosen.images.device)
        for indices in loader.epoch(epoch):
            loss = angle_loss(layer(loader.batch(indices)[0]).pose[:, 0], chosen.poses[indices, 0])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.detach()
            if time.monotonic() > deadline:
                raise Stopped("out of time")
        mean = total.item() / len(loader)
    return mean


def angle_loss(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the mean distance between angles `(B,)`: 0 for equal angles, 2 for opposite angles."""
    return (1 - torch.cos(predicted - true)).mean()


def load(root: Path) -> list[dict[str, object]]:
    """Read the result files in the folder `rotation` of `root`, in the order of `CASES`."""
    paths = [root / NAME / f"{name}.json" for name in CASES]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def table(root: Path) -> str:
    """Return a markdown table of the slope and the errors of each network."""
    lines = ["| network | slope (ideal 1) | rms error | median error | device, commit |", "|---|---|---|---|---|"]
    found = {entry["title"]: entry for entry in load(root)}
    for case in CASES.values():
        if entry := found.get(case.title):
            figures = " | ".join(f"{entry[name]:.3f}" for name in ("slope", "rms", "median"))
            lines.append(f"| {case.title} | {figures} | {entry['device']}, {entry['commit']} |")
        else:
            lines.append(f"| {case.title} | not measured | | | |")
    note = f"*One seed each; {DIGITS} test digits rotated by {ANGLES} angles; errors relative to a full turn.*"
    return "\n".join([*lines, "", note])
