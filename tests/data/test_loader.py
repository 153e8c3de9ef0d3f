"""Image sets and the loader: every image once an epoch, in an order that the seed fixes, shared evenly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equivariant_transformers.data import ImageSet, Loader


def numbered(count, channels=1, **fields):
    images = (torch.arange(count) % 256).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, channels, 2, 3)
    return ImageSet(images=images, labels=torch.arange(count) % 10, name="numbered", **fields)


@given(count=st.integers(1, 40), batch=st.integers(1, 12), world=st.sampled_from([1, 2, 3]), seed=st.integers(0, 9))
def test_the_processes_share_each_batch(count, batch, world, seed):
    if batch > count or batch % world:
        with pytest.raises(ValueError, match="batch"):
            Loader(numbered(count), batch_size=batch, world_size=world)
        return
    whole = Loader(numbered(count), batch_size=batch, seed=seed).epoch(3)
    shares = [
        Loader(numbered(count), batch_size=batch, seed=seed, rank=r, world_size=world).epoch(3) for r in range(world)
    ]
    assert torch.equal(torch.cat(shares, 1), whole)
    assert whole.numel() == count - count % batch == whole.unique().numel()


def test_the_order_depends_on_seed_and_epoch_alone():
    orders = {tuple(Loader(numbered(50), batch_size=50, seed=s).epoch(e)[0].tolist()) for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4
    first, second = (Loader(numbered(50), batch_size=5, seed=7) for _ in range(2))
    second.epoch(3)
    assert torch.equal(first.epoch(4), second.epoch(4))


@given(count=st.integers(1, 40), batch=st.integers(1, 12), world=st.sampled_from([1, 2]))
def test_in_order_counts_every_image_once(count, batch, world):
    batch = world * min(batch, count // world)
    if batch == 0:
        return
    seen = []
    for rank in range(world):
        indices, counts = Loader(numbered(count), batch_size=batch, rank=rank, world_size=world).in_order()
        assert indices.shape == counts.shape == (-(-count // batch), batch // world)
        seen += indices[counts].tolist()
    assert sorted(seen) == list(range(count))


def test_batches_are_normalised_per_channel():
    digits = numbered(6, channels=3, mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 8.0))
    images, labels = Loader(digits, batch_size=2).batch(torch.tensor([5, 0]))
    assert labels.tolist() == [5, 0]
    torch.testing.assert_close(images[:, :, 0, 0], torch.tensor([[2.0, 0.75, 0.25], [-0.5, -0.5, -0.375]]))
    assert digits.black == pytest.approx((-0.5 - 0.5 - 0.375) / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(2, 1, 4, 4)}, "uint8"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, "labels of shape"),
        ({"labels": torch.tensor([0, 10])}, "from 0 to 10"),
        ({"mean": (1.0, 2.0)}, "must both have 1 values"),
        (
            {"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "std": (1.0,) * 3},
            "must both have 3 values, or both 1",
        ),
        ({"poses": torch.zeros(2, 2), "pose_names": ("rotation",)}, "poses of shape"),
    ],
)
def test_nonsense_is_refused(change, message):
    fields = {"images": torch.zeros(2, 1, 4, 4, dtype=torch.uint8), "labels": torch.tensor([0, 1]), "name": "x"}
    with pytest.raises(ValueError, match=message):
        ImageSet(**(fields | change))
