"""The tests of kernels, run by Triton's interpreter on the CPU.

The interpreter must be on before Triton is imported, so they run in processes of their own.
"""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OLDEST = (3, 7)  # the interpreter of Triton 3.6 fails with NumPy 2.4


def triton_version():
    try:
        return tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))
    except importlib.metadata.PackageNotFoundError:
        return (0,)


@pytest.mark.skipif(triton_version() < OLDEST, reason="needs Triton 3.7 or later (pip install 'triton>=3.7')")
@pytest.mark.parametrize(
    "files",
    [("geometry/test_kernels.py", "geometry/test_smoothing.py", "fuzz/test_fuzz_kernels.py"), ("nn/test_kernels.py",)],
)
def test_kernels_pass_their_tests_in_the_interpreter(files, request):
    scale = request.config.getoption("--fuzz-scale")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        f"--fuzz-scale={scale}",
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *(str(TESTS / file) for file in files)],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300 + 60 * scale,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
