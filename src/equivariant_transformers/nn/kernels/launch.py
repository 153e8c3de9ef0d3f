"""Launch parameters of the kernels for features.

Sums over all positions of a batch are computed as partial sums, by a fixed number of programs. Results do not depend on
the order in which the programs finish.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 128
"""Number of positions that a program processes at a time."""
LAUNCH = {"num_warps": 4, "num_stages": 1}
_MOST = 528  # four per multiprocessor of a large GPU


@triton.jit
def keep(sums, which: tl.constexpr, channel, value):
    """Store the partial sum of this program at index `which` of `sums` `(sums, channels, programs)`."""
    tl.store(sums + (which * channel.shape[0] + channel) * tl.num_programs(0) + tl.program_id(0), value)


def programs(places: int, block: int = BLOCK):
    """Return the number of programs that process `places` positions, each `block` positions at a time."""
    return min(_MOST, triton.cdiv(places, block))
