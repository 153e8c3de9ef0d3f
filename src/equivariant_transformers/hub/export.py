"""Networks as files for programs that do not have this library: ONNX, and programs of `torch.export`.

A file is written only after what it computes has been compared with the network itself, on the CPU and for batches of
other sizes than the one it was traced with.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.nn.canonicalization import Canonicalization
from equivariant_transformers.text import quote

OPSET = 18
"""The version of the ONNX operators."""
TOLERANCE = 1e-4
"""By how much a result may differ from the network's own."""

_TRACED = 2  # images; a batch of 1 would be taken for a constant
_CHECKED = (1, 5)  # images


class ExportError(RuntimeError):
    """An exported network that does not compute what the original does."""


class _Tensors(nn.Module):
    """A network whose result is a tensor, or the canonical image, pose and confidence of a layer or a stack."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        result: Tensor | Canonicalization = self.module(images)
        return result if isinstance(result, Tensor) else (result.image, result.pose, result.confidence)


def to_onnx(module: nn.Module, path: str | Path, images: Tensor | None = None) -> float:
    """Write `module` as an ONNX file that takes `images` in batches of any size, and return the largest difference.

    Args:
        module: a `Classifier`, whose output is `logits`; a layer or a `Canonicalizer`, with the outputs `image`, `pose`
            and `confidence`; or any other module that makes one tensor of images, `output`.
        path: where the file appears when its results agree with the module's; an `ExportError` is raised if not.
        images: some images `(B, C, H, W)` that the module takes; a classifier needs none.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (the exporter of torch needs it)
    except ModuleNotFoundError as missing:
        advice = "pip install 'equivariant-transformers[export]'"
        raise ModuleNotFoundError(f"ONNX export needs {missing.name}: {advice}") from missing
    path = _checked(path)
    network, images = _prepare(module, images)
    program = _trace(network, images)
    with _quiet_exporter():
        exported = torch.onnx.export(
            program,
            (),
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=_output_names(network, images),
            dynamic_shapes={"images": {0: "batch"}},  # the name of the axis
            verbose=False,
        )
    assert exported is not None
    exported.model.metadata_props.update(_description(module))
    content = exported.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    difference = _compare(network, lambda batch: session.run(None, {"images": batch.numpy()}), images)
    with atomic_write(path) as file:
        file.write(content)
    return difference


def to_program(module: nn.Module, path: str | Path, images: Tensor | None = None) -> float:
    """Write `module` as a program of `torch.export` that takes batches of any size, and return the largest difference.

    The arguments are those of `to_onnx`. `torch.export.load(path).module()` runs it without this library.
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


def _checked(path: str | Path) -> Path:
    """The file to write: an error before the export is better than one after it."""
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
    """A copy of `module` as it is exported, on the CPU and in evaluation mode, and images for it."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"only a module can be exported, got {quote(module)}")
    if images is None:
        if not isinstance(module, Classifier):
            raise ValueError(f"a {type(module).__name__} can take images of any kind: give some, (B, C, H, W)")
        images = (255 * blobs(max(_CHECKED), module.card.in_channels, module.card.size)).to(torch.uint8)
    if not isinstance(images, Tensor) or images.layout != torch.strided or images.is_meta:
        raise TypeError(f"an export takes images as a dense tensor with values, got {quote(images)}")
    if images.ndim != 4 or not images.numel():
        raise ValueError(f"an export takes images (B, C, H, W), at least one; got shape {tuple(images.shape)}")
    images = torch.cat([images.detach().cpu()] * max(_CHECKED))  # enough of them, however few were given
    return _Tensors(copy.deepcopy(module).cpu().eval()), images


def blobs(count: int, channels: int, size: tuple[int, int]) -> Tensor:
    """Random images `(count, channels, *size)` from 0 to 1: three bright blobs on black in each.

    Networks see something in them. Of noise, the pose is a matter of rounding, and so would be any comparison.
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
    return ["logits" if isinstance(network.module, Classifier) else "output"]


def _description(module: nn.Module) -> dict[str, str]:
    """What goes with the file: a classifier's card, with its classes."""
    return {"card": json.dumps(module.card.to_dict())} if isinstance(module, Classifier) else {}


@torch.no_grad()
def _compare(network: _Tensors, exported: Callable[[Tensor], Any], images: Tensor) -> float:
    """The largest difference between the results of both, in batches of several sizes."""
    differences = []
    for count in _CHECKED:
        batch = images[-count:]
        results = zip(_as_list(network(batch)), map(torch.as_tensor, _as_list(exported(batch))), strict=True)
        for expected, found in results:
            if found.shape != expected.shape:
                shapes = f"{tuple(found.shape)} instead of {tuple(expected.shape)}"
                raise ExportError(f"the exported network makes {shapes} of {count} images; nothing was written")
            differences.append((found - expected).abs().max())
    largest = float(torch.stack(differences).max())
    if not largest <= TOLERANCE:  # NaN too
        raise ExportError(
            f"the exported network differs from the network itself by {largest:.1e}, more than {TOLERANCE:.0e}; "
            "nothing was written"
        )
    return largest


def _as_list(result: Tensor | Sequence[Any]) -> Sequence[Any]:
    return [result] if isinstance(result, Tensor) else result


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without what the exporter tells developers of torch: that torchvision is not there, and its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
