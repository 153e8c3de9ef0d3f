"""Read text lines photographed at an angle, with and without a canonicalizer in front of an OCR engine.

pip install -e '.[ocr,train]'
python examples/read_text.py [--out out] [--steps 1000] [--lines 300] [--seeds 0 1] [--quick]

The canonicalizer is trained without labels on rendered upright lines, minutes on a CPU. The fonts and words of the test
lines do not occur in training.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import load_file, save_file
from torch import Tensor

import equivariant_transformers as et

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FRAME, SEEN = 480, 120  # sides of a photograph, and of its reduced copy from which the layers read poses, in pixels
LEVELS = {  # largest parameters; the group that is named last acts last
    "undistorted": {},
    "mild": {"y_perspective": 0.1, "x_perspective": 0.1, "x_shear": 0.2, "rotation": math.radians(15)},
    "strong": {"y_perspective": 0.3, "x_perspective": 0.3, "x_shear": 0.5, "rotation": math.radians(45)},
    "any angle": {"y_perspective": 0.3, "x_perspective": 0.3, "x_shear": 0.5, "rotation": math.pi},
}
TRAINING = {"y_perspective": 0.3, "x_perspective": 0.3, "x_shear": 0.5, "rotation": 0.3}
LINES, BATCH = 2000, 48  # in training
FONTS = {
    "training": [f"DejaVu{name}" for name in ("Sans", "Sans-Bold", "Serif", "Serif-Bold", "SansMono", "SansMono-Bold")],
    "test": ["STIXGeneral", "STIXGeneralBol", "cmss10", "cmtt10"],
}
WORDS = {
    "training": """Anchor Basket Candle Dragon Engine Forest Garden Hammer Island Jacket Kettle Ladder Market Needle
    Orange Pepper Quarry Ribbon Saddle Temple Urchin Velvet Window Yellow amber bridge copper desert elbow feather
    ginger honey invite jungle kernel lemon mirror number oyster pocket quartz rocket silver ticket uncle valley winter
    zebra""",
    "test": """Account Borough Crystal Diamond Exhibit Fortune Gravity Horizon Journey Kingdom Lantern Monarch Nothing
    Opinion Package Quality Refugee Shelter Tractor Uniform Village Whisper Youth apple blanket compass dolphin evening
    flower granite harvest insight justice kitchen library morning network olive planet quiet railway summer thunder
    umbrella voyage weather zenith""",
}
Read = Callable[[np.ndarray], str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for weights, which are reused, results and picture"
    )
    parser.add_argument("--steps", type=int, default=1000, help="steps of training")
    parser.add_argument("--lines", type=int, default=300, help="test lines per level of distortion")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="random seeds, one training each")
    parser.add_argument("--quick", action="store_true", help="3 steps and 8 lines, to try the script")
    given = parser.parse_args()
    if given.steps < 100 or given.lines < 8:
        parser.error("training takes at least 100 steps, and the picture 8 lines")
    if given.quick:
        given.steps, given.lines = 3, 8
    given.out.mkdir(parents=True, exist_ok=True)

    files = [given.out / f"read_text_{given.steps}_{seed}.safetensors" for seed in given.seeds]
    stacks = [load(file, given.steps, seed) for file, seed in zip(files, given.seeds, strict=True)]
    recognise, pipeline = engine()
    upright, texts = render(given.lines, 0, "test")
    rates, costs, shown = {}, {}, []
    for number, (level, largest) in enumerate(LEVELS.items()):
        photographs, distortion = photograph(upright, largest, seed=number)
        canonical, costs["canonicalizer"] = timed(canonicalise, stacks[0], photographs)
        plain, costs["recogniser"] = timed(read, recognise, photographs)
        whole, costs["engine"] = timed(read, pipeline, photographs)
        behind = [
            read(recognise, images) for images in (canonical, *(canonicalise(s, photographs) for s in stacks[1:]))
        ]
        rows = {
            "recogniser": [plain],
            "recogniser behind the canonicalizer": behind,
            "recogniser behind the true inverse": [read(recognise, resample(distortion.inverse(), photographs))],
            "engine with its detector": [whole],
        }
        rates[level] = {row: [rate(answers, texts) for answers in runs] for row, runs in rows.items()}
        print(level, json.dumps(rates[level]), flush=True)
        if largest:
            pair = (2 * number, 2 * number + 1)  # other lines from each level
            shown += [(level, photographs[k], plain[k], canonical[k], behind[0][k], texts[k]) for k in pair]
    print(table(rates))
    print("CPU time per line in milliseconds:", {name: round(cost) for name, cost in costs.items()})
    results = {"steps": given.steps, "lines": given.lines, "seeds": given.seeds, "levels": LEVELS, "training": TRAINING}
    results |= {"exact_match": rates, "cpu_milliseconds_per_line": costs}
    (given.out / "read_text.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(shown, given.out / "read_text.png")


def render(count: int, seed: int, split: str) -> tuple[Tensor, list[str]]:
    """Return upright lines `(count, 1, FRAME, FRAME)` of one or two words and a number, dark on light, and the texts.

    A line is at most 0.62 of the frame wide, and at most 9 pixels off the centre.
    """
    rng = np.random.default_rng(seed)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    images, texts = [], []
    for _ in range(count):
        parts = [*rng.choice(WORDS[split].split(), 1 + rng.integers(2)), str(rng.integers(10, 10_000))]
        parts = [str(part) for part in rng.permutation(parts)]
        font = ImageFont.truetype(folder / f"{rng.choice(FONTS[split])}.ttf", 64)
        width = sum(font.getlength(part) for part in parts) + font.getlength("n") / 2 * (len(parts) - 1)
        scale = min(0.62 * FRAME / width, rng.uniform(42, 60) / 64)
        font = font.font_variant(size=64 * scale)
        image = Image.new("L", (FRAME, FRAME), int(rng.uniform(170, 255)))
        ink, x, y = int(rng.uniform(0, 80)), rng.uniform(-9, 9), rng.uniform(-9, 9) + FRAME / 2
        x += (FRAME - scale * width) / 2
        for part in parts:  # word by word, because some fonts have no space
            ImageDraw.Draw(image).text((x, y), part, ink, font, anchor="lm")
            x += font.getlength(part) + font.getlength("n") / 2
        images.append(np.asarray(image))
        texts.append(" ".join(parts))
    return torch.from_numpy(np.stack(images))[:, None] / 255, texts


def photograph(upright: Tensor, largest: dict[str, float], seed: int) -> tuple[Tensor, et.Warp]:
    """Return `upright` lines under random distortions, as a camera records them, and the distortions."""
    torch.manual_seed(seed)
    distortion = et.Augmentation(largest).random(upright)
    return light(resample(distortion, upright)), distortion


def light(images: Tensor) -> Tensor:
    """Return `images` `(B, 1, H, W)` under uneven light, with the noise of a sensor."""
    ramp = torch.linspace(-0.1, 0.1, images.shape[-1])
    across, down = 2 * torch.rand(2, len(images), 1, 1, 1) - 1
    lit = images * (1 + across * ramp + down * ramp[:, None])
    return (lit + 0.02 * torch.randn_like(lit)).clamp(0, 1)


def resample(warp: et.Warp, images: Tensor) -> Tensor:
    return warp.image(images, mode="bicubic", padding="border").clamp(0, 1)  # cubic interpolation overshoots


def make_canonicalizer() -> et.Canonicalizer:
    """Return layers whose charts cover a text line: a narrow strip around the x axis."""
    charts = [
        et.chart("rotation").replace(ranges=((-math.pi, math.pi), (1 / 32, 1)), size=(32, 128)),
        et.chart("x_shear").replace(ranges=((-8, 8), (-0.25, 0.25)), size=(32, 128)),
        et.chart("x_perspective").replace(ranges=((1, 9), (-0.4, 0.4)), size=(32, 64)),
    ]
    return et.Canonicalizer(charts, in_channels=1, channels=16)


def load(file: Path, steps: int, seed: int) -> et.Canonicalizer:
    """Return the canonicalizer in `file`, which is trained and written first if it does not exist."""
    if not file.exists():
        save_file(train(steps, seed).state_dict(), file)
    canonicalizer = make_canonicalizer()
    canonicalizer.load_state_dict(load_file(file))
    canonicalizer.iterations = 2  # the second pass removes what is left of large poses
    return canonicalizer.eval()


def train(steps: int, seed: int) -> et.Canonicalizer:
    """Train a canonicalizer without labels, to undo known random warps of upright lines."""
    lines, _ = render(min(LINES, BATCH * steps), seed + 1, "training")
    upright = torch.nn.functional.avg_pool2d(lines, FRAME // SEEN)
    torch.manual_seed(seed)
    canonicalizer = make_canonicalizer()
    augmentation = et.Augmentation(TRAINING)
    optimizer = torch.optim.AdamW(canonicalizer.parameters(), 3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.05)
    begun = time.process_time()
    for step in range(1, steps + 1):
        batch = light(upright[torch.randint(len(upright), (BATCH,))])
        loss = et.alignment_loss(canonicalizer(batch, augmentation.random(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            minutes = (time.process_time() - begun) / 60
            print(f"seed {seed}, step {step}: loss {loss.item():.2f}, {minutes:.1f} minutes of CPU time", flush=True)
    return canonicalizer


@torch.no_grad()
def canonicalise(canonicalizer: et.Canonicalizer, photographs: Tensor) -> Tensor:
    """Return the canonical images of `photographs`, resampled once at full resolution."""
    return torch.cat([resample(canonicalizer(batch).warp, batch) for batch in photographs.split(50)])


def engine() -> tuple[Read, Read]:
    """Return two functions from an image to its text.

    The first crops the ink and applies the engine's direction classifier and recogniser. The second applies the whole
    engine, with its detector, which finds rotated boxes.
    """
    from rapidocr_onnxruntime import RapidOCR

    # The detector reads the photograph at its own size; by default it enlarges the photograph first.
    ocr = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1, det_limit_side_len=FRAME)

    def recognise(image: np.ndarray) -> str:
        found, _ = ocr(crop(image), use_det=False)
        return found[0][0] if found else ""

    def pipeline(image: np.ndarray) -> str:
        found, _ = ocr(image)
        return "".join(text for _, text, _ in found) if found else ""

    return recognise, pipeline


def crop(image: np.ndarray, margin: int = 7) -> np.ndarray:
    """Return the smallest upright box of `image` `(H, W, 3)` that holds the ink, and a margin."""
    ink = image[..., 0] < np.median(image) - 64
    rows, columns = (np.flatnonzero(ink.sum(axis) > 1) for axis in (1, 0))
    if not len(rows) or not len(columns):
        return image
    (top, bottom), (left, right) = ((max(0, at[0] - margin), at[-1] + margin + 1) for at in (rows, columns))
    return image[top:bottom, left:right]


def read(reader: Read, images: Tensor) -> list[str]:
    pictures = (images[:, 0, ..., None] * 255).round().byte().expand(-1, -1, -1, 3).numpy()
    return [reader(np.ascontiguousarray(picture)) for picture in pictures]


def is_right(answer: str, text: str) -> bool:
    """Compare without spaces, which the engine often drops on undistorted lines too."""
    return "".join(answer.split()) == "".join(text.split())


def timed(job: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """Return the results of `job`, one per line, and the CPU time per line in milliseconds."""
    begun = time.process_time()
    results = job(*given)
    return results, 1000 * (time.process_time() - begun) / len(results)


def rate(answers: list[str], texts: list[str]) -> float:
    return 100 * sum(map(is_right, answers, texts)) / len(texts)


def table(rates: dict[str, dict[str, list[float]]]) -> str:
    """Return exact matches in per cent as a table: the mean over seeds, and the range if there are several."""
    lines = [f"| | {' | '.join(rates)} |", "|---" * (len(rates) + 1) + "|"]
    for row in next(iter(rates.values())):
        lines.append(f"| {row} | {' | '.join(cell(level[row]) for level in rates.values())} |")
    return "\n".join(lines)


def cell(found: list[float]) -> str:
    spread = f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 else ""
    return f"{sum(found) / len(found):.1f}{spread}"


def draw(shown: list[tuple[str, Tensor, str, Tensor, str, str]], file: Path) -> None:
    """Draw photographs above their canonical images, each with the text that the recogniser reads."""
    figure, axes = plt.subplots(2, len(shown), figsize=(2.4 * len(shown), 5.2), layout="constrained", squeeze=False)
    for column, (level, photograph, before, canonical, after, text) in zip(axes.T, shown, strict=True):
        for axis, image, answer in zip(column, (photograph, canonical), (before, after), strict=True):
            axis.imshow(image[0], cmap="gray", vmin=0, vmax=1)
            axis.set_title(answer or "(nothing)", fontsize=9, color="green" if is_right(answer, text) else "crimson")
            axis.set(xticks=[], yticks=[])
        column[1].set_xlabel(level, fontsize=9)
    for axis, name in zip(axes[:, 0], ("photograph", "canonical image"), strict=True):
        axis.set_ylabel(name, fontsize=9)
    figure.savefig(file, dpi=75)


if __name__ == "__main__":
    main()
