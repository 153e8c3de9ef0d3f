"""Commands that install optional packages of the library."""

from __future__ import annotations

import shlex
from pathlib import Path

_CLONE = Path(__file__).parents[2]
"""Root of the repository, if the library is used from a clone."""


def command(extra: str) -> str:
    """Return the command that installs the packages of an extra, such as `train`.

    In a clone of the repository, it installs from the clone, as the README does. Otherwise it names the package.
    """
    if not (_CLONE / "pyproject.toml").is_file():
        return f"pip install 'equivariant-transformers[{extra}]'"
    place = "." if Path.cwd() == _CLONE else str(_CLONE)
    return f"pip install -e {shlex.quote(f'{place}[{extra}]')}"
