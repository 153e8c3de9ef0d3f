"""How far a download or the making of images is, told on stderr."""

from __future__ import annotations

import sys

from equivariant_transformers.text import visible


class ProgressLines:
    """Tells on stderr how far something is: as a bar on a terminal, elsewhere as a line for every quarter."""

    def __init__(self) -> None:
        self.bar = sys.stderr.isatty()
        self.shown = ("", -1)

    def __call__(self, what: str, share: float) -> None:
        what = visible(what)
        step = int(share * (40 if self.bar else 4))
        if (what, step) == self.shown:
            return
        self.shown = (what, step)
        if self.bar:
            print(f"\r{what} [{'#' * step:40}] {share:4.0%}", end="", file=sys.stderr, flush=True)
            if share >= 1:
                self.stop()
        else:
            print(f"{what}: {share:.0%}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """End the line of the bar, if there is one."""
        if self.bar and self.shown[0]:
            print(file=sys.stderr)
            self.shown = ("", -1)
