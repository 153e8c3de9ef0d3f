"""Image folders and data sets of others: every kind of file becomes bytes of one size, or is named and skipped."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from bounded import run_bounded
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from equivariant_transformers.data import from_dataset, from_folder, pictures
from equivariant_transformers.data.imageset import statistics

RED, BLUE = (255, 0, 0), (0, 0, 255)


def save(path, size=(8, 8), colour=RED, mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)


def only(folder, **options):
    """The image that `from_folder` makes of a folder with one file."""
    splits = from_folder(folder, validation=0, test=0, **({"size": (8, 8)} | options))
    assert len(splits.train) == 1
    return splits.train.images[0]


@pytest.fixture
def pets(tmp_path):
    for index in range(20):
        save(tmp_path / "dog" / f"{index}.png", colour=(index, 0, 0))
        save(tmp_path / "cat" / f"{index}.jpg", colour=(0, 10 * index, 0))
    return tmp_path


def test_classes_are_the_sorted_subfolders(pets):
    splits = from_folder(pets, size=(4, 6))
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.name == pets.name
    assert splits.train.images.shape[1:] == (3, 4, 6)
    assert [part.labels.bincount().tolist() for part in splits] == [[14, 14], [2, 2], [4, 4]]
    for part in splits:
        assert (part.images[part.labels == 1, 1:] == 0).all()  # only dogs are red
        assert part.mean == splits.train.mean == statistics(splits.train.images)[0]


def test_the_split_is_fixed_by_the_seed(pets):
    first, again, other = (from_folder(pets, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.test.images, again.test.images)
    assert not torch.equal(first.test.images, other.test.images)


def test_parts_are_taken_as_found(tmp_path):
    for part, count in (("train", 10), ("val", 2)):
        for index in range(count):
            save(tmp_path / part / "cat" / f"{index}.png")
            save(tmp_path / part / "train" / f"{index}.png", colour=BLUE)
    splits = from_folder(tmp_path, test=0.3)
    assert splits.train.classes == ("cat", "train")
    assert [len(part) for part in splits] == [14, 4, 6]
    assert splits.validation.mean == splits.train.mean


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_a_part_without_images_is_named(tmp_path, part):
    for found in {"train", "val", "test"} - {part}:
        save(tmp_path / found / "cat" / "a.png")
    (tmp_path / part / "cat").mkdir(parents=True)
    (tmp_path / part / "cat" / "notes.png").write_text("no picture")
    with (
        pytest.warns(UserWarning, match="skipped 1 files"),
        pytest.raises(ValueError, match=f"no readable image in .*{part}: add some or remove the folder"),
    ):
        from_folder(tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    save(tmp_path / "train" / "a.png")
    save(tmp_path / "bus" / "b.png")
    assert from_folder(tmp_path, validation=0, test=0).train.classes == ("bus", "train")


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([1, 3]), st.integers(0, 2**31))
def test_shape_is_kept_and_the_border_is_repeated(width, height, channels, seed):
    """Each row and column outside the resized picture equals the nearest one inside, and the picture is inside."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    picture = Image.fromarray(pixels)
    image = pictures.fit(picture, (16, 24), channels)
    scale = min(16 / height, 24 / width)
    inner = (max(1, round(scale * width)), max(1, round(scale * height)))
    small = np.asarray(picture.convert(pictures.MODES[channels]).resize(inner, Image.Resampling.BICUBIC))
    top, left = (16 - inner[1]) // 2, (24 - inner[0]) // 2
    rows, columns = ((np.arange(n) - at).clip(0, m - 1) for n, at, m in ((16, top, inner[1]), (24, left, inner[0])))
    expected = small.reshape(inner[1], inner[0], channels)[rows][:, columns].transpose(2, 0, 1)
    np.testing.assert_array_equal(image, expected)


def test_one_colour_has_no_bars(tmp_path):
    save(tmp_path / "wide" / "a.png", size=(40, 20))
    assert (only(tmp_path, size=(8, 8))[0] == 255).all()


@pytest.mark.parametrize(
    ("shapes", "side"),
    [
        ([(28, 28)] * 3, 64),
        ([(300, 100)] * 3, 96),
        ([(100, 300), (120, 130), (4000, 3000)], 128),
        ([(1000, 2000)], 224),
        ([(3, 3)], 64),
    ],
)
def test_the_size_is_chosen_from_the_images(tmp_path, shapes, side):
    for number, shape in enumerate(shapes):
        save(tmp_path / "a" / f"{number}.jpg", size=shape)
    (tmp_path / "a" / "notes.jpg").write_text("no picture")
    with pytest.warns(UserWarning, match="skipped 1 files"):
        splits = from_folder(tmp_path, validation=0, test=0)
    assert splits.train.images.shape[2:] == (side, side)


def test_a_side_is_a_size(tmp_path):
    save(tmp_path / "a" / "a.png")
    assert only(tmp_path, size=12).shape == (3, 12, 12)


@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_a_large_photograph_takes_little_memory(tmp_path, ending):
    rows, columns = np.mgrid[:3000, :4000]
    pixels = np.stack((rows // 12, columns // 16, 0 * rows), axis=-1).astype(np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / f"photo.{ending}")
    code = """
from equivariant_transformers.data import from_folder
image = from_folder(sys.argv[1], validation=0, test=0).train.images[0]
assert image.shape == (3, 224, 224)
print(*image[:2, 112, 112].tolist(), *image[:2, 0, 223].tolist())
"""
    imports = "from equivariant_transformers.data import from_folder, pictures; from PIL import Image; Image.init()"
    done = run_bounded(code, tmp_path, imports=imports, megabytes=150)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(list(map(int, done.stdout.split())), [125, 125, 0, 249], atol=3)


def test_greyscale(tmp_path):
    save(tmp_path / "a" / "a.png", colour=(10, 10, 10))
    assert only(tmp_path, channels=1).unique().tolist() == [10]
    assert only(tmp_path, channels=1).shape == (1, 8, 8)


def first_frame(path):
    Image.new("RGB", (8, 8), RED).save(path, save_all=True, append_images=[Image.new("RGB", (8, 8), BLUE)])


def rotated(path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[4:, :, 0] = 255  # the lower half is red, hence the left one when upright
    Image.fromarray(pixels).save(path, exif=exif)


def half_transparent(path):
    pixels = np.full((8, 8, 4), 255, np.uint8)
    pixels[:, 4:, 3] = 0
    Image.fromarray(pixels).save(path)


def transparent_palette(path):
    picture = Image.new("P", (8, 8), 0)
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.paste(1, (4, 0, 8, 8))
    picture.save(path, transparency=bytes([255, 0]))


def sixteen_bits(path):
    Image.fromarray(np.full((8, 8), 200 * 257, np.uint16)).save(path)


def huge_photograph(path):
    Image.new("RGB", (900, 700), RED).save(path, quality=95)


@pytest.mark.parametrize(
    ("name", "write", "left", "right"),
    [
        ("cmyk.jpg", lambda path: Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(path), RED, RED),
        ("palette.gif", lambda path: Image.new("RGB", (8, 8), BLUE).convert("P").save(path), BLUE, BLUE),
        ("animated.gif", first_frame, RED, RED),
        ("animated.png", first_frame, RED, RED),
        ("rotated.png", rotated, RED, (0, 0, 0)),
        ("transparent.png", half_transparent, (255,) * 3, (0, 0, 0)),
        ("palette.png", transparent_palette, RED, (0, 0, 0)),
        ("sixteen.png", sixteen_bits, (200,) * 3, (200,) * 3),
        ("sixteen.tif", sixteen_bits, (200,) * 3, (200,) * 3),
        ("bilevel.png", lambda path: Image.new("1", (8, 8), 1).save(path), (255,) * 3, (255,) * 3),
        ("grey.bmp", lambda path: Image.new("L", (8, 8), 7).save(path), (7,) * 3, (7,) * 3),
        ("large.jpg", huge_photograph, RED, RED),
    ],
)
def test_every_kind_of_picture(tmp_path, name, write, left, right):
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / name)
    image = only(tmp_path).int()
    for colour, column in ((left, 1), (right, 6)):
        assert (image[:, 4, column] - torch.tensor(colour)).abs().max() <= 4  # JPEG is lossy


def test_broken_files_are_named_and_skipped(pets, monkeypatch):
    (pets / "cat" / "notes.txt").write_text("not a picture")
    (pets / "cat" / "nothing.png").touch()
    whole = (pets / "dog" / "0.png").read_bytes()
    (pets / "dog" / "cut.png").write_bytes(whole[:-30])
    Image.new("F", (8, 8), 0.5).save(pets / "dog" / "float.tif")
    Image.fromarray(np.full((8, 8), 1 << 20, np.int32)).save(pets / "dog" / "wide.tif")
    save(pets / "dog" / "bomb.png", size=(200, 200))
    save(pets / "dog" / "small_bomb.png", size=(120, 120))
    (pets / "dog" / ".hidden.png").write_text("not a picture")
    (pets / "dog" / ".cache").mkdir()
    (pets / "dog" / ".cache" / "a.png").write_text("not a picture")
    (pets / ".git").mkdir()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100 * 100)
    with pytest.warns(UserWarning, match="skipped 7 files") as caught:
        splits = from_folder(pets)
    for name in ("notes.txt", "nothing.png", "cut.png", "float.tif", "wide.tif", "bomb.png", "small_bomb.png"):
        assert name in str(caught[0].message)
    assert sum(len(part) for part in splits) == 40


def test_many_broken_files_make_one_short_warning(pets):
    for index in range(30):
        (pets / "cat" / f"{index}.txt").touch()
    with pytest.warns(UserWarning, match="skipped 30 files.*and 20 more"):
        from_folder(pets)


def test_files_below_a_class_folder_count(tmp_path):
    save(tmp_path / "cat" / "2024" / "june" / "a.png")
    assert only(tmp_path).shape == (3, 8, 8)


def test_what_is_no_data_set_is_refused(tmp_path, pets):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="no class folders"):
        from_folder(empty)
    with pytest.raises(ValueError, match="is not a folder"):
        from_folder(tmp_path / "missing")
    (empty / "cat").mkdir()
    save(empty / "dog" / "a.png")
    with pytest.raises(ValueError, match="no readable image of class cat"):
        from_folder(empty, validation=0, test=0)
    (empty / "cat").rmdir()
    with pytest.raises(ValueError, match="1 images are too few to hold out 1 for validation and 1 for test: add"):
        from_folder(empty)
    for wrong in ({"channels": 2}, {"size": (0, 8)}):
        with pytest.raises(ValueError, match="channels must be 1 or 3"):
            from_folder(empty, **wrong)
    with pytest.raises(ValueError, match="fractions must be at least 0"):
        from_folder(empty, test=1.5)
    (tmp_path / "parts" / "test").mkdir(parents=True)
    with pytest.raises(ValueError, match="needs one folder train"):
        from_folder(tmp_path / "parts")


def test_progress_runs_from_nothing_to_all(pets):
    told = []
    from_folder(pets, progress=lambda _, share: told.append(share))
    assert told == sorted(told)
    assert told[-1] == 1


class Fake:
    """As a data set of torchvision: any kind of image, and a class number."""

    classes = ("zero", "one")

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGB", (6, 4), (51, 102, 204)),
        torch.tensor([51, 102, 204], dtype=torch.uint8).reshape(3, 1, 1).expand(3, 4, 6),
        torch.tensor([0.2, 0.4, 0.8]).reshape(3, 1, 1).expand(3, 4, 6),
        np.broadcast_to(np.array([51, 102, 204], np.uint8), (4, 6, 3)),
        np.broadcast_to(np.array([0.2, 0.4, 0.8]), (4, 6, 3)),
    ],
)
@pytest.mark.parametrize("label", [1, np.int64(1), torch.tensor(1)])
def test_any_data_set_of_pairs(image, label):
    splits = from_dataset(Fake([(image, label)] * 10))
    assert splits.train.images.shape == (7, 3, 4, 6)
    assert splits.train.images[0, :, 0, 0].tolist() == [51, 102, 204]
    assert splits.train.labels.tolist() == [1] * 7
    assert splits.train.classes == ("zero", "one")
    assert splits.train.name == "Fake"
    assert splits.train.mean == (51, 102, 204)


def test_given_parts_stay_as_they_are():
    grey = [(np.full((4, 4), value, np.uint8), value % 3) for value in range(30)]
    splits = from_dataset(grey[:20], test=grey[20:], validation=0.25, size=(4, 4), name="mine")
    assert [len(part) for part in splits] == [15, 5, 10]
    assert splits.test.images[:, 0, 0, 0].tolist() == list(range(20, 30))
    assert splits.train.classes == ("0", "1", "2")
    assert splits.train.images.shape[1] == 1


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.full((3, 4, 4), -0.5), 0), "from 0 to 1"),
        ((torch.full((3, 4, 4), torch.nan), 0), "from 0 to 1"),
        ((torch.zeros(5, 4, 3), 0), "1, 3 or 4 channels"),
        ((np.zeros((4, 4), np.int32), 0), "uint8 or floating"),
        ((torch.zeros(1, 4, 4), "cat"), "class number"),
    ],
)
def test_odd_items_are_refused(item, message):
    with pytest.raises(ValueError, match=message):
        from_dataset([item] * 10)


@given(
    labels=st.lists(st.integers(0, 3), min_size=10, max_size=60),
    validation=st.sampled_from([0, 0.1, 0.25]),
    test=st.sampled_from([0, 0.2, 0.5]),
    seed=st.integers(0, 3),
)
def test_every_image_is_in_one_part_and_classes_keep_their_share(labels, validation, test, seed):
    numbered = [(np.full((1, 1), index, np.uint8), label) for index, label in enumerate(labels)]
    splits = from_dataset(numbered, validation=validation, test=test, seed=seed, classes="abcd")
    seen = torch.cat([part.images.flatten() for part in splits])
    assert sorted(seen.tolist()) == list(range(len(labels)))
    every = torch.tensor(labels).bincount(minlength=4)
    for part, share, slack in ((splits.validation, validation, 1), (splits.test, test, 2)):
        count = max(1, round(share * len(labels))) if share else 0
        assert len(part) == count
        assert ((part.labels.bincount(minlength=4) - every * count / len(labels)).abs() < slack + 1e-6).all()


@given(
    counts=st.lists(st.integers(1, 6), min_size=2, max_size=12),
    validation=st.sampled_from([0, 0.1]),
    seed=st.integers(0, 3),
)
def test_every_class_is_trained_if_there_are_enough_images(counts, validation, seed):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    held_out = sum(max(1, round(share * len(labels))) for share in (validation, 0.2) if share)
    if held_out > len(labels) - len(counts):
        return
    items = [(np.zeros((1, 1), np.uint8), label) for label in labels]
    splits = from_dataset(items, validation=validation, test=0.2, seed=seed)
    assert splits.train.labels.unique().tolist() == list(range(len(counts)))
    assert len(splits.validation) + len(splits.test) == held_out


def test_classes_that_are_not_trained_are_named(tmp_path):
    for name in "abc":
        save(tmp_path / name / "one.png")
    with pytest.warns(UserWarning, match=r"no training image has the class \w, \w: a network cannot learn it"):
        from_folder(tmp_path)
    for part in ("train", "test"):
        for name in ("cat", "dog")[: 2 if part == "test" else 1]:
            save(tmp_path / "parts" / part / name / "one.png")
            save(tmp_path / "parts" / part / name / "two.png")
    with pytest.warns(UserWarning, match="no training image has the class dog"):
        from_folder(tmp_path / "parts")


def test_the_code_on_the_page_runs(pets, monkeypatch):
    pets.rename(pets.parent / "photos")
    monkeypatch.chdir(pets.parent)
    page = Path(__file__).parents[2] / "docs" / "data" / "folders.md"
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, "page", "exec"), {})
