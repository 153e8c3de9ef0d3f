"""Pictures of every kind as bytes of one size, read with Pillow (in the `train` extra)."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

try:
    from PIL import Image, ImageOps, UnidentifiedImageError
except ModuleNotFoundError as missing:
    message = "pictures need Pillow: pip install 'equivariant-transformers[train]'"
    raise ModuleNotFoundError(message) from missing

from equivariant_transformers.data.files import check_regular

MODES = {1: "L", 3: "RGB"}
"""Pillow's name for pictures of one and of three channels."""
LONGEST_SIDE = 1_000_000
"""Pixels across or down, beyond which a picture is refused: to resize a longer one takes gigabytes."""
_BAND = 2**22  # pixels that are converted at a time


class PictureError(ValueError):
    """Says why a picture cannot be used. Damaged files can raise almost anything else as well."""


def read(path: Path, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """The picture in a file as `fit` gives it, upright, the first one of an animation.

    Whatever cannot be read as a picture raises, and so does one with more pixels than Pillow thinks safe. What is not a
    file but a folder, a pipe, a socket or a device is not opened.
    """
    check_regular(path)
    return fit(load(path, 2 * max(size)), size, channels)


def load(
    file: Path | IO[bytes], enough: int, *, formats: tuple[str, ...] | None = None, most_pixels: float = math.inf
) -> Image.Image:
    """The picture in a file, upright, the first one of an animation.

    A JPEG that is larger than `enough` pixels across and down may come smaller. `formats`, by default all, are Pillow's
    names of those that may be read. More than `most_pixels`, or than Pillow thinks safe, raise before they are decoded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata, while the picture is sound
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            opened = Image.open(file, formats=formats)
        except UnidentifiedImageError:
            raise PictureError("not an image") from None
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as bomb:
            raise PictureError(str(bomb)) from None
        with opened as picture:
            if picture.format == "EPS":
                raise PictureError("EPS is a program that draws a picture; save it as PNG")
            if max(picture.size) > LONGEST_SIDE:
                raise PictureError(f"its {picture.width} x {picture.height} pixels are more than {LONGEST_SIDE:,} long")
            if picture.width * picture.height > most_pixels:
                raise PictureError(f"its {picture.width} x {picture.height} pixels are more than {most_pixels:,.0f}")
            picture.draft(None, (enough, enough))  # a large JPEG need not be decoded in full
            return ImageOps.exif_transpose(picture)


def fit(picture: Image.Image, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """A picture as bytes `(channels, height, width)`: resized with its shape kept, and centred on black.

    What is transparent becomes black as well.
    """
    picture = _plain(picture, MODES[channels])
    height, width = size
    scale = min(height / picture.height, width / picture.width)
    inner = (max(1, round(scale * picture.width)), max(1, round(scale * picture.height)))
    picture = picture.resize(inner, Image.Resampling.BICUBIC)
    canvas = Image.new(MODES[channels], (width, height))
    canvas.paste(picture, ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return np.asarray(canvas).reshape(height, width, channels).transpose(2, 0, 1)


def _plain(picture: Image.Image, mode: str) -> Image.Image:
    """A picture in `mode`, without transparency. Large ones are converted in bands: the steps between take memory."""
    rows = max(1, _BAND // picture.width)
    if picture.mode == mode and not picture.has_transparency_data:
        return picture
    if picture.height <= rows:
        return opaque(eight_bits(picture)).convert(mode)
    plain = Image.new(mode, picture.size)
    for top in range(0, picture.height, rows):
        band = picture.crop((0, top, picture.width, min(top + rows, picture.height)))
        plain.paste(opaque(eight_bits(band)).convert(mode), (0, top))
    return plain


def to_picture(image: Image.Image | Tensor | NDArray[Any]) -> Image.Image:
    """A picture from a tensor `(C, H, W)` or an array `(H, W, C)`, or `(H, W)`, of bytes or from 0 to 1.

    >>> to_picture(torch.ones(3, 4, 5)).size, to_picture(np.zeros((4, 5), np.uint8)).mode
    ((5, 4), 'L')
    """
    if isinstance(image, Image.Image):
        return image
    values = np.asarray(image)
    if values.ndim == 3:
        values = values.transpose(1, 2, 0) if isinstance(image, torch.Tensor) else values
        values = values[..., 0] if values.shape[-1] == 1 else values
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[-1] not in (3, 4)):
        given = f"a tensor of shape {tuple(image.shape)}" if isinstance(image, torch.Tensor) else f"{values.shape}"
        raise ValueError(f"an image is a tensor (C, H, W) or an array (H, W, C) with 1, 3 or 4 channels, got {given}")
    if np.issubdtype(values.dtype, np.floating):
        if not (values.min() >= 0 and values.max() <= 1):
            raise ValueError(
                f"images of floating point run from 0 to 1, got {values.min()} to {values.max()}; "
                "leave normalisation to the ImageSet"
            )
        values = (255 * values).round().astype(np.uint8)
    if values.dtype != np.uint8:
        raise ValueError(f"images are uint8 or floating point, got {values.dtype}")
    return Image.fromarray(np.ascontiguousarray(values))


def eight_bits(picture: Image.Image) -> Image.Image:
    """A picture with 8 bits a channel."""
    if picture.mode == "F":
        raise PictureError("its values are floating point of unknown range; save it with 8 or 16 bits")
    if not picture.mode.startswith("I"):
        return picture
    values = np.asarray(picture).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise PictureError(f"its values run from {values.min()} to {values.max()}; save it with 8 or 16 bits")
    return Image.fromarray((values // 257).astype(np.uint8))


def opaque(picture: Image.Image, background: str = "black") -> Image.Image:
    """A picture without transparency: the background is seen there."""
    if not picture.has_transparency_data:
        return picture
    return Image.alpha_composite(Image.new("RGBA", picture.size, background), picture.convert("RGBA"))
