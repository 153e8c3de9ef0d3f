import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # for the pictures in glyphs.py

settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("default")

if "PYTEST_XDIST_WORKER" in os.environ:  # one process a core: more threads would only fight for it
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start: sums depend on the number of threads


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "cuda" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
