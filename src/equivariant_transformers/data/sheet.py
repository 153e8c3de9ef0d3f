"""Contact sheets: images of every class in one picture, drawn with Pillow (in the `train` extra)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from equivariant_transformers.data.imageset import ImageSet
from equivariant_transformers.data.pictures import to_picture

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

SMALLEST_TILE = 64
LINE, GAP, MARGIN = 20, 2, 12
"""Height of a line of text, space between images and space between classes, in pixels."""


def contact_sheet(images: ImageSet, *, side: int = 3) -> Image.Image:
    """Draw the first `side * side` images of every class in a block under the class name.

    Ten classes are arranged as 0 to 4 above 5 to 9. Small images are enlarged by an integer factor.
    """
    from PIL import Image, ImageDraw, ImageFont

    channels, height, width = images.images.shape[1:]
    factor = max(1, SMALLEST_TILE // max(height, width))
    tile = (factor * width, factor * height)
    block = (side * (tile[0] + GAP) + MARGIN, side * (tile[1] + GAP) + MARGIN + LINE)
    across = min(len(images.classes), max(5, round(math.sqrt(2.5 * len(images.classes)))))
    down = math.ceil(len(images.classes) / across)

    sheet = Image.new("RGB", (MARGIN + across * block[0], MARGIN + LINE + down * block[1]), "white")
    draw = ImageDraw.Draw(sheet)
    draw.font = ImageFont.load_default(size=0.75 * LINE)
    title = f"{images.name}: {len(images):,} images of {channels} x {height} x {width} ({images.origin})"
    _write(draw, (MARGIN, MARGIN // 2), title, sheet.width - 2 * MARGIN)
    for label, name in enumerate(images.classes):
        left, top = MARGIN + label % across * block[0], MARGIN + LINE + label // across * block[1]
        _write(draw, (left, top), name, block[0] - MARGIN)
        chosen = (images.labels == label).nonzero()[: side * side, 0]
        for place, image in enumerate(images.images[chosen].cpu()):
            row, column = divmod(place, side)
            corner = (left + column * (tile[0] + GAP), top + LINE + row * (tile[1] + GAP))
            sheet.paste(to_picture(image).resize(tile, Image.Resampling.NEAREST), corner)
    return sheet


def _write(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, width: int) -> None:
    """Write `text` below `corner`. Text wider than `width` is shortened and ends with dots."""
    shown, kept = text, len(text)
    while kept and draw.textlength(shown) > width:
        kept -= 1
        shown = text[:kept] + "..."
    draw.text(corner, shown, fill="black")
