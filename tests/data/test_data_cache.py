"""Files in the cache are whole or absent, whatever happens while they are written."""

import contextlib
import errno
import gzip
import hashlib
import http.server
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from servers import serve

from equivariant_transformers.data import cache


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    assert cache.root() == tmp_path
    monkeypatch.delenv("ET_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.root() == tmp_path / "equivariant_transformers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.root() == Path.home() / ".cache" / "equivariant_transformers"


# The module is loaded from its file, without the package around it and torch, to start quickly.
IN_ANOTHER_PROCESS = f"""
import importlib.util, os, pathlib, sys
spec = importlib.util.spec_from_file_location("cache", {cache.__file__!r})
cache = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache)
path = pathlib.Path(sys.argv[1])
"""
COUNT_UP = """
for _ in range(200):
    with cache.lock(path):
        path.write_text(str(int(path.read_text()) + 1))
"""
DIE = """
lock = cache.lock(path)
lock.__enter__()
os._exit(7)
"""


def start(code, path):
    return subprocess.Popen([sys.executable, "-c", IN_ANOTHER_PROCESS + code, str(path)])


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "number"
    path.write_text("0")
    processes = [start(COUNT_UP, path) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert path.read_text() == "600"


def test_one_thread_at_a_time(tmp_path):
    path = tmp_path / "number"
    path.write_text("0")
    threads = [threading.Thread(target=exec, args=(COUNT_UP, {"cache": cache, "path": path})) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "600"


def test_a_lock_of_a_dead_process_is_free(tmp_path):
    assert start(DIE, tmp_path / "file").wait() == 7
    with cache.lock(tmp_path / "file"):
        pass


def test_without_locks_a_warning_says_so(tmp_path, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked .*other processes may fetch it too"), cache.lock(tmp_path):
        pass


class Files(http.server.BaseHTTPRequestHandler):
    """Answers `/whole` with the file, and other paths with what a bad server or network makes of it."""

    protocol_version = "HTTP/1.1"
    content = bytes(range(256)) * 4096
    headers_of: ClassVar = {
        "/cut": {"Content-Length": len(content)},
        "/length": {"Content-Length": "many"},
        "/lengths": {"Content-Length": "1, 2"},
        "/chunks": {"Transfer-Encoding": "chunked"},
        "/packed": {"Content-Encoding": "gzip"},
        "/garbled": {"Content-Encoding": "gzip"},
        "/elsewhere": {"Location": "/whole"},
        "/elsewhere/missing": {"Location": "/missing"},
    }
    body_of: ClassVar = {
        "/cut": content[: len(content) // 2],
        "/chunks": b"1000\r\n" + content[:1000],
        "/empty": b"",
        "/other": content[:-1] + b"?",
        "/more": content + b"?",
        "/packed": gzip.compress(bytes(2**28)),
    }

    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path == "/silent":
            self.connection.recv(1)  # until the client is gone
            return
        self.close_connection = True
        self.send_response(302 if self.path.startswith("/elsewhere") else 200)
        for name, value in self.headers_of.get(self.path, {}).items():
            self.send_header(name, str(value))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client has heard enough
            if self.path == "/endless" or self.path.startswith("/elsewhere"):
                while True:
                    self.wfile.write(self.content)
            self.wfile.write(self.body_of.get(self.path, self.content))

    def log_message(self, *_):
        pass


FILE = {"size": len(Files.content), "known_hash": hashlib.sha256(Files.content).hexdigest()}


@pytest.fixture
def address():
    with serve(Files) as address:
        yield address


@pytest.mark.parametrize("path", ["whole", "elsewhere"])
def test_a_download(address, tmp_path, path):
    shares = []
    cache.download(address + path, tmp_path / "file", **FILE, progress=lambda *told: shares.append(told))
    assert (tmp_path / "file").read_bytes() == Files.content
    assert shares[-1] == ("downloading file", 1.0)
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("cut", "IncompleteRead"),
        ("chunks", "Connection broken"),
        ("missing", "404"),
        ("elsewhere/missing", "404"),
        ("empty", r"0 of 1,048,576 bytes arrived, with SHA-256 \w{64} instead of \w{64}"),
        ("other", r"1,048,576 of 1,048,576 bytes arrived, with SHA-256 \w{64} instead of \w{64}"),
        ("more", "more than the 1,048,576 bytes"),
        ("endless", "more than the 1,048,576 bytes"),
        ("packed", "more than the 1,048,576 bytes"),
        ("garbled", "gzip"),
        ("length", "many"),
        ("lengths", "1, 2"),
        ("silent", "timed out"),
    ],
)
def test_a_bad_download_leaves_nothing(address, tmp_path, path, message):
    (tmp_path / "file").write_bytes(b"what was there before")
    with pytest.raises(ConnectionError, match=rf"{address}{path} could not be downloaded: .*{message}"):
        cache.download(address + path, tmp_path / "file", **FILE, timeout=0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"what was there before"


def test_nobody_answers(tmp_path):
    with serve(Files) as address:
        pass
    with pytest.raises(ConnectionError, match=f"{address}whole could not be downloaded: .*refused"):
        cache.download(address + "whole", tmp_path / "file", **FILE)


def test_an_interrupted_download_leaves_nothing(address, tmp_path):
    def interrupt(_, share):
        if share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.download(address + "whole", tmp_path / "file", **FILE, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["pooch", "requests"])
def test_a_download_without_pooch_is_explained(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"downloads need {package}: pip install .*\[train\]'"):
        cache.download("http://127.0.0.1/file", tmp_path / "file", **FILE)
    assert list(tmp_path.iterdir()) == []


def test_the_checksum_of_a_file(tmp_path):
    (tmp_path / "file").write_bytes(Files.content)
    assert cache.sha256(tmp_path / "file") == cache.sha256(Files.content)
