"""Measure the time to generate each data set from MNIST, which is downloaded first.

python benchmarks/data.py [--device cuda] [--threads 2] [NAME ...]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import equivariant_transformers as et

OPTIONS: dict[str, dict[str, Any]] = {
    "projective-mnist": {"copies": 8},
    "affnist": {},
    "homnist": {},
    "rotated-mnist": {},
    "mnist-rts": {},
    "sim2mnist": {},
    "rs-mnist": {},
    "scale-mnist": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(OPTIONS), metavar="NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    et.data.load("mnist")
    for name in arguments.names:
        if arguments.device != "cpu":  # warm-up: the first call loads the kernels
            et.data.load(name, device=arguments.device, **OPTIONS[name])
            torch.accelerator.synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        splits = et.data.load(name, device=arguments.device, **OPTIONS[name])
        if arguments.device != "cpu":
            torch.accelerator.synchronize()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        count = sum(map(len, splits))
        print(f"{name:18s} {count:8,} images  {wall:6.2f} s  ({cpu:6.2f} s of CPU time, {arguments.device})")


if __name__ == "__main__":
    main()
