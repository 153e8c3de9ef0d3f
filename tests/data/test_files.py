"""A file is written whole or not at all, whatever happens meanwhile."""

import errno
import os
import subprocess
import sys
import time

import pytest

from equivariant_transformers.data.files import atomic_write


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "new" / "file"
    with atomic_write(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [ValueError("nonsense"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_a_failed_write_changes_nothing(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"new")
        raise error

    with pytest.raises(type(error)), atomic_write(path) as file:
        fail(file)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_left_is_removed_and_what_others_write_is_not(tmp_path):
    path = tmp_path / "file[1]"
    program = f"""
import os, pathlib, signal
from equivariant_transformers.data.files import atomic_write
with atomic_write(pathlib.Path({str(path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], check=False)
    abandoned, written = tmp_path.iterdir()
    yesterday = time.time() - 24 * 3600
    os.utime(abandoned, (yesterday, yesterday))
    own = tmp_path / ".file[1].settings"
    own.touch()
    os.utime(own, (yesterday, yesterday))
    with atomic_write(path) as file:
        file.write(b"new")
    assert set(tmp_path.iterdir()) == {path, written, own}


def test_a_full_disk_is_explained(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(OSError, match=r"no space left to write .*file: free some space there, or choose"),
        atomic_write(tmp_path / "file") as file,
    ):
        file.write(b"new")
    assert list(tmp_path.iterdir()) == []
