"""Conversion of drawings and uploads to digits like those of MNIST (white on black, centred) and to photographs."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from equivariant_transformers.data import pictures
from equivariant_transformers.data.pictures import PictureError
from equivariant_transformers.demo.photographs import to_photograph

MOST_BYTES = 10 * 2**20
MOST_PIXELS = 50_000_000
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
"""Formats that Pillow may decode. Its other decoders are less tested, and one of them starts another program."""

SIDE, INK = 28, 20
"""Side in pixels of an image of MNIST, and the longer side of its digit."""
_ENOUGH = 512  # longer side in pixels that a photograph is reduced to
_FAINT = 0.2  # pixels below this share of the brightest pixel are background
_CONTRAST = 24  # minimum contrast between ink and paper, in levels of 255


def read(data: bytes) -> Tensor:
    """Return the picture in an image file as a digit `(28, 28)` of bytes. Raises `PictureError` only."""
    return _converted(data, lambda picture: to_digit(_grey(picture)))


def read_photograph(data: bytes) -> Tensor:
    """Return the picture in an image file as a photograph `(3, 192, 192)` of bytes. Raises `PictureError` only."""
    return _converted(data, to_photograph)


def read_drawing(url: object) -> Tensor:
    """Return the PNG in a data URL, which the page sends for a drawing, as a digit `(28, 28)` of bytes."""
    return read(_decoded(url, "drawing"))


def read_frame(url: object) -> Tensor:
    """Return the PNG in a data URL, which the page sends for a frame of a camera, as a photograph of bytes."""
    return read_photograph(_decoded(url, "frame"))


def _converted(data: bytes, convert: Callable[[Image.Image], Tensor]) -> Tensor:
    if not data:
        raise PictureError("the file is empty")
    if len(data) > MOST_BYTES:
        raise PictureError(f"the file is larger than {MOST_BYTES // 2**20} MB")
    try:
        return convert(pictures.load(io.BytesIO(data), 2 * _ENOUGH, formats=FORMATS, most_pixels=MOST_PIXELS))
    except PictureError:
        raise
    except Exception:  # a damaged file can make a decoder raise almost anything
        raise PictureError("the file is damaged") from None


def _decoded(url: object, what: str) -> bytes:
    kind, _, code = str(url)[: 2 * MOST_BYTES].partition(",")
    if kind != "data:image/png;base64":
        raise PictureError(f"the {what} is not a PNG")
    try:
        return base64.b64decode(code, validate=True)
    except ValueError:  # characters that are not base64 or not ASCII
        raise PictureError(f"the {what} is damaged") from None


def samples() -> Tensor:
    """Return ten digits of MNIST's test set, 0 to 9: `(10, 28, 28)` of bytes."""
    with Image.open(Path(__file__).with_name("samples.png")) as strip:
        return torch.tensor(np.asarray(strip)).unfold(1, SIDE, SIDE).transpose(0, 1).contiguous()


def to_digit(grey: NDArray[np.uint8]) -> Tensor:
    """Convert a grey picture `(height, width)` to a digit: white on black, 20 pixels long, centred by mass.

    If the border of the picture is bright, the digit is assumed to be dark.

    >>> paper = np.full((90, 60), 250, np.uint8)
    >>> paper[20:60, 30:34] = 10  # a stroke, 40 pixels high
    >>> digit = to_digit(paper)
    >>> (digit > 127).any(1).sum(), (digit > 127).any(0).sum(), digit[0].max()
    (tensor(20), tensor(2), tensor(0, dtype=torch.uint8))
    """
    border = np.concatenate((grey[0], grey[-1], grey[:, 0], grey[:, -1]))
    background = float(np.median(border))
    ink = (background - grey if background > 127 else grey - background).clip(0)
    if ink.max() < _CONTRAST:
        raise PictureError("it has too little contrast")
    strong = ink > _FAINT * ink.max()
    rows, columns = np.flatnonzero(strong.any(1)), np.flatnonzero(strong.any(0))
    cropped = (255 / ink.max() * np.where(strong, ink, 0))[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = INK / max(cropped.shape)
    size = (max(1, round(scale * cropped.shape[1])), max(1, round(scale * cropped.shape[0])))
    small = np.asarray(Image.fromarray(cropped.astype(np.uint8)).resize(size, Image.Resampling.BOX))
    digit = np.zeros((SIDE, SIDE), np.uint8)
    top, left = (_place(small.sum(axis), extent) for axis, extent in ((1, size[1]), (0, size[0])))
    digit[top : top + size[1], left : left + size[0]] = small
    return torch.tensor(digit)


def _grey(picture: Image.Image) -> NDArray[np.uint8]:
    """Return a picture in grey, at most 512 pixels long, on white if it is transparent and dark, else on black."""
    picture = pictures.eight_bits(picture)
    if picture.has_transparency_data:
        values = np.asarray(picture.convert("LA"))
        seen = values[..., 1] > 127
        dark = seen.any() and values[seen][:, 0].mean() < 128
        picture = pictures.opaque(picture, "white" if dark else "black")
    picture = picture.convert("L")
    picture.thumbnail((_ENOUGH, _ENOUGH))
    return np.asarray(picture)


def _place(profile: NDArray[np.int64], extent: int) -> int:
    """Return the offset that centres the mass of a profile in the image, as far as there is room."""
    centre = (profile * np.arange(extent)).sum() / max(1, profile.sum())
    return int(min(max(round((SIDE - 1) / 2 - centre), 0), SIDE - extent))
