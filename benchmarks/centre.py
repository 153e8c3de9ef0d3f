"""Measure whether stacks with random weights follow rotations about points off the centre of the image.

    OMP_NUM_THREADS=1 python benchmarks/centre.py [--pictures FOLDER] [--seeds 3] [--out results/centre.json]

Photographs are random crops of 256 x 256 pixels from the pictures of a folder, by default those of an installed
scikit-image. Digits are MNIST test digits on a canvas. The content turns inside a fixed frame that it fills. The error
of an image is the rms over nine angles of the predicted minus the true change of the angle, in radians. A figure is the
median over images and seeds, or their 90th percentile. The rotation layer of a seed has the same weights in every
stack, and the stacks get the same images. The last table is the discrepancy of the canonical frames of whole stacks on
the distribution of Projective MNIST, modulo rotation and scale.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
from pathlib import Path
from statistics import mean

import torch
from consistency import put
from PIL import Image
from torch import Tensor

import equivariant_transformers as et
from equivariant_transformers.audit.probes import on_canvas
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.data.pictures import fit
from equivariant_transformers.data.synthesis import pose_matrix

mnist = importlib.import_module("equivariant_transformers.data.mnist_set")
projective_mnist = importlib.import_module("equivariant_transformers.data.projective_mnist_set")

SIDE = 256
CROP = 0.6  # of the crop that the frame shows: the rest enters as the content turns
PICTURES = (  # of scikit-image, in its wheel
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "rocket.jpg",
)
STACKS = {  # predictor of the cartesian layer in front of the rotation layer; None without that layer
    "rotation": None,
    "cartesian (consistent), rotation": "consistent",
    "cartesian (centre), rotation": "centre",
}
BEFORE, AFTER = "cartesian (consistent), rotation", "cartesian (centre), rotation"
CONDITIONS = {  # size of the frame, and the point that the content turns about, in pixels from the centre
    "64x64, about the centre": ((64, 64), (0, 0)),
    "64x64, 2 pixels off": ((64, 64), (2, 0)),
    "64x64, 5 pixels off": ((64, 64), (3, 4)),
    "48x80, about the centre": ((48, 80), (0, 0)),
}
MEASURED = {
    "photographs": ("64x64, about the centre", "64x64, 2 pixels off", "48x80, about the centre"),
    "digits": ("64x64, about the centre", "64x64, 2 pixels off", "64x64, 5 pixels off"),
}
PERSPECTIVES = ("x_perspective", "y_perspective")
LIMIT = 0.2  # of perspective poses in the last row: the frame stays far from the horizon
FRAMES = {  # layers, and the limit of perspective poses
    "no layers": ((), None),
    "x_shear, hyperbolic_rotation": (("x_shear", "hyperbolic_rotation"), None),
    "and both perspectives": (("x_shear", "hyperbolic_rotation", *PERSPECTIVES), None),
    f"and both perspectives, pose_range=(-{LIMIT}, {LIMIT})": (
        ("x_shear", "hyperbolic_rotation", *PERSPECTIVES),
        LIMIT,
    ),
}


def photographs(folder: Path, per_picture: int) -> Tensor:
    """Return random grey crops `(B, 1, SIDE, SIDE)` of the pictures in a folder."""
    generator = torch.Generator().manual_seed(0)
    crops = []
    for name in PICTURES:
        with Image.open(folder / name) as picture:
            width, height = picture.size
            for _ in range(per_picture):
                x, y = (int(torch.randint(side - SIDE + 1, (), generator=generator)) for side in (width, height))
                crop = picture.crop((x, y, x + SIDE, y + SIDE))
                crops.append(torch.tensor(fit(crop, (SIDE, SIDE), 1)).float() / 255)
    return torch.stack(crops)


def turned(predictor: str | None, images: Tensor, condition: str, seed: int) -> Tensor:
    """Return the error `(B,)` of each image for a stack with random weights."""
    size, centre = CONDITIONS[condition]
    torch.manual_seed(seed)
    layers = [et.EquivariantTransformer("rotation")]
    if predictor is not None:
        layers.insert(0, et.EquivariantTransformer("cartesian", predictor=predictor))
    stack = et.Canonicalizer(layers).eval()
    result = et.self_consistency(
        lambda batch: stack(batch).pose[:, -1],
        images,
        (-math.pi, math.pi),
        group="rotation",
        size=size,
        crop=CROP,
        centre=centre,
    )
    return (result.predicted[0] - result.theta[:, None]).square().mean(0).sqrt()


def frames(names: tuple[str, ...], limit: float | None, digits: Tensor, seed: int) -> float:
    """Return the median discrepancy of the canonical frames of digits under two random homographies each."""
    poses = projective_mnist._draw_poses(2, len(digits), torch.Generator().manual_seed(0))
    first, second = (et.Warp.projective(pose_matrix(one, projective_mnist.POSE_NAMES)) for one in poses)
    torch.manual_seed(seed)
    pose_range = None if limit is None else (-limit, limit)
    layers = [
        et.EquivariantTransformer(name, pose_range=pose_range if name in PERSPECTIVES else None) for name in names
    ]
    stack = et.Canonicalizer(layers)
    return et.frame_consistency(stack, digits, (first, second), modulo="similarity", size=(64, 64)).median


def tables(results: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = []
    for kind, rows in results.items():
        columns = list(next(iter(rows.values())))
        lines += [f"| {kind} | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
        lines += [
            f"| {name} | " + " | ".join(f"{row[column]:.3f}" for column in columns) + " |" for name, row in rows.items()
        ]
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, help="folder of pictures; by default those of scikit-image")
    parser.add_argument("--crops", type=int, default=2, help="crops per picture")
    parser.add_argument("--digits", type=int, default=24, help="digits that are turned")
    parser.add_argument("--frames", type=int, default=200, help="digits whose canonical frames are compared")
    parser.add_argument("--seeds", type=int, default=3, help="number of random initialisations")
    parser.add_argument("--out", type=Path, help="file of figures to write")
    parser.add_argument("--docs", type=Path, help="page to write the tables to")
    arguments = parser.parse_args()
    folder = arguments.pictures
    if folder is None:
        spec = importlib.util.find_spec("skimage")
        if spec is None or spec.origin is None:
            parser.error("no pictures: install scikit-image, or name a folder with --pictures")
        folder = Path(spec.origin).parent / "data"
    digits = mnist.digits()[1].images[: max(arguments.digits, arguments.frames), None] / 255
    seeds = range(arguments.seeds)
    content = {
        "photographs": photographs(folder, arguments.crops),
        "digits": on_canvas(digits[: arguments.digits], SIDE),
    }
    results: dict[str, dict[str, dict[str, float]]] = {}
    pairs: dict[str, dict[str, float]] = {}
    for kind, images in content.items():
        rows = results.setdefault(kind, {})
        errors = {
            (name, condition): torch.stack([turned(predictor, images, condition, seed) for seed in seeds])
            for name, predictor in STACKS.items()
            for condition in MEASURED[kind]
        }
        for (name, condition), found in errors.items():
            rows.setdefault(name, {})[condition] = round(float(found.median()), 4)
            if name == AFTER:
                high = found.quantile(0.9)
                rows.setdefault(f"{name}: 90th percentile", {})[condition] = round(float(high), 4)
        for condition in MEASURED[kind]:
            change = errors[AFTER, condition] - errors[BEFORE, condition]
            pairs[f"{kind}, {condition}"] = {
                "median change": round(float(change.median()), 4),
                "share with a smaller error": round(float((change < 0).float().mean()), 4),
            }
        print(kind, rows, flush=True)
    results[f"{AFTER} against {BEFORE}"] = pairs
    rows = results.setdefault("frames", {})
    canvas = on_canvas(digits[: arguments.frames], SIDE)
    for name, (layers, limit) in FRAMES.items():
        medians = [frames(layers, limit, canvas, seed) for seed in (seeds if layers else (0,))]
        rows[name] = {"median discrepancy": round(mean(medians), 4)}
    print(tables(results))
    if arguments.out:
        with atomic_write(arguments.out) as file:
            file.write((json.dumps(results, indent=2) + "\n").encode())
    if arguments.docs:
        put(arguments.docs, "centre", tables(results))


if __name__ == "__main__":
    main()
