"""Data sets of torchvision and Hugging Face, and anything shaped like them."""

import numpy as np
import pytest
import torch
from photos import CLASSES, picture
from PIL import Image

from equivariant_transformers.data import BufferedLoader, Loader, Stored, each, from_dataset


class ClassLabel:
    """As `datasets.ClassLabel`: names of the classes."""

    names = CLASSES


class Rows:
    """As a `datasets.Dataset`: dictionaries by index, and features that know the names of the classes."""

    def __init__(self, count, start=0, keys=("image", "label")):
        self.indices = range(start, start + count)
        self.keys = keys
        self.features = {keys[0]: object(), keys[1]: ClassLabel()}

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        number = self.indices[index]
        return dict(zip(self.keys, (picture(number), number % 3), strict=True)) | {"id": number}


class Pairs(Rows):
    """As a data set of torchvision: pairs, and `classes`."""

    classes = CLASSES

    def __init__(self, count):
        super().__init__(count)
        del self.features

    def __getitem__(self, index):
        item = super().__getitem__(index)
        return item["image"], item["label"]


def test_dictionaries_are_read_like_pairs():
    for rows, pairs in zip(
        from_dataset(Rows(60), size=(20, 20), channels=3),
        from_dataset(Pairs(60), size=(20, 20), channels=3),
        strict=True,
    ):
        assert torch.equal(rows.images, pairs.images)
        assert torch.equal(rows.labels, pairs.labels)
        assert rows.classes == pairs.classes == CLASSES


def test_parts_of_a_dictionary_are_taken_as_found():
    parts = {"train": Rows(40), "test": Rows(20, start=40)}
    splits = from_dataset(parts, size=(8, 8))
    assert [len(part) for part in splits] == [36, 4, 20]
    assert splits.test.labels.tolist() == [index % 3 for index in range(40, 60)]
    assert splits.train.name == "Rows"
    splits = from_dataset({**parts, "val": Rows(5)}, size=(8, 8), test=Rows(3))
    assert [len(part) for part in splits] == [40, 5, 3]
    for wrong in ({"test": Rows(9)}, {**parts, "unsupervised": Rows(9)}, {**parts, "val": Rows(9), "valid": Rows(9)}):
        with pytest.raises(ValueError, match="needs train and at most one each of validation and test, got"):
            from_dataset(wrong)


def test_other_names_of_the_entries():
    other = Rows(30, keys=("img", "fine_label"))
    assert from_dataset(other, keys=("img", "fine_label")).train.classes == CLASSES
    with pytest.raises(
        ValueError, match=r"has the entries \['img', 'fine_label', 'id'\], not 'image' and 'label': pass"
    ):
        from_dataset(other)


def test_a_data_set_without_a_length_is_named():
    with pytest.raises(ValueError, match="the train part has no length: load the data set without streaming"):
        from_dataset(iter([(picture(0), 0)]))


@pytest.mark.parametrize("memory", [2, 0])
def test_an_item_that_cannot_be_used_is_named(memory):
    items = [{"image": np.zeros((4, 4), np.uint8), "label": index % 2} for index in range(20)]
    for index, entry, message in (
        (7, {"image": np.zeros((4, 4), np.int64), "label": 0}, "item 7 of the train part cannot be used: .* int64"),
        (3, {"image": items[0]["image"], "label": -1}, "item 3 of the train part has label -1"),
        (9, {"image": items[0]["image"]}, r"item 9 of the train part has the entries \['image'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            from_dataset([*items[:index], entry, *items[index + 1 :]], classes=("a", "b"), memory=memory)


@pytest.mark.parametrize("count", [1, 6, 60])
@pytest.mark.parametrize("kind", [Rows, Pairs])
def test_streamed_items_are_the_same_batches(kind, count):
    options = {"size": (16, 24), "channels": 3, **({"validation": 0, "test": 0} if count == 1 else {})}
    resident, streamed = (from_dataset(kind(count), memory=memory, **options) for memory in (1, 0))
    for one, other in zip(resident, streamed, strict=True):
        assert isinstance(other.images, Stored)
        assert (one.mean, one.std) == (other.mean, other.std)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.images, other.images[:])
        some = torch.arange(len(one)).flip(0)[: len(one) // 2]
        assert torch.equal(one.take(some).images, other.take(some).images[:])
    before = torch.get_rng_state()
    size = min(4, len(resident.train))
    plain, ahead = (Loader(part, batch_size=size, seed=1) for part in (resident.train, streamed.train))
    buffered = BufferedLoader(ahead)
    for epoch in range(2):
        order = buffered.epoch(epoch)
        assert torch.equal(order, plain.epoch(epoch))
        buffered.start(order)
        for indices in order:
            buffered.advance()
            for found in (buffered.batch(indices), ahead.batch(indices)):
                assert all(map(torch.equal, found, plain.batch(indices)))
    buffered.close()
    assert torch.equal(before, torch.get_rng_state())


def test_each_image_gets_its_own_random_numbers():
    torch.manual_seed(0)
    images = torch.full((8, 1, 2, 2), 100, dtype=torch.uint8)

    def darken(image):
        return (image * torch.rand(())).to(torch.uint8)

    assert len({int(image[0, 0, 0]) for image in darken(images)}) == 1
    assert len({int(image[0, 0, 0]) for image in each(darken)(images)}) > 4


@pytest.mark.filterwarnings("ignore")  # of the libraries that it imports
def test_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    columns = {"image": [picture(index).convert("RGB") for index in range(30)], "label": [i % 3 for i in range(30)]}
    whole = datasets.Dataset.from_dict(columns, features=features)
    expected = from_dataset([(image, label) for image, label in zip(*columns.values(), strict=True)], size=(16, 16))
    torched = whole.with_format("torch")
    for found in (from_dataset(whole, size=(16, 16)), from_dataset(whole, size=(16, 16), memory=0)):
        assert found.train.classes == CLASSES
        for part, other in zip(found, expected, strict=True):
            assert torch.equal(part.images[:], other.images)
            assert torch.equal(part.labels, other.labels)
    assert torch.equal(from_dataset(torched, size=(16, 16)).test.images, expected.test.images)
    parts = whole.train_test_split(test_size=10, seed=0)
    assert isinstance(parts, datasets.DatasetDict)
    assert [len(part) for part in from_dataset(parts, size=(16, 16))] == [18, 2, 10]
    with pytest.raises(ValueError, match="has no length: load the data set without streaming"):
        from_dataset(whole.to_iterable_dataset())


def test_torchvision_data_sets_and_transforms(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    for index in range(12):
        file = tmp_path / CLASSES[index % 3] / f"{index}.png"
        file.parent.mkdir(exist_ok=True)
        picture(index).convert("RGB").save(file)
    splits = from_dataset(torchvision.datasets.ImageFolder(tmp_path), size=(16, 16))
    assert splits.train.classes == CLASSES
    flip = pytest.importorskip("torchvision.transforms.v2").RandomHorizontalFlip(p=1.0)
    loader = BufferedLoader(Loader(splits.train, batch_size=4), transform=each(flip))
    loader.start(loader.epoch(0))
    loader.advance()
    assert torch.equal(loader.buffer, splits.train.images[loader.epoch(0)[0]].flip(-1))


@pytest.mark.parametrize("memory", [2, 0])
def test_pictures_of_many_modes_in_one_data_set_are_the_same_pixels(memory):
    values = np.random.default_rng(0).integers(256, size=(20, 12), dtype=np.uint8)
    grey = Image.fromarray(values)
    palette = Image.fromarray(values, "L").convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
    modes = [grey, grey.convert("RGB"), grey.convert("RGBA"), palette, Image.fromarray(values.astype(np.uint16) * 257)]
    items = [{"image": image, "label": 0} for image in modes]
    splits = from_dataset(items, size=(20, 20), channels=1, validation=0, test=0, memory=memory)
    pixels = splits.train.images[:]
    assert torch.equal(pixels[:1].expand(5, -1, -1, -1), pixels)
    assert torch.equal(pixels[0, 0, :, 4:16], torch.from_numpy(values))
