"""Files in the cache are whole or absent, whatever happens while they are written."""

import contextlib
import errno
import http.server
import subprocess
import sys
import threading
from pathlib import Path

import pytest

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
    """Answers `/whole` in full, `/cut` with half of what it promises, `/chunks` likewise in chunks."""

    protocol_version = "HTTP/1.1"
    content = bytes(range(256)) * 4096

    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.close_connection = True
        if self.path == "/chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"1000\r\n" + self.content[:1000])
            return
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content if self.path == "/whole" else self.content[: len(self.content) // 2])

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_download(address, tmp_path):
    shares = []
    cache.download(address + "/whole", tmp_path / "file", lambda what, share: shares.append((what, share)))
    assert (tmp_path / "file").read_bytes() == Files.content
    assert shares[-1] == ("downloading file", 1.0)
    assert shares == sorted(shares)


@pytest.mark.parametrize(("path", "message"), [("/cut", "broke off"), ("/chunks", "broke off"), ("/missing", "404")])
def test_a_download_that_breaks_off_leaves_nothing(address, tmp_path, path, message):
    with pytest.raises(OSError, match=message):
        cache.download(address + path, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_leaves_nothing(address, tmp_path):
    def interrupt(_, share):
        if share > 0.4:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        cache.download(address + "/whole", tmp_path / "file", interrupt)
    assert list(tmp_path.iterdir()) == []
