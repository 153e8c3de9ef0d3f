"""Measure one training step of the four-layer network and of the authors' 2019 network on the CPU, in turns.

    python benchmarks/step_cpu.py [--threads 2] [--batch 128] [--rounds 7]

The 2019 network is `legacy.Network2019`, evaluated as in the authors' code: each layer multiplies a homogeneous grid by
the matrices of the batch, divides, and samples. Both networks take the same images. Compare the ratios, not the times.
"""

import argparse
import multiprocessing
import statistics
import time

import torch
import torch.nn.functional as F  # noqa: N812
from step import LAYERS, digits
from torch import nn

from equivariant_transformers.data import Loader, Splits
from equivariant_transformers.models.legacy import Network2019
from equivariant_transformers.models.legacy_charts import COORDS, TRANSFORMATIONS
from equivariant_transformers.models.legacy_networks import pad_axes
from equivariant_transformers.training import Config, memory
from equivariant_transformers.training.job import make_job
from equivariant_transformers.training.optimization import Optimization


class GridByMatrix(nn.Module):
    """`Network2019` that transforms its sampling grids with `bmm`."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        size = images.shape[-2:]
        matrix = None
        for transformer in self.network.transformer.transformers:
            chart, groups = TRANSFORMATIONS[transformer.name]
            ((axis, group),) = groups.items()
            seen = self._sample(images, chart.grid(size, images.device), matrix)
            low, high = chart.u if axis == "u" else chart.v
            step = group.matrix((high - low) / 2 * self._predict(transformer.predictor, seen, axis))
            matrix = step if matrix is None else torch.bmm(matrix, step)
        return self.network.net(self._sample(images, COORDS[self.network.coords].grid(size, images.device), matrix))

    @staticmethod
    def _sample(images, grid, matrix):
        grid = grid.expand(len(images), -1, -1, -1)
        if matrix is not None:
            homogeneous = torch.cat((grid, torch.ones_like(grid[..., :1])), -1)
            moved = torch.bmm(homogeneous.flatten(1, 2), matrix.transpose(1, 2)).reshape(homogeneous.shape)
            grid = torch.empty_like(grid)
            grid[..., 0] = moved[..., 0] / (moved[..., 2] + 1e-8)
            grid[..., 1] = moved[..., 1] / (moved[..., 2] + 1e-8)
        return F.grid_sample(images, grid, align_corners=True)

    @staticmethod
    def _predict(predictor, x, axis):
        samples = x.shape[3 if axis == "u" else 2]
        x = F.leaky_relu(predictor.bn1(predictor.conv1(pad_axes(x, predictor.reach, predictor.padding))), 0.1, True)
        x = F.leaky_relu(predictor.bn2(predictor.conv2(pad_axes(x, predictor.reach, predictor.padding))), 0.1, True)
        conv, bias = (predictor.conv_u, predictor.bias_u) if axis == "u" else (predictor.conv_v, predictor.bias_v)
        features, padding = (x.max(2)[0], "constant") if axis == "u" else (x.max(3)[0], predictor.padding[1])
        return predictor._centroid(conv, features, padding, samples) + bias.tanh()


class Authors:
    """Training step of the authors: Adam with their options, one tensor at a time."""

    def __init__(self, loader):
        torch.manual_seed(0)
        network = Network2019(
            tfs=["ShearX", "HyperbolicRotation", "PerspectiveX", "PerspectiveY"],
            coords="logpolar_grid",
            net="BasicCNN",
            equivariant=True,
            downsample=1,
            tf_opts={"in_channels": 1, "kernel_size": 3, "nf": 32, "strides": (2, 1)},
            net_opts={"nf": 32, "p_dropout": 0.3, "pad_mode": (None, "cyclic"), "pool": (True, True, False)},
            seed=0,
            epoch=0,
            valid_err=1.0,
        )
        self.module = GridByMatrix(network)
        self.loader = loader
        images, _ = loader.batch(torch.arange(4))
        with torch.no_grad():
            torch.testing.assert_close(self.module.eval()(images), network.eval()(images), rtol=1e-3, atol=1e-3)
        self.module.train()
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=2e-3, amsgrad=True, foreach=False)

    def step(self):
        images, labels = self.loader.batch(self.loader.epoch(0)[0])
        loss = F.cross_entropy(self.module(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        loss.item()


class Ours:
    """Training step of this library, as in `training.train`."""

    def __init__(self, loader, predictor, compiled):
        memory.keep()
        config = Config(
            layers=LAYERS, chart="log_polar", predictor=predictor, batch_size=loader.batch_size, compile=compiled
        )
        self.run = Optimization(make_job(config, Splits(*[loader.dataset] * 3)).module, loader, config)

    def step(self):
        self.run.begin(0)
        self.run.step()


def work(connection, name, batch, threads):
    """Run a step for each message on `connection`, and send its wall time and CPU time."""
    torch.set_num_threads(threads)
    loader = Loader(digits(2 * batch, "cpu"), batch_size=batch)
    predictor, _, compiled = name.partition(", ")
    one = Authors(loader) if name == "2019" else Ours(loader, predictor, bool(compiled))
    one.step()
    while connection.recv():
        wall, used = time.perf_counter(), time.process_time()
        one.step()
        connection.send((time.perf_counter() - wall, time.process_time() - used))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="measure compiled steps too")
    given = parser.parse_args()
    names = ["2019", "softmax", "consistent"] + ["softmax, compiled", "consistent, compiled"] * given.compile
    # One process per network, because training changes the memory allocation of its process.
    context = multiprocessing.get_context("spawn")
    pipes = {}
    for name in names:
        pipes[name], end = context.Pipe()
        context.Process(target=work, args=(end, name, given.batch, given.threads), daemon=True).start()
        for _ in range(2):  # warm-up, before the next process starts
            pipes[name].send(True)
            pipes[name].recv()
    times = {name: [] for name in names}
    for _ in range(given.rounds):
        for name, pipe in pipes.items():
            pipe.send(True)
            times[name].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(False)
    print(f"torch {torch.__version__}, {given.threads} threads, batch {given.batch}")
    for name, rounds in times.items():
        ratios = torch.tensor(times["2019"]) / torch.tensor(rounds)  # between steps of the same round
        wall, used = ratios.quantile(0.5, dim=0).tolist()
        milliseconds = 1e3 * statistics.median(row[0] for row in rounds)
        print(f"{name:21}{milliseconds:6.0f} ms, 2019 / this: {wall:.2f} in wall time, {used:.2f} in CPU time")


if __name__ == "__main__":
    main()
