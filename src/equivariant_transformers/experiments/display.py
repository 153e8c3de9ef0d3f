"""Progress of a list of runs: a line at intervals, or a bar on a terminal."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from equivariant_transformers.training import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_UNITS = {"h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> float:
    """Return the seconds in a duration such as 90s, 25m or 1h30m.

    >>> parse_duration("1h30m")
    5400.0
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"a duration is a number with h, m or s, such as 90s, 25m or 1h30m; got {text!r}")
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def show_duration(seconds: float) -> str:
    """Format `seconds` as hours, minutes and seconds.

    >>> show_duration(83), show_duration(5400), show_duration(math.inf)
    ('1m23s', '1h30m', 'no limit')
    """
    if math.isinf(seconds):
        return "no limit"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


class Display:
    """Display of the current runs, their progress and the remaining time.

    Args:
        budget: seconds until all runs must stop.
        every: seconds between two lines.
    """

    def __init__(self, budget: float = math.inf, *, every: float = 20.0) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + budget
        self.bar = _bar() if sys.stderr.isatty() else None
        self.every = every if self.bar is None else 0.2
        self.begin(())

    def begin(self, names: Sequence[str], *, waiting: int = 0, estimate: float | None = None) -> None:
        """Start the display of the runs `names`; `waiting` more will follow."""
        self.batch_started = self.last_line = time.monotonic()
        self.names = names
        self.first: dict[str, float] = {}
        self.done: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        if names:
            expected = "" if estimate is None else f", about {show_duration(estimate)}"
            self.say(f"training {len(names)} runs{expected}; {waiting} more waiting")
            for name in names:
                self.say(f"  {name}")

    def __call__(self, progress: Progress) -> None:
        """Record the progress of a run, and print it at most every `every` seconds."""
        done = (progress.epoch + progress.step / progress.steps) / progress.epochs
        self.first.setdefault(progress.name, done)
        self.done[progress.name] = done
        if progress.history:
            self.errors[progress.name] = progress.history[-1]["validation_error"]
        now = time.monotonic()
        if now - self.last_line < self.every:
            return
        self.last_line = now
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self._share(), description=self._status())
        else:
            self.say(self._status())

    def say(self, line: str) -> None:
        """Write one line with the elapsed and the remaining time."""
        now = time.monotonic()
        times = f"[{show_duration(now - self.started)}, left {show_duration(self.deadline - now)}]"
        if self.bar is not None:
            self.bar.console.print(times, line, markup=False, highlight=False)
        else:
            print(times, line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()

    def _share(self) -> float:
        return sum(self.done.values()) / max(len(self.names), 1)

    def _status(self) -> str:
        here = sum(self.done.values()) - sum(self.first.values())
        left = len(self.names) - sum(self.done.values())
        eta = ""
        with suppress(ZeroDivisionError):
            eta = f", ETA {show_duration((time.monotonic() - self.batch_started) * left / here)}"
        errors = " ".join(f"{error:.2f}" for error in self.errors.values())
        return f"{100 * self._share():.0f} %{eta}" + (f", validation error {errors}" if errors else "")


def _bar() -> Bar | None:
    """Return a bar from 0 to 1, or None if rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:
        return None
    bar = Progress(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True))
    bar.add_task("", total=1.0)
    bar.start()
    return bar
