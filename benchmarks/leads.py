"""Train variants of the four-layer network with augmentation to lower its error; most are not in the library.

    python benchmarks/leads.py [--variant 'two iterations'] [--variant 'three peers'] [--copies '8 copies'] [--fast]
    python benchmarks/leads.py --model projective-mnist-softmax [--model runs/NAME/model.safetensors] [--tta 8]

Each run is a row of results/screening/leads.json. Runs that have a row are not repeated. With --model nothing is
trained: the error of a network on eight copies of each validation digit is printed.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from equivariant_transformers.cli.models import load
from equivariant_transformers.data import Loader
from equivariant_transformers.data.mnist_set import digits
from equivariant_transformers.data.projective_mnist_set import (
    COPIES,
    EXAMPLES,
    POSE_NAMES,
    SIZE,
    VALIDATION,
    _draw_poses,
)
from equivariant_transformers.data.synthesis import image_set
from equivariant_transformers.experiments import EXPERIMENTS, results
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.nn.augment import TTA
from equivariant_transformers.nn.conv import pad, wrap_around
from equivariant_transformers.nn.kernels import plain
from equivariant_transformers.training import memory, train
from equivariant_transformers.training.job import find_device, load_data, make_job, place
from equivariant_transformers.training.optimization import Evaluation

ROW = "ET-LP sh-hr-px-py: EMA, augmentation"
OUT = Path("results/screening/leads.json")
ABOUT = (
    f"Row '{ROW}' of `et reproduce beat`, patched by benchmarks/leads.py. eight_copies: error of each network on "
    "eight copies of each validation digit; teachers: the same error of each teacher."
)


class AntiAliased(nn.Module):
    """Features of the paper's predictors, with a binomial filter before each stride of two samples."""

    def __init__(self, trunk):
        super().__init__()
        self.convs, self.norms, self.periodic = trunk.convs, trunk.norms, trunk.periodic

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            seen = F.conv2d(wrap_around(x, 1, self.periodic), conv.weight, padding=conv.padding)
            x = F.leaky_relu(norm(seen), 0.1)
            if conv.stride == (2, 2):
                x = halve(halve(x, -1, self.periodic), -2, self.periodic)
        return plain.Features(x)


def halve(x, axis, periodic):
    """Return every other sample of `x` `(B, C, H, W)` along an axis after the filter (1, 2, 1) / 4."""
    wide = pad(x, (1, 0) if axis == -1 else (0, 1), periodic)
    size = x.shape[axis]
    before, here, after = (wide.narrow(axis, k, size) for k in range(3))
    smooth = (before + 2 * here + after) / 4
    return smooth[..., ::2] if axis == -1 else smooth[..., ::2, :]


def fill_padding(job, _):
    """Pad the convolutions with the fill value instead of grey."""
    for layer in job.module.canonicalizer.layers:
        layer.predictor.register_forward_pre_hook(lambda _, images: images[0] - images[0][..., :1, :1])


def anti_aliased(job, _):
    for layer in job.module.canonicalizer.layers:
        layer.predictor.trunk = AntiAliased(layer.predictor.trunk)


def label_smoothing(job, _):
    job.loss = partial(F.cross_entropy, label_smoothing=0.1)


def two_iterations(job, _):
    job.module.canonicalizer.iterations = 2


def weight_decay(job, _):
    job.config = job.config.replace(weight_decay=5e-4)


def both(job, splits):
    two_iterations(job, splits)
    weight_decay(job, splits)


class Company(nn.Module):
    """Networks that are trained together on the same images with separate augmentation. The first one is tested."""

    def __init__(self, augmentation, *networks):
        super().__init__()
        self.augmentation = augmentation
        self.networks = nn.ModuleList(networks)

    def forward(self, images, start=None):
        if not self.training:
            return self.networks[0](images, start)
        starts = [start, *(self.augmentation.random(images) for _ in self.networks[1:])]
        return torch.stack([network(images, start) for network, start in zip(self.networks, starts, strict=True)], 1)


def others(job, splits, count):
    """Return `count` jobs like `job` with different seeds."""
    seeds = (100 * (k + 1) + job.config.seed for k in range(count))
    return [make_job(job.config.replace(seed=seed), splits, name=f"seed {seed}") for seed in seeds]


def three_peers(job, splits):
    """Train three networks on the labels and on the mean prediction of the other two."""
    job.module = Company(job.augmentation, job.module, *(one.module for one in others(job, splits, 2)))

    def loss(logits, labels):
        log_p = logits.log_softmax(2)  # (B, networks, classes)
        each = log_p.detach().exp()
        rest = (each.sum(1, keepdim=True) - each) / (each.shape[1] - 1)
        apart = F.kl_div(log_p, rest, reduction="none").sum((1, 2)).mean()
        return apart + sum(F.cross_entropy(one, labels) for one in logits.unbind(1))

    job.loss = loss


class Taught(nn.Module):
    """Network that also returns the predictions of its teachers in training, with the same or separate augmentation."""

    def __init__(self, network, teachers, augmentation, *, same_augmentation):
        super().__init__()
        self.network = network
        self.teachers = tuple(teachers)  # not submodules: they are neither trained nor saved
        self.augmentation = augmentation
        self.same_augmentation = same_augmentation

    def forward(self, images, start=None):
        if not self.training:
            return self.network(images, start)
        out = self.network.canonicalizer(images, start)
        with torch.no_grad():
            starts = [start if self.same_augmentation else self.augmentation.random(images) for _ in self.teachers]
            taught = [teach(t, images, start) for t, start in zip(self.teachers, starts, strict=True)]
        return torch.stack([self.network.read(out), torch.stack(taught).logsumexp(0)], 1)


def teach(teacher, images, start):
    """Return the log-probabilities of a trained network for images transformed by `start`."""
    return (teacher.read(teacher.canonicalizer(images, start)).float() / WARMTH).log_softmax(1)


WARMTH = 2.0
"""Temperature of the logits in the comparison of a network with its teachers."""
TEACHERS = {}


def teachers(job, splits):
    """Train three networks like the job's and return them."""
    if job.config not in TEACHERS:
        jobs = others(job, splits, 3)
        train(jobs)
        for one in jobs:
            one.module.eval()
        TEACHERS[job.config] = [one.module for one in jobs]
    return TEACHERS[job.config]


def taught(job, splits, *, same_augmentation):
    """Train with a loss of one half labels and one half mean predictions of three trained networks."""
    job.module = Taught(job.module, teachers(job, splits), job.augmentation, same_augmentation=same_augmentation)

    def loss(logits, labels):
        own, theirs = logits.unbind(1)
        apart = F.kl_div((own / WARMTH).log_softmax(1), theirs.softmax(1), reduction="batchmean")
        return (F.cross_entropy(own, labels) + WARMTH**2 * apart) / 2

    job.loss = loss


VARIANTS = {
    "as it is": lambda *_: None,
    "fill padding": fill_padding,
    "anti-aliased strides": anti_aliased,
    "label smoothing 0.1": label_smoothing,
    "two iterations": two_iterations,
    "weight decay 0.0005": weight_decay,
    "two iterations, weight decay 0.0005": both,
    "three peers": three_peers,
    "distilled from three": partial(taught, same_augmentation=True),
    "distilled from three, separate augmentation": partial(taught, same_augmentation=False),
}


def eight_copies(splits, config):
    """Return a loader of eight copies of each validation digit, so that the error depends less on single poses."""
    known, _ = digits()
    order = torch.randperm(len(known.labels), generator=torch.Generator().manual_seed(config.data_seed))
    chosen = known.take(order[EXAMPLES : EXAMPLES + VALIDATION])
    poses = _draw_poses(COPIES, VALIDATION, torch.Generator().manual_seed(config.data_seed + 1)).flatten(0, 1)
    part = splits.validation
    made = image_set(
        chosen,
        poses,
        pose_names=POSE_NAMES,
        size=SIZE,
        name=part.name,
        origin=part.origin,
        normalisation=(part.mean, part.std),
        mode="sharp_bicubic",
        device=part.images.device,
    )
    return Loader(made, batch_size=1000)


def error(module, loader, config):
    """Return the error of `module` in per cent."""
    return Evaluation(module, loader, config, capture=False).error()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", action="append", help="variant to train; may be repeated; all by default")
    parser.add_argument("--model", action="append", help="model file or name of a pretrained model; may be repeated")
    parser.add_argument("--tta", type=int, default=1, help="test-time augmentation: predictions per image of --model")
    parser.add_argument("--copies", default="1 copy", help="column of the table, such as '8 copies'")
    parser.add_argument("--seeds", type=int, default=1, help="number of runs per variant")
    parser.add_argument("--epochs", type=int, help="epochs; those of the row by default")
    parser.add_argument("--examples", type=int, help="training images; 10,000 by default")
    parser.add_argument("--fast", action="store_true", help="compile the networks and use bfloat16, for GPUs")
    arguments = parser.parse_args()
    patches = {name: lookup(VARIANTS, name, "variant") for name in arguments.variant or VARIANTS}
    chosen = EXPERIMENTS["beat"].configs(only=[ROW, arguments.copies], seeds=arguments.seeds, fast=arguments.fast)
    configs = [config.replace(examples=arguments.examples) for config in chosen]
    if epochs := arguments.epochs:
        configs = [c.replace(epochs=epochs, lr_decay=c.lr_decay ** (c.epochs / epochs)) for c in configs]
    known = json.loads(OUT.read_text()) if OUT.exists() else {"about": ABOUT, "rows": []}
    done = {(row["variant"], row["key"]) for row in known["rows"]}
    runs = [(name, c) for c in configs for name in patches if (name, results.key(c)) not in done]
    if not (runs or arguments.model):
        return
    device = find_device(configs[0].device)
    splits = load_data(configs[0], device)
    wide = eight_copies(splits, configs[0])
    if arguments.model:
        memory.keep()
        for name in arguments.model:
            classifier = load(name, arguments.tta)
            module = TTA(classifier.module, classifier.augmentation, arguments.tta)
            print(name, error(place(module, device), wide, configs[0]), flush=True)
        return
    jobs = [make_job(config, splits, name=f"{name}, seed {config.seed}") for name, config in runs]
    for (name, _), job in zip(runs, jobs, strict=True):
        patches[name](job, splits)
    for (name, config), job, outcome in zip(runs, jobs, train(jobs), strict=True):
        row = {
            "variant": name,
            "key": results.key(config),
            "copies": config.copies,
            "seed": config.seed,
            "epochs": config.epochs,
            "validation_error": outcome.validation_error,
            "best_epoch": outcome.best_epoch,
            "last_ten_epochs": fmean(entry["validation_error"] for entry in outcome.history[-10:]),
            "eight_copies": [error(one, wide, config) for one in getattr(job.module, "networks", [job.module])],
            "teachers": [error(one, wide, config) for one in getattr(job.module, "teachers", ())],
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
