"""Measure the cost of layers in front of a ResNet-18 on the CPU: inference, a training step, and its memory.

    python benchmarks/backbone.py [--threads 2] [--rounds 25] [--out results/backbone_cpu.json]

Networks are measured in turns. Compare the ratios; the times depend on the machine, and on a busy machine two threads
wait for each other. Memory is the peak of what torch allocates.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import equivariant_transformers as et

IMAGE = (3, 224, 224)
LAYERS: dict[str, tuple[str, ...]] = {
    "bare": (),
    "one layer": ("rotation",),
    "two layers": ("rotation", "x_shear"),
}
TRAINING_BATCH = 16
ABOUT = (
    "Median milliseconds, and median ratio to the bare network in the same round, of a ResNet-18 (float32, 224 x 224) "
    "behind layers with the default predictor; memory is the peak that a training step allocates, in MiB"
)


class Block(nn.Module):
    """Basic block of He et al. (2016): two 3x3 convolutions and a shortcut."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut.append(nn.Conv2d(before, channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


def resnet18(classes: int = 1000) -> nn.Sequential:
    """Return the ResNet-18 for ImageNet of He et al. (2016), the architecture of torchvision and timm."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    widths = (64, 64, 128, 256, 512)
    blocks = []
    for before, channels in pairwise(widths):
        blocks += [Block(before, channels, 1 if before == channels else 2), Block(channels, channels, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def make(layers: tuple[str, ...]) -> nn.Module:
    """Return a ResNet-18, behind a canonicalizer if there are `layers`."""
    torch.manual_seed(0)
    backbone = resnet18()
    return et.Canonicalized(backbone, et.Canonicalizer(layers, in_channels=3)) if layers else backbone


def infer(network: nn.Module, images: Tensor) -> None:
    with torch.inference_mode():
        network(images)


def train(network: nn.Module, images: Tensor) -> None:
    labels = torch.zeros(len(images), dtype=torch.long)
    network.zero_grad(set_to_none=False)
    if not isinstance(network, et.Canonicalized):
        F.cross_entropy(network(images), labels).backward()
        return
    out = network.canonicalizer(images)
    (F.cross_entropy(network.read(out), labels) + et.alignment_loss(out)).backward()


def take_turns(functions: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, float]]:
    """Call the functions in turns; return median milliseconds and the median ratio to the first in the same round."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(2 + rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    base = next(iter(times.values()))
    return {
        name: {
            "ms": round(statistics.median(taken), 2),
            "ratio": round(statistics.median(one / other for one, other in zip(taken, base, strict=True)), 3),
        }
        for name, taken in times.items()
    }


def measure(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    found = {}
    evaluated = {name: make(layers).eval() for name, layers in LAYERS.items()}
    for batch in (1, 16):
        images = torch.rand(batch, *IMAGE)
        functions = {name: partial(infer, network, images) for name, network in evaluated.items()}
        found[f"inference, batch {batch}"] = take_turns(functions, 8 * rounds if batch == 1 else rounds)
    trained = {name: make(layers).train() for name, layers in LAYERS.items()}
    images = torch.rand(TRAINING_BATCH, *IMAGE)
    functions = {name: partial(train, network, images) for name, network in trained.items()}
    found[f"training step, batch {TRAINING_BATCH}"] = take_turns(functions, max(3, rounds // 3))
    return found


def memory() -> dict[str, dict[str, float]]:
    """Return the peak memory that a training step of each network allocates, and its ratio to the bare network."""
    images = torch.rand(TRAINING_BATCH, *IMAGE)
    used = {}
    for name, layers in LAYERS.items():
        network = make(layers).train()
        train(network, images[:2])  # allocates the gradients
        with torch.profiler.profile(profile_memory=True) as profiler:
            train(network, images)
        found = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        events = sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]")
        used[name] = max(accumulate(size for _, size in events)) / 2**20
    return {name: {"mib": round(peak, 1), "ratio": round(peak / used["bare"], 3)} for name, peak in used.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25, help="measurements of inference with 16 images")
    parser.add_argument("--out", type=Path, default=Path("results/backbone_cpu.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    times, used = measure(arguments.rounds), memory()
    for what, row in times.items():
        print(
            f"{what:28s}" + "   ".join(f"{name} {one['ms']:8.1f} ms {one['ratio']:.2f}x" for name, one in row.items())
        )
    print(
        f"{'memory of a training step':28s}"
        + "   ".join(f"{name} {one['mib']:8.1f} MiB {one['ratio']:.2f}x" for name, one in used.items())
    )
    setting = {
        "about": ABOUT,
        "processor": platform.machine(),
        "threads": arguments.threads,
        "torch": torch.__version__,
    }
    arguments.out.write_text(json.dumps({**setting, "times": times, "memory": used}, indent=1) + "\n")


if __name__ == "__main__":
    main()
