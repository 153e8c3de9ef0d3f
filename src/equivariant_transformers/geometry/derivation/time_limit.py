"""Time limit for SymPy computations, which may take hours for a short formula."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

_BUSY = 2  # longest wait on a busy machine, in multiples of the limit


class _TimeIsUp(BaseException):
    """Interruption of a search thread; a BaseException, so that no handler of Exception catches it."""


def within(seconds: float, items: Iterable[T]) -> list[T]:
    """Compute `items` one by one and return the items that are ready after `seconds` of CPU time of the process.

    A busy machine, on which the process gets half a core or more, does not change the result. The items are
    computed in a separate thread, which Python can interrupt.

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
    begun, latest = time.process_time(), time.monotonic() + _BUSY * seconds
    worker.start()
    try:
        while worker.is_alive() and time.process_time() < begun + seconds and time.monotonic() < latest:
            worker.join(0.05)
    finally:
        while worker.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident or 0), ctypes.py_object(_TimeIsUp))
            worker.join(0.05)
    if errors:
        raise errors[0]
    return found
