"""Compare networks with a layer of the group that `et.discover` found, with a layer of the true group, and without one.

    OMP_NUM_THREADS=1 python benchmarks/found_layer.py [--seeds 3] [--out results/found_layer.json] [NAME...]

The data sets are those of `discover.py`: MNIST digits, each moved by its own theta. The group is found from 600 of the
training digits with labels, and the layer has the chart that `et.derive` makes of its rounded generator. The three
networks of a seed have the same classifier with the same initial weights, and get the same digits in the same order.
The charts have the ranges that `et.derive` chooses. Rows that are already in the file are not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from discover import cosine_with_span, moved_images, true_group
from torch import Tensor, nn

import equivariant_transformers as et

NAMES = ("rotation about (0.3, 0.1)", "x_shear", "spiral", "diagonal shear")
SEARCH = 600
BATCH = 50
PREDICTOR_CHANNELS = 8
LEARNING_RATE = 4e-3


def network(group: et.Group | None, seed: int) -> nn.Module:
    """Return a small classifier of digits behind a layer of `group`."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    classifier = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 4 * 4, 10))
    if group is None:
        return classifier
    layer = et.EquivariantTransformer(et.derive(group), in_channels=1, channels=PREDICTOR_CHANNELS)
    return et.Canonicalized(classifier, layer)


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).split(BATCH)[: len(images) // BATCH]:
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def error(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of wrong labels in per cent."""
    model.eval()
    wrong = sum(int((model(x).argmax(1) != y).sum()) for x, y in zip(images.split(500), labels.split(500), strict=True))
    return 100 * wrong / len(labels)


def measure(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    result = et.discover(*moved_images(name, SEARCH, seed), examples=SEARCH, seed=seed)
    found = result.found[0] if result.found else result.rejected
    assert found is not None
    group = found.simplified
    row: dict[str, Any] = {
        "reported": bool(result.found),
        "generator": [[round(entry, 3) + 0.0 for entry in line] for line in group.generator or ()],
        "cosine": round(cosine_with_span(true_group(name), (group,)), 4),
        "error": {},
        "seconds": {},
    }
    digits = moved_images(name, options.train, seed)
    test_digits = moved_images(name, options.test, seed, test=True)
    for kind, given in {"none": None, "true": true_group(name), "found": group}.items():
        began = time.process_time()
        model = network(given, seed)
        train(model, *digits, options.epochs, seed)
        row["error"][kind] = round(error(model, *test_digits), 3)
        row["seconds"][kind] = round(time.process_time() - began, 1)
    return row


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the table of `docs/discovery.md`: means and standard deviations over the seeds."""
    heads = ("seeds", "no layer", "true layer", "found layer", "found - true")
    lines = ["| hidden group | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for name, rows in results.items():
        errors = [row["error"] for row in rows.values()]
        columns = [[each[kind] for each in errors] for kind in ("none", "true", "found")]
        columns.append([each["found"] - each["true"] for each in errors])
        cells = [_mean(column, "+.2f" if column is columns[-1] else ".2f") for column in columns]
        lines.append("| " + " | ".join([name.replace("_", " "), str(len(errors)), *cells]) + " |")
    return "\n".join(lines)


def _mean(values: list[float], form: str) -> str:
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):{form}}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"data sets; by default {', '.join(NAMES)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, default=4000, help="training digits")
    parser.add_argument("--test", type=int, default=10_000, help="test digits")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/found_layer.json"))
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, Any]]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.names or NAMES:
        rows = results.setdefault(name, {})
        for seed in range(options.seeds):
            if str(seed) not in rows:
                rows[str(seed)] = measure(name, seed, options)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(name, seed, rows[str(seed)], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
