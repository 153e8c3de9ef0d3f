"""Measure the test errors of examples/quickstart.py over several seeds.

    OMP_NUM_THREADS=1 python benchmarks/quickstart.py [--seeds 5] [--out results/quickstart.json] [--docs README.md]

The script writes the errors to `--out` and a table of them into the page. The number of threads changes the rounding of
sums, and with it the errors, as another seed does. The file keeps the runs with other numbers of threads, and the table
covers all runs.
"""

from __future__ import annotations

import argparse
import json
import runpy
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from consistency import put

from equivariant_transformers.data.files import atomic_write

EXAMPLE = Path(__file__).parent.parent / "examples" / "quickstart.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0 on")
    parser.add_argument("--out", type=Path, default=Path("results/quickstart.json"), help="file for the errors")
    parser.add_argument("--docs", type=Path, help="put the table into this page")
    given = parser.parse_args()
    figures = measure(given.seeds)
    if given.out.exists():
        before = json.loads(given.out.read_text())
        if before["settings"] == figures["settings"]:
            figures["runs"] = before["runs"] | figures["runs"]
    with atomic_write(given.out) as file:
        file.write((json.dumps(figures, indent=2) + "\n").encode())
    print(table(figures))
    if given.docs:
        put(given.docs, "quickstart", table(figures))


def measure(seeds: int) -> dict[str, Any]:
    """Train both networks of the example with the seeds 0, 1, ..., as the example does."""
    example = runpy.run_path(str(EXAMPLE))
    splits, _ = example["load"](example["EXAMPLES"])
    errors: dict[str, list[float]] = {}
    for name in example["NETWORKS"]:
        errors[name] = []
        for seed in range(seeds):
            _, error = example["train"](name, splits, example["EPOCHS"], seed)
            errors[name].append(round(error, 2))
            print(f"{name}, seed {seed}: {error:.1f} %", flush=True)
    settings = {
        "torch": torch.__version__.split("+")[0],
        "examples": example["EXAMPLES"],
        "epochs": example["EPOCHS"],
        "test_digits": len(splits.test),
        "seeds": seeds,
    }
    return {"settings": settings, "runs": {f"threads: {torch.get_num_threads()}": errors}}


def errors_of(figures: dict[str, Any]) -> dict[str, list[float]]:
    """Return the errors of all runs of each network."""
    runs = list(figures["runs"].values())
    return {name: [error for run in runs for error in run[name]] for name in runs[0]}


def table(figures: dict[str, Any]) -> str:
    """Return the mean and the range of each network's errors as Markdown."""
    found = errors_of(figures)
    digits, runs = figures["settings"]["test_digits"], len(next(iter(found.values())))
    lines = [f"| wrong on {digits:,} test digits | mean of {runs} runs | range |", "|---|---|---|"]
    lines += [
        f"| {name} | {mean(errors):.1f} % | {min(errors):.1f} to {max(errors):.1f} % |"
        for name, errors in found.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
