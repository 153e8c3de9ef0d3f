"""Measure and profile one training step of the paper's networks.

    python benchmarks/step.py [--device cuda] [--profile]

On a CPU compare the ratios; the absolute times are meaningful on a GPU only.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
import torch._inductor.config

from equivariant_transformers.data import ImageSet, Splits
from equivariant_transformers.training import Config
from equivariant_transformers.training.job import make_job
from equivariant_transformers.training.optimization import Optimization

LAYERS = ("x_shear", "hyperbolic_rotation", "x_perspective", "y_perspective")


def digits(count, device):
    """Return noise in the shape of Projective MNIST; the time of a step does not depend on the image content."""
    images = torch.randint(256, (count, 1, 64, 64), dtype=torch.uint8, device=device)
    labels = torch.randint(10, (count,), device=device)
    return ImageSet(images=images, labels=labels, name="noise", mean=(128.0,), std=(74.0,))


def make(config, dataset):
    job = make_job(config, Splits(dataset, dataset, dataset))
    return Optimization(job.module, job.train, config)


def step_ms(runs, repeats):
    """Return the milliseconds of one step of all `runs` together, as the median of five measurements."""
    times = []
    for _ in range(5):
        for run in runs:
            run.begin(0)
            run.loss()
        start = time.perf_counter()
        for _ in range(repeats):
            for run in runs:
                run.step()
        for run in runs:
            run.loss()
        times.append(1e3 * (time.perf_counter() - start) / repeats)
    return sorted(times)[2]


def kernels(run, repeats=20):
    """Return the kernels of a step, slowest first: name, microseconds per step and calls per step."""
    run.begin(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            run.step()
        run.loss()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    return [(e.key[:110], round(e.self_device_time_total / repeats, 1), e.count / repeats) for e in events]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--predictors", default="softmax,consistent")
    parser.add_argument("--settings", default="float32,bfloat16:compile", help="precision[:compile], comma separated")
    parser.add_argument("--runs", default="1", help="numbers of simultaneous runs, comma separated")
    parser.add_argument("--inductor", default="", help="compiler options: key=value, comma separated")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for option in filter(None, arguments.inductor.split(",")):
        key, value = option.split("=")
        setattr(torch._inductor.config, key, json.loads(value))
    on_gpu = arguments.device.startswith("cuda")
    dataset = digits(20 * arguments.batch, arguments.device)
    rows = []
    settings = itertools.product(arguments.predictors.split(","), arguments.settings.split(","))
    for predictor, setting in settings:
        precision, _, compiled = setting.partition(":")
        config = Config(
            layers=LAYERS,
            chart="log_polar",
            fill="black",
            predictor=predictor,
            precision=precision,
            compile=bool(compiled),
            batch_size=arguments.batch,
        )
        for count in map(int, arguments.runs.split(",")):
            start = time.perf_counter()
            runs = [make(config, dataset) for _ in range(count)]
            prepared = time.perf_counter() - start
            milliseconds = step_ms(runs, 20 if on_gpu else 1)
            row = {
                "predictor": predictor,
                "setting": setting,
                "runs": count,
                "ms": milliseconds,
                "prepared_s": prepared,
            }
            print(json.dumps(row), flush=True)
            if arguments.profile and on_gpu:
                row["kernels"] = kernels(runs[0])
                for name, microseconds, calls in row["kernels"][:45]:
                    print(f"{microseconds:8.1f} us {calls:6.1f} x {name}", flush=True)
                print(
                    len(row["kernels"]),
                    "kinds,",
                    sum(k[2] for k in row["kernels"]),
                    "kernels,",
                    sum(k[1] for k in row["kernels"]),
                    "us",
                )
            rows.append(row)
            if arguments.out:
                arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
