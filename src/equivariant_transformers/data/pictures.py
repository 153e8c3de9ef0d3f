"""Pictures of any format as uint8 arrays of one size, read with Pillow (in the `train` extra)."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equivariant_transformers import install

try:
    from PIL import Image, ImageOps, UnidentifiedImageError
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"pictures need Pillow: {install.command('train')}") from missing

from equivariant_transformers.data.files import check_regular

MODES = {1: "L", 3: "RGB"}
"""Pillow modes for one and for three channels."""
LONGEST_SIDE = 1_000_000
"""Largest width or height in pixels. Resizing a longer picture takes gigabytes."""
_BAND = 2**22  # pixels converted at a time
_ORIENTATION, _SIDEWAYS = 0x0112, range(5, 9)  # EXIF tag, and its values for a picture on its side


class PictureError(ValueError):
    """Error for a picture that cannot be used. A damaged file can raise almost any other error as well."""


def read(path: Path, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Read the picture in a file, upright, as an array from `fit`. For an animation, return the first frame.

    Raises an error if the file cannot be read as a picture or has more pixels than Pillow's safety limit. Folders,
    pipes, sockets and devices are not opened.
    """
    check_regular(path)
    return fit(load(path, 2 * max(size)), size, channels)


def measure(path: Path) -> tuple[int, int]:
    """Return the width and the height of the picture in a file, as stored, from its header."""
    check_regular(path)
    with _open(path) as picture:
        return picture.size


def measure_upright(path: Path) -> tuple[int, int]:
    """Return the width and the height of the picture in a file after the rotation by its EXIF tag."""
    check_regular(path)
    with _open(path) as picture:
        width, height = picture.size
        return (height, width) if picture.getexif().get(_ORIENTATION, 1) in _SIDEWAYS else (width, height)


def load(
    file: Path | IO[bytes], enough: int, *, formats: tuple[str, ...] | None = None, most_pixels: float = math.inf
) -> Image.Image:
    """Load the picture in a file, upright. For an animation, return the first frame.

    A JPEG that is wider and higher than `enough` pixels may be returned smaller. `formats` are Pillow's names of the
    allowed formats, by default all. A picture with more than `most_pixels`, or more than Pillow's safety limit, raises
    an error before it is decoded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about unusual metadata of a valid picture
        with _open(file, formats) as picture:
            if picture.format == "EPS":
                raise PictureError("EPS is a program that draws a picture; save the picture as PNG")
            if max(picture.size) > LONGEST_SIDE:
                raise PictureError(
                    f"it has {picture.width} x {picture.height} pixels; a side has at most {LONGEST_SIDE:,}"
                )
            if picture.width * picture.height > most_pixels:
                raise PictureError(f"it has {picture.width} x {picture.height} pixels, more than {most_pixels:,.0f}")
            picture.draft(None, (enough, enough))  # a large JPEG need not be decoded in full
            return ImageOps.exif_transpose(picture)


def _open(file: Path | IO[bytes], formats: tuple[str, ...] | None = None) -> Image.Image:
    """Open a picture without decoding it. Raise an error for a picture that exceeds Pillow's safety limit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return Image.open(file, formats=formats)
        except UnidentifiedImageError:
            raise PictureError("not an image") from None
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as bomb:
            raise PictureError(str(bomb)) from None


def fit(picture: Image.Image, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Return a picture as uint8 `(channels, height, width)`, resized with its aspect ratio kept, centred and padded.

    The padding repeats the border pixels: a black bar would be an edge that decides the pose of a layer. Transparent
    pixels are composited onto black.
    """
    picture = _plain(picture, MODES[channels])
    left, top, right, bottom = place(picture.size, size)
    inner = (right - left, bottom - top)
    pixels = np.asarray(picture.resize(inner, Image.Resampling.BICUBIC)).reshape(inner[1], inner[0], channels)
    margins = ((top, size[0] - bottom), (left, size[1] - right), (0, 0))
    return np.pad(pixels, margins, mode="edge").transpose(2, 0, 1)


def place(original: tuple[int, int], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a picture of (width, height) `original` in an image of (height, width).

    >>> place((80, 40), (32, 32))
    (0, 8, 32, 24)
    """
    (width, height), (rows, columns) = original, size
    scale = min(rows / height, columns / width)
    across, down = max(1, round(scale * width)), max(1, round(scale * height))
    left, top = (columns - across) // 2, (rows - down) // 2
    return left, top, left + across, top + down


def _plain(picture: Image.Image, mode: str) -> Image.Image:
    """Convert a picture to `mode` without transparency. Large pictures are converted in bands to save memory."""
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
    """Convert a tensor `(C, H, W)` or an array `(H, W, C)`, or `(H, W)`, of uint8 or floats from 0 to 1.

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
        raise ValueError(
            f"an image must be a tensor (C, H, W) or an array (H, W, C) of 1, 3 or 4 channels, got {given}"
        )
    if np.issubdtype(values.dtype, np.floating):
        if not (values.min() >= 0 and values.max() <= 1):
            raise ValueError(
                f"floating-point images must be from 0 to 1, got {values.min()} to {values.max()}; "
                "leave normalisation to the ImageSet"
            )
        values = (255 * values).round().astype(np.uint8)
    if values.dtype != np.uint8:
        raise ValueError(f"images must be uint8 or floating point, got {values.dtype}")
    return Image.fromarray(np.ascontiguousarray(values))


def eight_bits(picture: Image.Image) -> Image.Image:
    """Convert a picture to 8 bits per channel."""
    if picture.mode == "F":
        raise PictureError("its values are floating point of unknown range; save it with 8 or 16 bits")
    if not picture.mode.startswith("I"):
        return picture
    values = np.asarray(picture).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise PictureError(f"its values run from {values.min()} to {values.max()}; save it with 8 or 16 bits")
    return Image.fromarray((values // 257).astype(np.uint8))


def opaque(picture: Image.Image, background: str = "black") -> Image.Image:
    """Composite a transparent picture onto the colour `background`."""
    if not picture.has_transparency_data:
        return picture
    return Image.alpha_composite(Image.new("RGBA", picture.size, background), picture.convert("RGBA"))
