"""Targets: class numbers, labels and values."""

import numpy as np
import pytest
import torch

from equivariant_transformers.data import ImageSet, from_dataset
from equivariant_transformers.data.targets import read_target

BLACK = torch.zeros(1, 4, 6)


@pytest.mark.parametrize(
    ("label", "target"),
    [
        (3, 3),
        (np.int16(3), 3),
        (torch.tensor(3), 3),
        (0.5, [0.5]),
        (np.float64(0.5), [0.5]),
        (torch.tensor(0.5), [0.5]),
        ([1, 0, 1], [1.0, 0.0, 1.0]),
        ((True, False), [1.0, 0.0]),
        (np.array([1.5, -2.0]), [1.5, -2.0]),
        (torch.tensor([True, False]), [1.0, 0.0]),
        (True, None),
        (torch.tensor(True), None),
        ("cat", None),
        (None, None),
        (["cat", "dog"], None),
        ([], None),
        ([[1, 2], [3, 4]], None),
        ([1, [2, 3]], None),
        ({"age": 3}, None),
        (1j, None),
    ],
)
def test_labels_are_read_as_class_numbers_or_rows(label, target):
    assert read_target(label) == target


def test_rows_become_float_labels_with_names():
    items = [(BLACK + i / 10, [float(i), i % 2]) for i in range(10)]
    splits = from_dataset(items, classes=["age", "sex"])
    assert [len(part) for part in splits] == [7, 1, 2]
    ages = torch.cat([part.labels[:, 0] for part in splits])
    assert sorted(ages.tolist()) == list(range(10))
    for part in splits:  # each image keeps its row
        assert part.classes == ("age", "sex")
        torch.testing.assert_close(part.images[:, 0, 0, 0].float(), (25.5 * part.labels[:, 0]).round(), atol=1, rtol=0)
    assert from_dataset(items).train.classes == ("0", "1")
    assert from_dataset([(BLACK, i / 7) for i in range(8)]).train.labels.shape == (5, 1)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([[1.0, 2.0]] * 4 + [[1.0]], {}, "item 4 of the train part has label .*; 2 finite numbers are needed"),
        ([[1.0, 2.0]] * 4 + [3], {}, "item 4 .* 2 finite numbers are needed"),
        ([1] * 4 + [[1.0, 2.0]], {"classes": "ab"}, "item 4 .* a class number from 0 to 1 is needed"),
        ([[1.0, float("nan")]] * 5, {}, "item 0 .* 2 finite numbers are needed"),
        ([[1.0, 1e300]] * 5, {}, "item 0 .* 2 finite numbers are needed"),
        ([[1.0, 2.0]] * 5, {"classes": "abc"}, "item 0 .* 3 finite numbers are needed"),
    ],
)
def test_labels_of_different_kinds_are_refused(labels, options, message):
    with pytest.raises(ValueError, match=message):
        from_dataset([(BLACK, label) for label in labels], **options)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(3, 3), r"need labels of shape \(3, 2\), got \(3, 3\)"),
        (torch.zeros(2, 2), r"need labels of shape \(3, 2\), got \(2, 2\)"),
        (torch.full((3, 2), torch.inf), "must be finite"),
        (torch.zeros(3), r"targets of regression have the shape \(N, K\)"),
        (torch.zeros(3, 2, dtype=torch.long), r"need labels of shape \(3,\), or floating-point"),
    ],
)
def test_labels_of_a_wrong_shape_are_refused(labels, message):
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        ImageSet(images=images, labels=labels, name="blank", classes=("a", "b"))
