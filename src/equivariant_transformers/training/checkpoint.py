"""Files of tensors with a description, written whole or not at all and read without running code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from equivariant_transformers.data.files import atomic_write

FORMAT = "equivariant_transformers/1"


class CheckpointError(Exception):
    """A file that is not a checkpoint of this library, or not a whole one."""


def write(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write `tensors` and a JSON `description` into one safetensors file.

    The file appears under its name when all of it is on the disk. Until then, and if writing fails, what was there
    before stays.
    """
    from safetensors.torch import save

    header = {"format": FORMAT, "description": json.dumps(description)}
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, header)
    with atomic_write(path) as file:
        file.write(content)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the description of a file that `write` made."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is cut off, damaged or no safetensors file: {error}") from error
    if header.get("format") != FORMAT:
        found = header.get("format", "no format")
        raise CheckpointError(f"{path} was not written by this version of the library: {found}, not {FORMAT}")
    return tensors, json.loads(header["description"])
