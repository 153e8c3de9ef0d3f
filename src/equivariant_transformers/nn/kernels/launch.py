"""How the kernels for features are launched.

What has to be added up over all places of a batch is added up on the way, by a fixed number of programs with sums of
their own, so that results do not depend on which program ends first.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 128
"""Places a program works on at a time."""
LAUNCH = {"num_warps": 4, "num_stages": 1}
_MOST = 528  # four for each multiprocessor of a large GPU


@triton.jit
def keep(sums, which: tl.constexpr, channel, value):
    """Write this program's part of the sums number `which` into `(sums, channels, programs)`."""
    tl.store(sums + (which * channel.shape[0] + channel) * tl.num_programs(0) + tl.program_id(0), value)


def programs(places: int):
    """How many programs share the work on `places`."""
    return min(_MOST, triton.cdiv(places, BLOCK))
