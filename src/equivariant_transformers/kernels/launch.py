"""How the kernels for features are launched.

What has to be added up over all places of a batch is added up on the way, by a fixed number of programs with sums of
their own, so that results do not depend on which program ends first.
"""

from __future__ import annotations

import triton

BLOCK = 128
"""Places a program works on at a time."""
LAUNCH = {"num_warps": 4, "num_stages": 1}
_MOST = 528  # four for each multiprocessor of a large GPU


def programs(places: int):
    """How many programs share the work on `places`."""
    return min(_MOST, triton.cdiv(places, BLOCK))
