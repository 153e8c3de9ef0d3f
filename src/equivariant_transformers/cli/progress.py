"""Progress of training: a bar on a terminal, else a line per epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from equivariant_transformers.cli import console
from equivariant_transformers.training import Progress

Report = Callable[[Progress], None]
_REDRAWN_EVERY = 0.1  # seconds


@contextmanager
def watching() -> Iterator[Report]:
    """Yield a function that shows the `Progress` that it is called with."""
    if not console.speaks():
        yield lambda _: None
    elif not console.ERR.is_terminal:
        yield print_epoch
    else:
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=console.ERR, expand=True, speed_estimate_period=300) as bars:
            yield Bar(bars)


class Bar:
    """Progress bar that advances with every step and shows the figures of the last epoch."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.task: TaskID | None = None
        self.drawn = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        last = progress.epoch == progress.epochs
        if now - self.drawn < _REDRAWN_EVERY and not last:
            return
        self.drawn = now
        done = progress.epoch * progress.steps + progress.step
        fields: dict[str, Any] = {
            "epoch": f"{min(progress.epoch + 1, progress.epochs)}/{progress.epochs}",
            "figures": _figures(progress, " "),
        }
        if self.task is None:  # starts at the checkpoint, whose steps do not count for the speed
            self.task = self.bars.add_task("", total=progress.epochs * progress.steps, completed=done, **fields)
        self.bars.update(self.task, completed=done, **fields)


def print_epoch(progress: Progress) -> None:
    """Print a line at the end of an epoch."""
    if progress.step == 0:
        figures = f"{_figures(progress, ', ')}, {progress.history[-1]['seconds']:.1f} s"
        console.note(f"epoch {progress.epoch}/{progress.epochs}: {figures}")


def _figures(progress: Progress, between: str) -> str:
    if not progress.history:
        return ""
    last = progress.history[-1]
    best = min(entry["validation_error"] for entry in progress.history)
    words = (f"loss {last['loss']:.4f}", f"validation {last['validation_error']:.2f} %", f"best {best:.2f} %")
    return between.join(words)
