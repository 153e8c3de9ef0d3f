"""Ideas for a lower error that are not in the library: the four-layer network with views, patched and trained.

    python benchmarks/leads.py [--variants 'background padding,anti-aliased strides'] [--seeds 1] [--fast]

Each run is a row of results/screening/leads.json. Rows that are there are not run again.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from equivariant_transformers.conv import pad, wrap_around
from equivariant_transformers.experiments import EXPERIMENTS, results
from equivariant_transformers.experiments.jobs import find_device, load_data, make_job
from equivariant_transformers.groups import lookup
from equivariant_transformers.training import train

ROW = "ET-LP sh-hr-px-py: averaging, views"
OUT = Path("results/screening/leads.json")
ABOUT = f"The row '{ROW}' of `et reproduce beat`, patched by benchmarks/leads.py."


class AntiAliased(nn.Module):
    """The features of the paper's predictors, with a step of two samples taken after a binomial filter."""

    def __init__(self, trunk):
        super().__init__()
        self.convs, self.norms, self.periodic = trunk.convs, trunk.norms, trunk.periodic

    def fits(self, _):
        return False

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            seen = F.conv2d(wrap_around(x, 1, self.periodic), conv.weight, padding=conv.padding)
            x = F.leaky_relu(norm(seen), 0.1)
            if conv.stride == (2, 2):
                x = halve(halve(x, -1, self.periodic), -2, self.periodic)
        return x


def halve(x, axis, periodic):
    """Every other sample of `x` `(B, C, H, W)` along an axis after the filter (1, 2, 1) / 4."""
    wide = pad(x, (1, 0) if axis == -1 else (0, 1), periodic)
    size = x.shape[axis]
    before, here, after = (wide.narrow(axis, k, size) for k in range(3))
    smooth = (before + 2 * here + after) / 4
    return smooth[..., ::2] if axis == -1 else smooth[..., ::2, :]


def background_padding(job):
    """What a convolution sees beyond the chart is background, not grey."""
    for layer in job.module.canonicalizer.layers:
        layer.predictor.register_forward_pre_hook(lambda _, images: images[0] - images[0][..., :1, :1])


def anti_aliased(job):
    for layer in job.module.canonicalizer.layers:
        layer.predictor.trunk = AntiAliased(layer.predictor.trunk)


def label_smoothing(job):
    job.loss = partial(F.cross_entropy, label_smoothing=0.1)


def two_passes(job):
    job.module.canonicalizer.passes = 2


VARIANTS = {
    "as it is": lambda _: None,
    "background padding": background_padding,
    "anti-aliased strides": anti_aliased,
    "label smoothing 0.1": label_smoothing,
    "two passes": two_passes,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma separated")
    parser.add_argument("--versions", default="1 version", help="the column of the row, as in '8 versions'")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, help="instead of those of the row")
    parser.add_argument("--examples", type=int, help="instead of all 10,000")
    parser.add_argument("--fast", action="store_true", help="bfloat16 and compiled, as for a GPU")
    arguments = parser.parse_args()
    patches = {name: lookup(VARIANTS, name, "variant") for name in arguments.variants.split(",")}
    chosen = EXPERIMENTS["beat"].configs(only=[ROW, arguments.versions], seeds=arguments.seeds, fast=arguments.fast)
    configs = [config.replace(examples=arguments.examples) for config in chosen]
    if epochs := arguments.epochs:
        configs = [c.replace(epochs=epochs, decay=c.decay ** (c.epochs / epochs)) for c in configs]
    splits = load_data(configs[0], find_device(configs[0].device))
    known = json.loads(OUT.read_text()) if OUT.exists() else {"about": ABOUT, "rows": []}
    done = {(row["variant"], row["key"]) for row in known["rows"]}
    runs = [(name, c) for c in configs for name in patches if (name, results.key(c)) not in done]
    jobs = [make_job(config, splits, name=f"{name}, seed {config.seed}") for name, config in runs]
    for (name, _), job in zip(runs, jobs, strict=True):
        patches[name](job)
    for (name, config), outcome in zip(runs, train(jobs) if jobs else [], strict=True):
        row = {
            "variant": name,
            "key": results.key(config),
            "versions": config.copies,
            "seed": config.seed,
            "epochs": config.epochs,
            "validation_error": outcome.validation_error,
            "best_epoch": outcome.best_epoch,
            "last_ten_epochs": fmean(entry["validation_error"] for entry in outcome.history[-10:]),
            "test_error": outcome.test_error,
            "loss": outcome.history[-1]["loss"],
            "device": results.device_name(),
            "torch": torch.__version__.split("+")[0],
            "commit": results.commit(),
        }
        print(json.dumps(row), flush=True)
        known["rows"].append(row)
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
