"""The fuzzers: seeded random input, of which each case must work or raise a clear error, quickly."""

import random
import time
import traceback

import pytest

SLOW = 30.0  # seconds that no single input may take


@pytest.fixture
def fuzz(request):
    """Return a function that checks random cases.

    `fuzz(check, cases=100, allowed=(ValueError,))` calls `check(random.Random(...))` with a generator per case.
    Errors of the types in `allowed` must carry a message. Every other error fails the test and names the case, which
    `--fuzz-case N` repeats alone. `--fuzz-scale N` runs N times as many cases.
    """

    def run(check, *, cases, allowed=()):
        only = request.config.getoption("--fuzz-case")
        numbers = range(cases * request.config.getoption("--fuzz-scale")) if only is None else [only]
        request.node.user_properties.append(("fuzzed", len(numbers)))
        failures = []
        for number in numbers:
            started = time.monotonic()
            try:
                check(random.Random(f"{request.node.name}/{number}"))
            except allowed as error:
                if not str(error).strip():
                    failures.append(f"case {number}: {type(error).__name__} without a message")
            except Exception:
                failures.append(f"case {number}: {traceback.format_exc()}")
            if time.monotonic() - started > SLOW:
                failures.append(f"case {number} took {time.monotonic() - started:.0f} s")
        assert not failures, f"{len(failures)} of {len(numbers)} cases failed, the first:\n" + "\n".join(failures[:3])

    return run
