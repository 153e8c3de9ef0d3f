"""How the C library hands out memory: with large tensors, a good part of the time of a training step on the CPU."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def keep() -> None:
    """Let this process keep freed memory for its next tensors, where the C library can be told so.

    Otherwise glibc gets every tensor above 32 MiB from the kernel and gives it back, which clears its pages each time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
