"""Images that are not in memory: they take little of it, and workers may be started in any way."""

import shutil
import subprocess
import sys

import pytest
import torch
from bounded import run_bounded
from photos import write_folder
from PIL import Image

from equivariant_transformers.data import BufferedLoader, Loader, from_folder
from equivariant_transformers.data.stored import read_batches, workers

READ = """
splits = from_folder(sys.argv[1], size=640, validation=0, test=0, memory=float(sys.argv[2]))
loader = BufferedLoader(Loader(splits.train, batch_size=16))
loader.start(loader.epoch(0))
for _ in range(len(loader)):
    loader.advance()
print(len(loader), loader.buffer.min().item(), loader.buffer.max().item())
loader.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_streamed_images_take_little_memory(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    Image.new("RGB", (40, 40), (90, 90, 90)).save(folder / "0.png")
    for index in range(1, 150):
        shutil.copy(folder / "0.png", folder / f"{index}.png")
    imports = "from equivariant_transformers.data import BufferedLoader, Loader, from_folder, pictures"
    resident, streamed = (
        run_bounded(READ, tmp_path, memory, imports=imports, megabytes=150) for memory in (1, 0)
    )  # 184 MB decoded
    assert resident.returncode != 0
    assert "Unable to allocate" in resident.stderr or "memory" in resident.stderr.lower()
    assert streamed.stdout.split() == ["9", "90", "90"], streamed.stderr


def test_rows_of_any_length_are_read_in_order(tmp_path):
    folder = write_folder(tmp_path, 60)
    resident, streamed = (from_folder(folder, size=128, memory=memory).train.images for memory in (1, 0))
    rows = torch.split(torch.arange(len(resident)).flip(0), 41)  # several pieces and a short row
    for row, batch in zip(rows, read_batches(streamed, rows), strict=True):
        assert torch.equal(batch, resident[row])
    assert streamed[3].shape == (3, 128, 128)
    assert torch.equal(streamed[-1], resident[-1])
    assert torch.equal(streamed[[5, 2]], resident[[5, 2]])
    assert torch.equal(streamed[2:4], resident[2:4])
    assert torch.equal(streamed.subset(resident.new_ones(42) > 0)[:], resident)
    with pytest.raises(IndexError):
        streamed[1000]


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_share_streamed_batches(tmp_path, rank):
    folder = write_folder(tmp_path, 30)
    plain, ahead = (
        Loader(from_folder(folder, memory=memory).train, batch_size=8, rank=rank, world_size=2) for memory in (1, 0)
    )
    ahead = BufferedLoader(ahead)
    for order in (ahead.epoch(2), ahead.in_order()[0]):
        ahead.start(order)
        for indices in order:
            ahead.advance()
            assert all(map(torch.equal, ahead.batch(indices), plain.batch(indices)))


def test_processes_share_the_workers(monkeypatch):
    alone = workers()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert workers() == 1 <= alone <= 8


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_be_started_in_any_way(tmp_path, method):
    write_folder(tmp_path / "photos", 12)
    script = tmp_path / "script.py"
    script.write_text(f"""
import multiprocessing
from equivariant_transformers.data import from_folder

if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    splits = from_folder({str(tmp_path / "photos")!r}, memory=0)
    print([len(part) for part in splits])
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[9, 1, 2]", done.stderr
