"""Files of tensors with a description, written atomically and read without executing code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equivariant_transformers.data.files import atomic_write

FORMAT = "equivariant_transformers/1"


class CheckpointError(Exception):
    """Error for a file that is not a checkpoint of this library, is damaged, or belongs to another run."""


def write(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write `tensors` and a JSON `description` into one safetensors file, with a checksum of both.

    The file appears under its name once it is complete on the disk. Until then, and if writing fails, the previous
    file remains.
    """
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(description)
    content = save(tensors, {"format": FORMAT, "description": text, "checksum": _checksum(tensors, text)})
    with atomic_write(path) as file:
        file.write(content)


def read(path: Path, *, needs_checksum: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors (on the CPU) and the description of a file that `write` has written.

    Raises:
        CheckpointError: if the file was not written by `write`, or if its content does not match its checksum. Files
            of version 0.1 have no checksum and are read without this check, unless `needs_checksum`.
    """
    from safetensors import SafetensorError, safe_open

    if path.is_dir():
        raise CheckpointError(f"{path} is a folder; give the file in it, such as {path / 'model.safetensors'}")
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is cut off, damaged or not a safetensors file: {error}") from error
    if header.get("format") != FORMAT:
        found = header.get("format", "no format")
        raise CheckpointError(f"{path} was not written by this version of the library: {found}, not {FORMAT}")
    text = header.get("description", "")
    if (needs_checksum or "checksum" in header) and header.get("checksum") != _checksum(tensors, text):
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum")
    try:
        description = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: its description is not JSON ({error})") from error
    if not isinstance(description, dict):
        kind = type(description).__name__
        raise CheckpointError(f"{path} is damaged: its description is a JSON {kind}, not an object")
    return tensors, description


def _checksum(tensors: dict[str, Tensor], description: str) -> str:
    """Return a hash of the description and of the names, types, shapes and bytes of contiguous CPU `tensors`."""
    layout = [(name, str(tensors[name].dtype), list(tensors[name].shape)) for name in sorted(tensors)]
    digest = hashlib.sha256(json.dumps([description, layout]).encode())
    for name, _, _ in layout:
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
