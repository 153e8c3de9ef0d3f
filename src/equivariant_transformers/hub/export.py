"""Export of networks to ONNX and `torch.export`, for use without this library.

A file is written only if its outputs agree with those of the network itself, on the CPU and for batch sizes other than
the traced one.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers import install
from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.text import quote

OPSET = 18
"""Version of the ONNX operators."""
TOLERANCE = 1e-4
"""Largest allowed difference between an output of the file and of the network itself."""

_TRACED = 2  # batch size; a size of 1 would be exported as a constant
_CHECKED = (1, 5)  # batch sizes


class ExportError(RuntimeError):
    """Error for an exported network whose outputs differ from those of the original network."""


class _Tensors(nn.Module):
    """Network that returns a tensor, or the canonical image, pose and confidence of a layer or a stack."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        result: Tensor | Canonicalization = self.module(images)
        return result if isinstance(result, Tensor) else (result.image, result.pose, result.confidence)


def to_onnx(module: nn.Module, path: str | Path, images: Tensor | None = None) -> float:
    """Write `module` as an ONNX file for batches of any size, and return the largest difference of the outputs.

    Args:
        module: a `Classifier`, with the output `logits`, or `values` for regression; a layer or a `Canonicalizer`, with
            the outputs `image`, `pose` and `confidence`; or any other module that maps images to one tensor, with the
            output `output`.
        path: path of the file. If its outputs differ from the module's, an `ExportError` is raised instead.
        images: example images `(B, C, H, W)` for the module; not needed for a classifier.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (the exporter of torch needs it)
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(f"ONNX export needs {missing.name}: {install.command('export')}") from missing
    path = _checked(path)
    network, images = _prepare(module, images)
    content = serialise(
        _trace(network, images),
        input_names=["images"],
        output_names=_output_names(network, images),
        dynamic_shapes={"images": {0: "batch"}},  # name of the axis
        description=_description(module),
    )
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    difference = _compare(network, lambda batch: session.run(None, {"images": batch.numpy()}), images)
    with atomic_write(path) as file:
        file.write(content)
    return difference


def to_program(module: nn.Module, path: str | Path, images: Tensor | None = None) -> float:
    """Write `module` as a `torch.export` program for batches of any size, and return the largest difference.

    The arguments are those of `to_onnx`. `torch.export.load(path).module()` runs the program without this library.
    """
    path = _checked(path)
    network, images = _prepare(module, images)
    buffer = io.BytesIO()
    description = {f"{name}.json": text for name, text in _description(module).items()}
    torch.export.save(_trace(network, images), buffer, extra_files=description)
    buffer.seek(0)
    difference = _compare(network, torch.export.load(buffer).module(), images)
    with atomic_write(path) as file:
        file.write(buffer.getvalue())
    return difference


def serialise(
    program: torch.export.ExportedProgram,
    *,
    input_names: list[str],
    output_names: list[str],
    dynamic_shapes: dict[str, Any] | None = None,
    description: Mapping[str, str] | None = None,
) -> bytes:
    """Return a traced program as the content of an ONNX file, with `description` as its metadata.

    The exporter notes the stack trace of every operation. The notes are removed: they are as large as the weights of a
    small network, and name folders of this machine.
    """
    with _quiet_exporter():
        exported = torch.onnx.export(
            program,
            (),
            dynamo=True,
            opset_version=OPSET,
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=dynamic_shapes,
            verbose=False,
        )
    assert exported is not None
    exported.model.metadata_props.update(description or {})
    content = exported.model_proto
    for graph in (content.graph, *content.functions):
        for node in graph.node:
            del node.metadata_props[:]
    serialised: bytes = content.SerializeToString()
    return serialised


def _checked(path: str | Path) -> Path:
    """Return the file to write, or raise an error before the export starts."""
    if not isinstance(path, (str, os.PathLike)) or not Path(path).name or "\0" in str(path):
        raise ValueError(f"an export needs the path of a file to write, got {quote(path)}")
    file = Path(path)
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is not a regular file, so it cannot be replaced: choose another path")
    nearest = next(folder for folder in file.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise ValueError(f"{file} cannot be written, because {nearest} is a file: choose another folder")
    return file


def _prepare(module: nn.Module, images: Tensor | None) -> tuple[_Tensors, Tensor]:
    """Return a copy of `module` for export, on the CPU and in evaluation mode, and images for it."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"only a module can be exported, got {quote(module)}")
    if images is None:
        if not isinstance(module, Classifier):
            raise ValueError(
                f"the export of a {type(module).__name__} needs example images (B, C, H, W); pass them as images"
            )
        images = (255 * blobs(max(_CHECKED), module.card.in_channels, module.card.size)).to(torch.uint8)
    if not isinstance(images, Tensor) or images.layout != torch.strided or images.is_meta:
        raise TypeError(f"an export takes images as a dense tensor with values, got {quote(images)}")
    if images.ndim != 4 or not images.numel():
        raise ValueError(f"an export takes images (B, C, H, W), at least one; got shape {tuple(images.shape)}")
    images = torch.cat([images.detach().cpu()] * max(_CHECKED))  # enough for each batch size
    return _Tensors(copy.deepcopy(module).cpu().eval()), images


def blobs(count: int, channels: int, size: tuple[int, int]) -> Tensor:
    """Return random images `(count, channels, *size)` from 0 to 1, each with three bright blobs on black.

    The pose of blobs is well defined. The pose of noise depends on rounding, so that outputs could not be compared.
    """
    random = torch.rand(count, channels, 3, 4, 1, 1, generator=torch.Generator().manual_seed(0))
    x, y, width, height = random.unbind(3)
    across, down = (torch.linspace(-1, 1, pixels) for pixels in (size[1], size[0]))
    distance = (across - (1.2 * x - 0.6)).square() + (down[:, None] - (1.2 * y - 0.6)).square()
    return ((0.3 + 0.7 * height) * torch.exp(-distance / (0.2 + 0.2 * width).square())).amax(2)


def _trace(network: _Tensors, images: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(
            network, (images[:_TRACED],), dynamic_shapes={"images": {0: torch.export.Dim("batch")}}
        )


def _output_names(network: _Tensors, images: Tensor) -> list[str]:
    with torch.no_grad():
        one = isinstance(network(images[:1]), Tensor)
    if not one:
        return ["image", "pose", "confidence"]
    return [network.module.task.output if isinstance(network.module, Classifier) else "output"]


def _description(module: nn.Module) -> dict[str, str]:
    """Return the metadata of the file: a classifier's card, with its classes."""
    return {"card": json.dumps(module.card.to_dict())} if isinstance(module, Classifier) else {}


@torch.no_grad()
def _compare(network: _Tensors, exported: Callable[[Tensor], Any], images: Tensor) -> float:
    """Return the largest difference between the outputs of both, over several batch sizes; relative for values."""
    values = isinstance(network.module, Classifier) and network.module.task.standardised  # of any magnitude
    differences = []
    for count in _CHECKED:
        batch = images[-count:]
        results = zip(_as_list(network(batch)), map(torch.as_tensor, _as_list(exported(batch))), strict=True)
        for expected, found in results:
            if found.shape != expected.shape:
                shapes = f"{tuple(found.shape)} instead of {tuple(expected.shape)}"
                raise ExportError(
                    f"the exported network returns shape {shapes} for {count} images; nothing was written"
                )
            scale = expected.abs().clamp_min(1) if values else torch.ones(())
            differences.append(((found - expected).abs() / scale).max())
    largest = float(torch.stack(differences).max())
    if not largest <= TOLERANCE:  # also if NaN
        raise ExportError(
            f"the exported network differs from the network itself by {largest:.1e}, more than {TOLERANCE:.0e}; "
            "nothing was written"
        )
    return largest


def _as_list(result: Tensor | Sequence[Any]) -> Sequence[Any]:
    return [result] if isinstance(result, Tensor) else result


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's messages to developers of torch: missing torchvision, and its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
