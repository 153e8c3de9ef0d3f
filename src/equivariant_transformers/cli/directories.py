"""Directory of a training run: its lock and its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from equivariant_transformers.cli import console
from equivariant_transformers.training import distributed
from equivariant_transformers.training.locks import InUseError, hold


@contextmanager
def holding(directory: Path, device: torch.device) -> Iterator[None]:
    """Lock `directory` in process 0 for all processes. Raise an error in every process if this fails."""
    failure: Exception | None = None
    with ExitStack() as held:
        if distributed.rank() == 0:
            try:
                held.enter_context(hold(directory))
            except (InUseError, OSError) as error:
                failure = error
        if distributed.any_process(failure is not None, device):
            raise failure or console.Failure(f"process 0 cannot lock {directory}")
        yield


def forget(directory: Path, *names: str) -> None:
    """Delete the files of an earlier run in `directory`, so that they cannot be mistaken for those of this run."""
    if console.speaks():
        for name in names:
            (directory / name).unlink(missing_ok=True)
    if distributed.world_size() > 1:
        torch.distributed.barrier()
