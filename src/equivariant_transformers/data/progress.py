"""Progress of a download or of image generation on stderr."""

from __future__ import annotations

import sys

from equivariant_transformers.text import visible


class ProgressLines:
    """Progress callback that prints to stderr: a bar on a terminal, otherwise one line per quarter."""

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
        """End the line of the progress bar, if any."""
        if self.bar and self.shown[0]:
            print(file=sys.stderr)
            self.shown = ("", -1)
