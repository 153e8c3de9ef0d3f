"""A time limit for searches of SymPy, which may take hours over a short formula."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class _TimeIsUp(BaseException):
    """Raised in the thread of a search, where no handler of Exception may catch it."""


def within(seconds: float, items: Iterable[T]) -> list[T]:
    """Return those of `items`, computed one by one, that are ready after so many seconds.

    The items are computed in a thread of their own, which Python can interrupt.

    >>> import itertools
    >>> within(0.2, (n for n in itertools.count() if n < 3))
    [0, 1, 2]
    """
    found: list[T] = []
    errors: list[Exception] = []

    def search() -> None:
        try:
            for item in items:
                found.append(item)
        except Exception as error:
            errors.append(error)
        except _TimeIsUp:
            pass

    worker = threading.Thread(target=search, daemon=True)
    worker.start()
    try:
        worker.join(seconds)
    finally:
        while worker.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(_TimeIsUp))
            worker.join(0.05)
    if errors:
        raise errors[0]
    return found
