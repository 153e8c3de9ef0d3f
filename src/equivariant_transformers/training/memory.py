"""Memory allocation of the C library, which takes much of the time of a training step with large CPU tensors."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # from malloc.h


def keep() -> None:
    """Let this process keep freed memory for its next tensors, if the C library supports it.

    Otherwise glibc requests every tensor above 32 MiB from the kernel and returns it, which clears its pages each time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
