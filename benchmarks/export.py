"""Measure the time of a classifier on the CPU in PyTorch and, exported to ONNX, in onnxruntime, in turns.

    python benchmarks/export.py [--model projective-mnist] [--threads 1] [--rounds 30]

Both take the same bytes and use the same number of threads. Compare the ratios; the times depend on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import onnxruntime
import torch

from equivariant_transformers.hub.export import to_onnx
from equivariant_transformers.hub.zoo import find

BATCHES = (1, 128)


@torch.inference_mode()
def median_times(functions, rounds):
    """Return the median time in milliseconds of each function; the functions are called in turns."""
    times = [[] for _ in functions]
    for turn in range(rounds + 3):
        for taken, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            if turn >= 3:
                taken.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(taken) for taken in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="projective-mnist", help="model file, or name of a pretrained model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    classifier = find(arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        to_onnx(classifier, path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    config = classifier.card.config
    print(
        f"{config.network}, {len(config.layers)} layers ({config.predictor}), {arguments.threads} CPU thread(s), ",
        end="",
    )
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}; median of {arguments.rounds} rounds\n")
    print("| batch | PyTorch | onnxruntime | ratio |\n|---|---|---|---|")
    for batch in BATCHES:
        shape = (batch, classifier.card.in_channels, *classifier.card.size)
        images = torch.randint(256, shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
        feed = {"images": images.numpy()}
        eager, onnx = median_times(
            [lambda images=images: classifier(images), lambda feed=feed: session.run(None, feed)], arguments.rounds
        )
        print(f"| {batch} | {eager:.1f} ms | {onnx:.1f} ms | {eager / onnx:.2f} |")


if __name__ == "__main__":
    main()
