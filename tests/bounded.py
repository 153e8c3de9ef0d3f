"""Run code in a process of its own, with limits on its time and memory."""

import subprocess
import sys

SECONDS = 30
MEGABYTES = 1000

LIMIT = """
import resource, sys
import numpy, torch
import equivariant_transformers
{imports}
used = 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + {megabytes} * 2**20,) * 2)
"""


def run_bounded(code, *arguments, imports="", seconds=SECONDS, megabytes=MEGABYTES):
    """Run `code` with `arguments` as `sys.argv[1:]`, and return the finished process.

    The memory of the modules named by `imports`, a statement, does not count. A process that exceeds the time fails the
    test; one that exceeds the memory gets a MemoryError.
    """
    program = LIMIT.format(imports=imports, megabytes=megabytes) + code
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30)
