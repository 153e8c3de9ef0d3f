"""Steps of a search that are saved to a file, so that an interrupted search resumes."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from equivariant_transformers.data.files import atomic_write

T = TypeVar("T", bound=tuple[Any, ...])


class Steps:
    """Results of the finished steps of a search, by name.

    Args:
        path: file, or None to keep the results in memory only. A damaged file, and a file of another search, is
            ignored.
        key: everything that the results depend on.
        generator: random number generator of the search. A saved step restores its state after the step.
    """

    def __init__(self, path: Path | None, key: tuple[Tensor | object, ...], generator: torch.Generator) -> None:
        self.path = path
        self.generator = generator
        self.saved: dict[str, Any] = {"key": _digest(key)}
        if path is not None and path.exists():
            try:
                saved = torch.load(path, weights_only=True)
            except (pickle.UnpicklingError, RuntimeError, EOFError):
                saved = {}
            if isinstance(saved, dict) and saved.get("key") == self.saved["key"]:
                self.saved = saved

    def run(self, name: str, compute: Callable[[], T]) -> T:
        """Return the result of the step `name`: tensors and numbers, saved before or computed now."""
        if name not in self.saved:
            result = compute()
            self.saved[name] = (result, self.generator.get_state())
            if self.path is not None:
                with atomic_write(self.path) as file:
                    torch.save(self.saved, file)
        result, state = self.saved[name]
        self.generator.set_state(state)
        return cast(T, result)

    def finish(self) -> None:
        """Remove the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _digest(key: tuple[Tensor | object, ...]) -> str:
    digest = hashlib.sha256()
    for part in key:
        digest.update(part.cpu().numpy().tobytes() if isinstance(part, Tensor) else repr(part).encode())
    return digest.hexdigest()
