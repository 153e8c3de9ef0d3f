"""What is being computed, so that it can end before the program does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Work:
    """Counts the calls of some functions that are under way in any thread.

    A thread that the end of the program meets inside of torch takes the program down with it (`SIGABRT`).

    >>> work = Work()
    >>> work.counted(len)([1, 2]), work.wait(seconds=1)
    (2, True)
    """

    def __init__(self) -> None:
        self._calls = 0
        self._changed = threading.Condition()

    def counted(self, function: Callable[P, R]) -> Callable[P, R]:
        """`function`, counted while it runs."""

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            self._add(1)
            try:
                return function(*arguments, **options)
            finally:
                self._add(-1)

        return call

    def wait(self, *, seconds: float) -> bool:
        """Wait for the calls under way to end, for some seconds at most, and say whether they did."""
        with self._changed:
            return self._changed.wait_for(lambda: self._calls == 0, seconds)

    def _add(self, calls: int) -> None:
        with self._changed:
            self._calls += calls
            self._changed.notify_all()
