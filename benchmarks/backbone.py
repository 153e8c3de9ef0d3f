"""Measure the cost of layers in front of a ResNet-18: inference, a training step, and its memory.

    python benchmarks/backbone.py [--device cuda] [--precision bfloat16] [--compile] [--out results/backbone_cpu.json]

Networks are measured in turns. Compare the ratios; the times depend on the machine, and on a busy machine two threads
wait for each other. Memory is the peak of what torch allocates; on a GPU, of what it reserves in four training steps,
since recorded passes of layers keep their memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from consistency import put
from layer import moving
from torch import Tensor, nn
from turns import machine, take_turns

import equivariant_transformers as et

IMAGE = (3, 224, 224)
IN_A_ROW = 10
"""Number of calls on a GPU without waiting for the end of each, as in a loop over batches."""
LAYERS: dict[str, tuple[str, ...]] = {
    "bare": (),
    "one layer": ("rotation",),
    "two layers": ("rotation", "x_shear"),
    "four layers": ("rotation", "x_shear", "x_perspective", "y_perspective"),
}
ABOUT = (
    "Median milliseconds, and median ratio to the bare network in the same round, of a ResNet-18 (224 x 224) "
    "behind layers; memory is the peak that training steps allocate, in MiB"
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


def make(layers: tuple[str, ...], predictor: str = "posterior") -> nn.Module:
    """Return a ResNet-18, behind a canonicalizer if there are `layers`."""
    torch.manual_seed(0)
    backbone = resnet18()
    return et.Canonicalized(backbone, moving(layers, predictor)) if layers else backbone


def infer(network: nn.Module, images: Tensor, precision: torch.dtype) -> None:
    with torch.no_grad(), autocast(images, precision):
        network(images)


def train(network: nn.Module, images: Tensor, precision: torch.dtype = torch.float32) -> None:
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    network.zero_grad()
    with autocast(images, precision):
        if isinstance(network, et.Canonicalized):
            out = network.canonicalizer(images)
            loss = F.cross_entropy(network.read(out), labels) + et.alignment_loss(out)
        else:
            loss = F.cross_entropy(network(images), labels)
    loss.backward()


def autocast(images: Tensor, precision: torch.dtype) -> torch.autocast:
    return torch.autocast(images.device.type, precision, enabled=precision != torch.float32)


def chosen(given: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Return the layers of the networks to measure, of which the bare one is first."""
    return {name: layers for name, layers in LAYERS.items() if name == "bare" or name in given.networks}


def measure(given: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Return times and ratios of inference with both batch sizes, and of a training step with the larger one."""
    precision, found = getattr(torch, given.precision), {}

    def networks() -> dict[str, nn.Module]:
        return {name: make(layers, given.predictor).to(given.device) for name, layers in chosen(given).items()}

    def called(function: Callable[..., None]) -> Callable[..., None]:
        return torch.compile(function, dynamic=True) if given.compile else function

    def times(title: str, functions: dict[str, Callable[[], object]], rounds: int, row: bool) -> None:
        found[title] = take_turns(functions, rounds, given.device)
        if row and given.device.startswith("cuda"):
            found[f"{title}, {IN_A_ROW} in a row"] = take_turns(functions, rounds, given.device, calls=IN_A_ROW)

    evaluated = {name: network.eval() for name, network in networks().items()}
    for batch in given.batches:
        images = torch.rand(batch, *IMAGE, device=given.device)
        functions = {name: partial(called(infer), network, images, precision) for name, network in evaluated.items()}
        rounds = 8 * given.rounds if batch == 1 else given.rounds
        times(f"inference, batch {batch}", functions, rounds, batch > 1)
    functions = {
        name: partial(called(train), network.train(), images, precision) for name, network in networks().items()
    }
    times(f"training step, batch {batch}", functions, max(3, given.rounds // 3), True)
    return found


def memory(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the peak memory that a training step of each network allocates, and its ratio to the bare network."""
    device: str = given.device
    images = torch.rand(given.batches[1], *IMAGE, device=device)
    used = {}
    for name, layers in chosen(given).items():
        network = make(layers, given.predictor).to(device).train()
        train(network, images[:2])  # allocates the gradients
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_reserved(device)
            for _ in range(4):
                train(network, images)
            used[name] = (torch.cuda.max_memory_reserved(device) - before) / 2**20
            continue
        with torch.profiler.profile(profile_memory=True) as profiler:
            train(network, images)
        found = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        events = sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]")
        used[name] = max(accumulate(size for _, size in events)) / 2**20
    return {name: {"mib": round(peak, 1), "ratio": round(peak / used["bare"], 3)} for name, peak in used.items()}


def table(times: dict[str, dict[str, dict[str, float]]], used: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table: times and memory of the bare network, and ratios of the others."""
    names = list(used)
    lines = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    rows = {what: (f"{row['bare']['ms']:.2f} ms", row) for what, row in times.items()}
    rows["memory of training steps"] = (f"{used['bare']['mib']:.0f} MiB", used)
    for what, (bare, row) in rows.items():
        ratios = [f"{row[name]['ratio']:.2f}" for name in names[1:]]
        lines.append(f"| {' | '.join((what, bare, *ratios))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, nargs=2, help="batch sizes; by default 1 and 16, on a GPU 1 and 64")
    parser.add_argument("--predictor", default="posterior")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--compile", action="store_true", help="compile inference and training")
    parser.add_argument("--networks", nargs="+", choices=[*LAYERS], default=[*LAYERS], help="besides the bare one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25, help="measurements of inference with the larger batch")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path, help="put the table into this page")
    given = parser.parse_args()
    given.batches = given.batches or ([1, 64] if given.device.startswith("cuda") else [1, 16])
    torch.set_num_threads(given.threads)
    setting = {"about": ABOUT, **machine(given.device), "predictor": given.predictor}
    setting |= {"precision": given.precision, "compiled": given.compile}
    times, used = measure(given), memory(given)
    print(table(times, used))
    if given.docs:
        put(given.docs, "backbone", table(times, used))
    if given.out:
        given.out.write_text(json.dumps({**setting, "times": times, "memory": used}, indent=1) + "\n")


if __name__ == "__main__":
    main()
