import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # for modules shared by tests
sys.path.insert(0, str(Path(__file__).parent / "demo"))

import chromium

settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("default")

if "PYTEST_XDIST_WORKER" in os.environ:  # one process per core: more threads would compete for it
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for subprocesses of tests: sums depend on the number of threads


NO_BROWSER = "needs a Chromium"


def pytest_addoption(parser):
    parser.addoption("--fuzz-scale", type=int, default=1, help="factor on the number of cases of each fuzzer")
    parser.addoption("--fuzz-case", type=int, default=None, help="number of the only case to run of each fuzzer")


def pytest_collection_modifyitems(items):
    missing = {"cuda": not torch.cuda.is_available(), "browser": chromium.path() is None}
    reasons = {"cuda": "needs a CUDA device", "browser": NO_BROWSER}
    for item in items:
        for mark in missing:
            if missing[mark] and mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reasons[mark]))


def pytest_terminal_summary(terminalreporter):
    ended = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    cases = sum(count for report in ended for name, count in report.user_properties if name == "fuzzed")
    if cases:
        terminalreporter.write_line(f"fuzzers: {cases:,} cases")
    left_out = [report for report in terminalreporter.stats.get("skipped", ()) if NO_BROWSER in str(report.longrepr)]
    if left_out:
        names = ", ".join(chromium.NAMES)
        terminalreporter.write_line(
            f"NOT TESTED: {len(left_out)} tests of the demo and the live page need playwright and Chromium ({names})."
        )
