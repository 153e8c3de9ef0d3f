"""Counter of running computations, so that the program can wait for them before it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Work:
    """Counter of the running calls of some functions, in all threads.

    The program aborts (`SIGABRT`) if it ends while a thread is still inside torch.

    >>> work = Work()
    >>> work.counted(len)([1, 2]), work.wait(seconds=1)
    (2, True)
    """

    def __init__(self) -> None:
        self._calls = 0
        self._changed = threading.Condition()

    def counted(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap `function` so that its running calls are counted."""

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            self._add(1)
            try:
                return function(*arguments, **options)
            finally:
                self._add(-1)

        return call

    def wait(self, *, seconds: float) -> bool:
        """Wait at most `seconds` for the running calls to end, and return whether they did."""
        with self._changed:
            return self._changed.wait_for(lambda: self._calls == 0, seconds)

    def _add(self, calls: int) -> None:
        with self._changed:
            self._calls += calls
            self._changed.notify_all()
