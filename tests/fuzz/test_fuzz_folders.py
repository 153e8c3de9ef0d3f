"""Folders of odd pictures with odd names: every readable picture is found, the others are named."""

import io
import os
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image

from equivariant_transformers.cli.predict import _safe
from equivariant_transformers.data import from_folder, pictures
from equivariant_transformers.text import visible

FORMATS = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "GIF": ("1", "L", "P", "RGB"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "YCbCr"),
    "BMP": ("1", "L", "P", "RGB"),
    "WEBP": ("RGB", "RGBA"),
    "PPM": ("1", "L", "RGB"),
    "TGA": ("L", "P", "RGB", "RGBA"),
}
SIZES = [(1, 1), (1, 2000), (2000, 1), (3, 5), (64, 64), (17, 400)]


def random_picture(rng):
    """The bytes of a picture of any kind."""
    kind = rng.choice([*FORMATS])
    mode = rng.choice(FORMATS[kind])
    size = rng.choice(SIZES)
    values = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (size[1], size[0], 4), np.uint8)
    if mode == "I;16":
        picture = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    else:
        picture = Image.fromarray(values).convert("RGB").convert(mode)
    file = io.BytesIO()
    more = {"save_all": True, "append_images": [picture] * rng.randrange(1, 20)} if kind in ("GIF", "TIFF") else {}
    picture.save(file, format=kind, **(more if rng.random() < 0.3 else {}))
    return file.getvalue()


def readable(content):
    """Return whether Pillow reads all that it wrote, and the values have a known range."""
    with Image.open(io.BytesIO(content)) as picture:
        try:
            picture.load()
        except OSError:
            return False
        return picture.mode != "F"


def damaged(rng, content):
    content = bytearray(content)
    for _ in range(rng.randrange(1, 10)):
        place = rng.randrange(len(content))
        what = rng.randrange(4)
        if what == 0:
            content[place] = rng.randrange(256)
        elif what == 1:
            content[place : place + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
        elif what == 2:
            del content[place : place + rng.randrange(1, 50)]
            content = content or bytearray(b"x")
        else:
            content[place:place] = content[: rng.randrange(50)]
    return bytes(content)


def random_name(rng):
    letters = [
        "a",
        "B",
        "1",
        " ",
        "-",
        "\x1b",
        "\n",
        "\r",
        "\t",
        "\u202e",
        "é",
        "\udcff",
        "\udc80",
        "\\",
        ":",
        "数",
        "'",
        "[red]",
    ]
    name = "".join(rng.choices([*letters, "."], k=rng.randrange(1, 12)))
    return name if rng.random() < 0.9 else "x" * rng.randrange(200, 255)


def test_names_of_canonical_images(fuzz):
    def check(rng):
        name = _safe(rng.choice(["", random_name(rng) * rng.randrange(1, 40)]))
        assert name.isprintable()
        assert name.strip(" .") == name != ""
        assert "/" not in name
        assert len(name.encode()) <= 200
        assert _safe(name) == name

    fuzz(check, cases=2000)


def test_visible_text(fuzz):
    def check(rng):
        text = random_name(rng)
        assert visible(text).isprintable()
        assert visible(visible(text)) == visible(text)
        visible(text).encode()

    fuzz(check, cases=2000)


def test_damaged_pictures(fuzz, tmp_path):
    path = tmp_path / "picture"

    def check(rng):
        path.write_bytes(damaged(rng, random_picture(rng)))
        try:
            image = pictures.read(path, (8, 12), rng.choice([1, 3]))
        except Exception:  # for which folders and `et predict` name the file
            return
        assert image.dtype == np.uint8
        assert image.shape[1:] == (8, 12)

    fuzz(check, cases=100)


def test_folders(fuzz, tmp_path):
    root = tmp_path / "photos"

    def check(rng):
        shutil.rmtree(root, ignore_errors=True)
        good = set()
        for _ in range(rng.randrange(1, 4)):
            folder = root / random_name(rng).replace("/", "_").lstrip(".")
            folder = folder if folder != root else root / "class"
            folder.mkdir(parents=True, exist_ok=True)
            for _ in range(rng.randrange(4)):
                name = random_name(rng)
                file = folder / rng.choice(["", "", "deeper"]) / name
                if name in (".", "..") or os.path.lexists(file):
                    continue
                file.parent.mkdir(exist_ok=True)
                what = rng.randrange(6)
                if what == 0:
                    file.write_bytes(b"")
                elif what == 1:
                    file.symlink_to(rng.choice(["/dev/zero", file.name, "..", "nothing"]))
                elif what == 2:
                    os.mkfifo(file)
                else:
                    content = random_picture(rng)
                    file.write_bytes(content)
                    if not name.startswith(".") and readable(content):
                        good.add(file)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                part = from_folder(root, size=(8, 8), validation=0, test=0).train
            except ValueError as error:
                raise error if str(error).isprintable() else AssertionError(repr(error)) from None
            finally:
                assert all(str(warning.message).isprintable() for warning in caught)
        assert len(part) == len(good), [str(warning.message) for warning in caught]

    fuzz(check, cases=60, allowed=(ValueError,))


@pytest.mark.parametrize("mode", ["RGBA", "P", "I;16", "CMYK"])
def test_pictures_in_bands(fuzz, monkeypatch, mode):
    """Large pictures are converted in bands, with the same result."""

    def check(rng):
        values = np.random.default_rng(rng.randrange(2**32)).integers(
            0, 256, (rng.randrange(1, 60), rng.randrange(1, 60), 4), np.uint8
        )
        picture = Image.fromarray(values)
        picture = Image.fromarray(values[..., 0].astype(np.uint16) * 257) if mode == "I;16" else picture.convert(mode)
        whole = pictures.fit(picture, (9, 7), 3)
        with monkeypatch.context() as patched:
            patched.setattr(pictures, "_BAND", rng.randrange(1, 500))
            np.testing.assert_array_equal(pictures.fit(picture, (9, 7), 3), whole)

    fuzz(check, cases=20)
