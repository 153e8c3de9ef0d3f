"""Freed memory stays with the process that trains."""

import subprocess
import sys

import pytest

CODE = """
import resource, torch
from equivariant_transformers.training import memory
{first}
def steps(count):
    for _ in range(count):
        tensor = torch.ones(2**24)  # 64 MiB
        del tensor


steps(3)  # small tensors find their places among the large ones
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
steps(5)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="about the C library of Linux")
def test_large_tensors_reuse_their_memory():
    codes = [CODE.format(first=first) for first in ("", "memory.keep()")]
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True) for code in codes]
    without, kept = (int(run.stdout) for run in runs)
    assert kept < max(without, 1000) / 10
