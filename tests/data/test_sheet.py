"""The contact sheet shows the right images in the right places."""

import dataclasses

import numpy as np
import pytest
import torch
from photos import write_folder
from PIL import Image, ImageDraw

from equivariant_transformers.data import ImageSet, from_csv, from_folder
from equivariant_transformers.data.sheet import LEGEND, contact_sheet


def flat(classes, each=12, channels=1, size=(32, 32)):
    """Images of class k that are all of grey value 20 k + 10, in shuffled order."""
    labels = torch.arange(classes).repeat(each)[torch.randperm(classes * each, generator=torch.Generator())]
    images = (20 * labels + 10).clamp_max(255).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, channels, *size)
    names = tuple(f"class {label}" for label in range(classes))
    return ImageSet(images=images, labels=labels, name="flat", classes=names)


@pytest.mark.parametrize("channels", [1, 3])
def test_ten_classes_are_two_rows_of_five(channels):
    sheet = np.asarray(contact_sheet(flat(10, channels=channels)).convert("L")).astype(int)
    halves = np.split(sheet, [sheet.shape[0] // 2])
    rows = [{value for value in range(255) if (half == value).sum() > 64 * 64} for half in halves]
    assert rows[0] == {10, 30, 50, 70, 90}
    assert rows[1] == {110, 130, 150, 170, 190}
    for value in range(10, 200, 20):
        assert (sheet == value).sum() >= 9 * 64 * 64


@pytest.mark.parametrize("classes", [1, 2, 7, 43])
def test_any_number_of_classes(classes):
    sheet = contact_sheet(flat(classes, each=2), side=2)
    assert sheet.width < 4 * sheet.height or classes < 10
    values = np.asarray(sheet.convert("L"))
    assert (values == 10).sum() >= 2 * 64 * 64


def test_names_with_accents_can_be_told_apart():
    def drawn(name):
        images = flat(1, each=1)
        return contact_sheet(
            ImageSet(images=images.images, labels=images.labels, name="flat", classes=(name,))
        ).tobytes()

    assert len({drawn(name) for name in ("Z\u00fcrich", "Z\u00f6rich", "Z\u0416rich", "Z\u03a9rich")}) == 4


def test_long_names_and_oblong_images_fit():
    images = flat(3, size=(20, 50))
    short = contact_sheet(images)
    long = contact_sheet(ImageSet(images=images.images, labels=images.labels, name="x" * 150, classes=("y" * 150,) * 3))
    assert long.size == short.size
    assert np.asarray(long)[:, -8:].min() == 255  # nothing runs off the edge


def padding(sheet):
    return (np.asarray(sheet) == (230, 0, 126)).all(-1).sum()


def test_padding_and_original_sizes_of_files_are_drawn(tmp_path):
    write_folder(tmp_path / "oblong", 6)
    oblong = from_folder(tmp_path / "oblong", size=64, memory=0, validation=0, test=0).train
    sheet = contact_sheet(oblong)
    assert padding(sheet) > 1000
    square = from_folder(tmp_path / "oblong", size=64, validation=0, test=0).train
    assert padding(contact_sheet(square)) == 0  # images in memory have no original
    Image.new("RGB", (64, 64)).save(tmp_path / "one.png")
    (tmp_path / "one.csv").write_text("path,label\none.png,only\n")
    one = from_csv(tmp_path / "one.csv", size=64, memory=0, validation=0, test=0).train
    assert padding(contact_sheet(one)) == 0  # a square picture has no padding


def test_the_legend_is_as_wide_as_the_sheet_needs(tmp_path, monkeypatch):
    """The title and the legend are not shortened, whatever fraction of a pixel their width has."""
    written = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda _self, _corner, text, **_: written.append(text))
    write_folder(tmp_path / "two", 6)
    images = from_folder(tmp_path / "two", size=16, memory=0, validation=0, test=0).train
    for length in range(1, 40):
        written.clear()
        contact_sheet(dataclasses.replace(images, name="x" * length), side=1)
        assert written[0].startswith("x" * length + ": 6 images")
        assert written[0].endswith("(the user's own images)")
        assert written[1] == LEGEND


def test_many_classes_fit_on_a_sheet():
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    names = tuple(map(str, range(200)))
    sheet = contact_sheet(ImageSet(images=images, labels=torch.arange(200), name="many", classes=names))
    assert sheet.height < 5000
    assert sheet.width < 5000
