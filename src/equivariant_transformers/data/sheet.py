"""Contact sheets: images of every class in one picture, drawn with Pillow (in the `train` extra)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from equivariant_transformers.data import pictures
from equivariant_transformers.data.gathering import PictureFiles
from equivariant_transformers.data.imageset import ImageSet
from equivariant_transformers.data.stored import Stored

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

SMALLEST_TILE = 64
LINE, CAPTION, GAP, MARGIN = 20, 14, 2, 12
"""Height of a line of text and of a caption, space between images and space between classes, in pixels."""
LEGEND = "below: height x width of the file; hatched: padding with its border pixels"
MOST_CLASSES = 50
"""Maximum number of classes on a sheet."""
_PADDING, _HATCH = "#e6007e", 6  # colour, and distance of the lines in pixels


def contact_sheet(images: ImageSet, *, side: int = 3) -> Image.Image:
    """Draw the first `side * side` images of each of the first 50 classes in a block under the class name.

    If the labels are rows of numbers, a block has the images with the largest numbers of a column.
    Ten classes are arranged as 0 to 4 above 5 to 9. Small images are enlarged by an integer factor. Images that are
    streamed from files get their original height and width as a caption, and hatched padding.
    """
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    channels, height, width = images.images.shape[1:]
    classes = images.classes[:MOST_CLASSES]
    factor = max(1, SMALLEST_TILE // max(height, width))
    tile = (factor * width, factor * height)
    caption = CAPTION if _files(images) else 0
    block = (side * (tile[0] + GAP) + MARGIN, side * (tile[1] + caption + GAP) + MARGIN + LINE)
    across = min(len(classes), max(5, round(math.sqrt(2.5 * len(classes)))))
    down = math.ceil(len(classes) / across)
    some = f", {len(classes)} of {len(images.classes):,} classes" if len(classes) < len(images.classes) else ""
    title = f"{images.name}: {len(images):,} images of {channels} x {height} x {width} ({images.origin}){some}"
    title += ", largest numbers first" if images.labels.ndim == 2 else ""
    letters = Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")  # Pillow's own font has no accents
    font, small = (ImageFont.truetype(letters, size=0.7 * size) for size in (LINE, CAPTION))
    lines = [title, LEGEND] if caption else [title]
    head = MARGIN + LINE * len(lines)
    least = math.ceil(max(map(font.getlength, lines))) + 2 * MARGIN if caption else 0
    sheet = Image.new("RGB", (max(MARGIN + across * block[0], least), head + down * block[1]), "white")
    draw = ImageDraw.Draw(sheet)
    draw.font = font
    for number, line in enumerate(lines):
        _write(draw, (MARGIN, MARGIN // 2 + LINE * number), line, sheet.width - 2 * MARGIN)
    for label, name in enumerate(classes):
        left, top = MARGIN + label % across * block[0], head + label // across * block[1]
        _write(draw, (left, top), name, block[0] - MARGIN)
        for place, index in enumerate(_examples(images, label)[: side * side].tolist()):
            row, column = divmod(place, side)
            corner = (left + column * (tile[0] + GAP), top + LINE + row * (tile[1] + caption + GAP))
            shown = pictures.to_picture(images.images[index].cpu()).convert("RGB")
            shown = shown.resize(tile, Image.Resampling.NEAREST)
            if original := _original(images, index):
                _hatch(shown, [factor * edge for edge in pictures.place(original, (height, width))])
                draw.font = small
                _write(draw, (corner[0], corner[1] + tile[1]), f"{original[1]} x {original[0]}", tile[0])
                draw.font = font
            sheet.paste(shown, corner)
    return sheet


def _examples(images: ImageSet, label: int) -> Tensor:
    """Return the indices of the images of a class, or of all images by falling numbers of a column."""
    if images.labels.ndim == 2:
        return images.labels[:, label].argsort(descending=True, stable=True)
    return (images.labels == label).nonzero()[:, 0]


def _files(images: ImageSet) -> PictureFiles | None:
    source = images.images.source if isinstance(images.images, Stored) else None
    return source if isinstance(source, PictureFiles) else None


def _original(images: ImageSet, index: int) -> tuple[int, int] | None:
    """Return the width and the height of the picture in the file of an image, if it has one."""
    files = _files(images)
    if files is None or not isinstance(images.images, Stored):
        return None
    return pictures.measure_upright(files.files[int(images.images.places[index])][0])


def _hatch(picture: Image.Image, box: list[int]) -> None:
    """Draw diagonal lines over everything outside `box`, and the edges of `box` that are not those of `picture`."""
    from PIL import ImageDraw

    left, top, right, bottom = box
    width, height = picture.size
    inside = picture.crop((left, top, right, bottom))
    draw = ImageDraw.Draw(picture)
    if inside.size == picture.size:
        return
    for start in range(-height, width, _HATCH):
        draw.line((start, height, start + height, 0), fill=_PADDING)
    picture.paste(inside, (left, top))
    if left or right < width:
        draw.line((left, 0, left, height), fill=_PADDING)
        draw.line((right - 1, 0, right - 1, height), fill=_PADDING)
    if top or bottom < height:
        draw.line((0, top, width, top), fill=_PADDING)
        draw.line((0, bottom - 1, width, bottom - 1), fill=_PADDING)


def _write(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, width: int) -> None:
    """Write `text` below `corner`. Text wider than `width` is shortened and ends with dots."""
    shown, kept = text, len(text)
    while kept and draw.textlength(shown) > width:
        kept -= 1
        shown = text[:kept] + "..."
    draw.text(corner, shown, fill="black")
