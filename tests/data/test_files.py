"""A file is written whole or not at all, whatever happens meanwhile."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from equivariant_transformers.data import files
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


WRITER = """
import pathlib, sys
from equivariant_transformers.data.files import atomic_write
with atomic_write(pathlib.Path(sys.argv[1])) as file:
    file.write(b"theirs")
    print("writing", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writer(path):
    """A process in the middle of writing `path`, which goes on when its input ends."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        yield process


def test_what_a_killed_process_left_is_removed_and_what_others_write_is_not(tmp_path):
    path = tmp_path / "file[1]"
    with writer(path) as killed:
        killed.kill()
    (abandoned,) = tmp_path.iterdir()
    own = tmp_path / ".file[1].settings"
    own.touch()
    with writer(path) as living:
        assert not abandoned.exists()
        (written,) = set(tmp_path.iterdir()) - {own}
        for ancient in (0, time.time() - 24 * 3600, time.time() + 24 * 3600):
            os.utime(written, (ancient, ancient))
            with atomic_write(path) as file:
                file.write(b"ours")
            assert set(tmp_path.iterdir()) == {path, written, own}
        assert path.read_bytes() == b"ours"
        living.communicate()
        assert living.returncode == 0
    assert path.read_bytes() == b"theirs"
    assert set(tmp_path.iterdir()) == {path, own}


def test_a_file_found_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """Another process may remove it between the two."""
    path = tmp_path / "file"
    lock, taken = fcntl.flock, []

    def late(descriptor, operation):
        if not taken:
            (temporary,) = tmp_path.iterdir()
            taken.append(temporary)
            files._remove_abandoned(path)
            assert not temporary.exists()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize(
    "elsewhere",
    [
        lambda patch: patch.setattr(fcntl, "flock", no_locks),
        lambda patch: patch.setattr(files, "fcntl", None),
        lambda patch: patch.setattr(files, "_host", lambda: 8 * "0"),
    ],
    ids=["without locks", "on Windows", "on another machine"],
)
def test_where_nobody_can_tell_nothing_is_removed(tmp_path, monkeypatch, elsewhere):
    path = tmp_path / "file"
    with writer(path) as killed:
        killed.kill()
    (left,) = tmp_path.iterdir()
    elsewhere(monkeypatch)
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert set(tmp_path.iterdir()) == {path, left}


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(OSError, match="not a file"), atomic_write(path) as file:
            file.write(b"content")
    assert pipe.is_fifo()
