"""Every file that a person may upload gives a digit or a message, and the digit is placed as MNIST's are."""

import base64
import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from equivariant_transformers.data.pictures import PictureError
from equivariant_transformers.demo import photographs, uploads


def paper(height=90, width=70):
    """A dark L with a thick foot on bright paper."""
    values = np.full((height, width), 235, np.uint8)
    values[15:65, 20:28] = 20
    values[55:65, 20:50] = 20
    return values


def file(picture, kind, **options):
    data = io.BytesIO()
    picture.save(data, kind, **options)
    return data.getvalue()


def palette():
    picture = Image.fromarray(paper()).convert("P")
    picture.info["transparency"] = int(np.asarray(picture)[0, 0])
    return file(picture, "PNG", transparency=picture.info["transparency"])


def turned():
    """The picture lying on its side, with the note that it is to be turned back."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return file(Image.fromarray(np.rot90(paper()).copy()), "PNG", exif=exif)


def see_through(ink, paper_colour):
    values = np.zeros((90, 70, 4), np.uint8)
    values[...] = (*paper_colour, 0)
    values[paper() < 100] = (*ink, 255)
    return file(Image.fromarray(values), "PNG")


GREY = Image.fromarray(paper())
GOOD = {
    "grey": file(GREY, "PNG"),
    "colour": file(GREY.convert("RGB"), "BMP"),
    "photograph": file(GREY.resize((700, 900)), "JPEG", quality=95),
    "cmyk": file(GREY.convert("CMYK"), "JPEG", quality=95),
    "white on black": file(Image.fromarray(255 - paper()), "PNG"),
    "16 bits": file(Image.fromarray(paper().astype(np.uint16) * 257), "PNG"),
    "one bit": file(Image.fromarray(paper() > 100), "PNG"),
    "palette with transparency": palette(),
    "dark on nothing": see_through((10, 10, 10), (0, 0, 0)),
    "bright on nothing": see_through((250, 250, 250), (255, 255, 255)),
    "turned": turned(),
    "animated": file(GREY, "GIF", save_all=True, append_images=[Image.new("L", GREY.size, 235)] * 2),
    "webp": file(GREY, "WEBP", quality=95),
    "tiff": file(GREY, "TIFF"),
}


@pytest.mark.parametrize("name", GOOD)
def test_every_kind_of_picture_gives_the_same_digit(name):
    digit, expected = uploads.read(GOOD[name]).float(), uploads.to_digit(paper()).float()
    assert digit.shape == (28, 28)
    assert (digit - expected).abs().mean() < 8


def bomb(width=60_000, height=60_000):
    """A PNG of a few bytes that promises more pixels than any picture has."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="28" height="28"><path d="M5 5h9"/></svg>'
BAD = {
    "empty": (b"", "empty"),
    "text": (b"seven\n" * 40, "not an image"),
    "svg": (SVG, "not an image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    "truncated png": (file(GREY.resize((300, 300)), "PNG")[:400], "damaged"),
    "truncated jpeg": (GOOD["photograph"][:2000], "damaged"),
    "header only": (GOOD["grey"][:20], "damaged|not an image"),
    "bomb": (bomb(), "pixels"),
    "many pixels": (bomb(8000, 7000), "8000 x 7000 pixels, more than 50,000,000"),
    "many bytes": (bytes(uploads.MOST_BYTES + 1), "larger than 10 MB"),
    "one colour": (file(Image.new("RGB", (50, 50), "red"), "PNG"), "too little contrast"),
    "all transparent": (file(Image.new("RGBA", (50, 50), (0, 0, 0, 0)), "PNG"), "too little contrast"),
    "floating point": (file(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), "floating point"),
}


@pytest.mark.parametrize("name", BAD)
def test_every_bad_file_gives_a_reason(name):
    data, reason = BAD[name]
    with pytest.raises(PictureError, match=reason) as caught:
        uploads.read(data)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_every_file_gives_a_photograph_or_a_reason(name):
    if name in GOOD or "contrast" in BAD[name][1]:  # a photograph needs no ink
        data = GOOD[name] if name in GOOD else BAD[name][0]
        assert uploads.read_photograph(data).shape == (3, photographs.SIDE, photographs.SIDE)
    else:
        with pytest.raises(PictureError, match=BAD[name][1]):
            uploads.read_photograph(BAD[name][0])


@given(st.sampled_from(sorted(GOOD)), st.data())
def test_damage_gives_a_digit_or_a_reason(name, data):
    damaged = bytearray(GOOD[name])
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PictureError):
        assert uploads.read(bytes(damaged)).shape == (28, 28)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 3))
def test_place_and_size_do_not_matter(down, right, factor):
    canvas = np.full((110, 90), 235, np.uint8)
    canvas[down : down + 90, right : right + 70] = paper()
    large = uploads.to_digit(canvas.repeat(factor, 0).repeat(factor, 1)).float()
    assert (large - uploads.to_digit(paper()).float()).abs().mean() <= (factor > 1) * 5


def test_a_digit_is_placed_as_in_mnist():
    digit = uploads.to_digit(paper()).double()
    rows, columns = (torch.arange(28) * digit.sum(axis) / digit.sum() for axis in (1, 0))
    assert abs(rows.sum() - 13.5) <= 0.5
    assert abs(columns.sum() - 13.5) <= 0.5
    assert (digit > 0).any(1).sum() == 20
    assert digit.max() == 255


def test_the_samples_are_white_on_black():
    samples = uploads.samples()
    assert samples.shape == (10, 28, 28)
    assert (samples[:, [0, -1]] == 0).all()
    assert (samples.amax((1, 2)) > 200).all()


def test_drawings_come_as_urls():
    url = "data:image/png;base64," + base64.b64encode(GOOD["grey"]).decode()
    assert torch.equal(uploads.read_drawing(url), uploads.read(GOOD["grey"]))
    for bad in (
        None,
        7,
        "",
        "data:image/png;base64,?",
        "data:text/html,<b>",
        "file:///etc/passwd",
        url[:200],
        url + "\u00fc\u4e03\ud800",
    ):
        for read in (uploads.read_drawing, uploads.read_frame):
            with pytest.raises(PictureError):
                read(bad)
