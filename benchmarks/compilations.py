"""Count the compilations of a network behind two layers for batches of several sizes, and measure the start-up.

python benchmarks/compilations.py [--device cuda] [--sizes 1,2,3,7,64] [--start-up] [--json FILE]

Torch's cache of compiled code on disk is off, so that each start-up is the first one on a machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from backbone import make
from torch._dynamo.testing import CompileCounter
from turns import finish, machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="1,2,3,7,64", help="batch sizes, in order")
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--start-up", action="store_true", help="also time the first calls, compiled by Inductor")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    results: dict[str, object] = {"machine": machine(given.device), "batch sizes": given.sizes, "pixels": given.pixels}
    print(results)
    batches = [
        torch.rand(int(size), 3, given.pixels, given.pixels, device=given.device) for size in given.sizes.split(",")
    ]
    for layers in ((), ("rotation", "x_shear")):
        network = make(layers).to(given.device).eval()
        name = f"{len(layers)} layers"
        for dynamic in (None, True):
            torch._dynamo.reset()
            counter = CompileCounter()
            compiled = torch.compile(network, fullgraph=True, backend=counter, dynamic=dynamic)
            counts = []
            with torch.no_grad():
                for images in batches:
                    compiled(images)
                    counts.append(counter.frame_count)
            results[f"{name}, dynamic={dynamic}"] = counts
            print(f"{name}, dynamic={dynamic}: compilations after batches of {given.sizes}: {counts}", flush=True)
        if given.start_up:
            torch._dynamo.reset()
            compiled = torch.compile(network, fullgraph=True, dynamic=True)
            with torch.no_grad():
                for images in batches[:2]:
                    start = time.perf_counter()
                    compiled(images)
                    finish(given.device)
                    seconds = round(time.perf_counter() - start, 1)
                    results[f"{name}, first call with a batch of {len(images)}, seconds"] = seconds
                    print(f"{name}, first call with a batch of {len(images)}: {seconds} s", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
