"""Damaged IDX, gzip and MATLAB files, and bad servers: what was sent is read, or refused with a reason."""

import contextlib
import gzip
import http.server
import struct
import zlib
from importlib import import_module

import numpy as np
from matfiles import write_mat
from servers import serve

from equivariant_transformers.data import cache
from equivariant_transformers.data.matfile import read_mat

mnist = import_module("equivariant_transformers.data.mnist_set")
house_numbers = import_module("equivariant_transformers.data.svhn_set")
affine = import_module("equivariant_transformers.data.affnist_set")

NUMBERS = [0, 1, 2, 4, 5, 6, 8, 14, 15, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1]


def damaged(rng, content):
    content = bytearray(content)
    for _ in range(rng.randrange(1, 5)):
        place = rng.randrange(len(content)) // 4 * 4
        what = rng.randrange(5)
        if what == 0:
            content[place] ^= 1 << rng.randrange(8)
        elif what <= 2:
            content[place : place + 4] = struct.pack("<I", rng.choice(NUMBERS))
        elif what == 3:
            content = content[: max(1, place)]
        else:
            content[place:place] = content[place : place + rng.choice([4, 8, 56])]
    return bytes(content)


def random_mat(rng, path):
    """A MATLAB file with random arrays, damaged before or after it is compressed, and what was in it."""
    kinds = ["u1", "i4", "f8", "f4", "u2"]
    arrays = {
        name: np.arange(6).astype(rng.choice(kinds)).reshape(rng.choice([(2, 3), (1, 6), (6, 1), (1, 2, 3)]))
        for name in "abc"[: rng.randrange(1, 4)]
    }
    if rng.random() < 0.5:
        arrays["s"] = {"x": np.arange(4.0).reshape(2, 2), "label": np.zeros((1, 1), np.uint8)}
    write_mat(path, compress=False, **arrays)
    content = path.read_bytes()
    head, body = content[:128], content[128:]
    if rng.random() < 0.8:
        body = damaged(rng, body)
    if rng.random() < 0.5:
        squeezed = zlib.compress(body)
        squeezed = damaged(rng, squeezed) if rng.random() < 0.2 else squeezed
        body = struct.pack("<II", 15, len(squeezed)) + squeezed
    path.write_bytes(head + body)


def test_matlab_files(fuzz, tmp_path):
    path = tmp_path / "file.mat"

    def check(rng):
        random_mat(rng, path)
        for name, array in read_mat(path).items():
            assert isinstance(name, str)
            assert array.dtype.kind in "iufc"

    fuzz(check, cases=800, allowed=(ValueError,))


def test_house_numbers_and_affnist(fuzz, tmp_path):
    path = tmp_path / "file.mat"

    def check(rng):
        count = rng.randrange(4)
        kind = rng.choice(["u1", "u1", "f8", "i2"])
        label = rng.choice([0, 1, 10, 11, 255, -1, 2.5, float("nan"), float("inf")])
        labels = np.full(rng.choice([(count, 1), (1, count), (count,), (count, 1, 1)]), label).astype(
            rng.choice(["f8", "f4"])
        )
        axes = rng.choice([(32, 32, 3, count), (32, 32, 3), (32, 32), (3, 32, 32, count), (1600, count)])
        pixels = np.full(axes, rng.choice([0, 255, 300, -1])).astype("i2").astype(kind)
        if rng.random() < 0.5:
            write_mat(path, X=pixels, y=labels)
            images, digits = house_numbers._read(path)
            assert images.shape == (len(digits), 3, 32, 32)
        else:
            write_mat(path, affNISTdata={"image": pixels, "label_int": labels})
            images, digits = affine._read_official([path])
            assert images.shape == (len(digits), 1, 40, 40)

    fuzz(check, cases=300, allowed=(ValueError,))


def test_idx_files(fuzz, tmp_path):
    def check(rng):
        shape = rng.choice([(5,), (2, 3, 3), (0,), (1, 1)])
        values = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        content = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + values.tobytes()
        whole = rng.random() < 0.2
        content = content if whole else damaged(rng, content)
        path = tmp_path / rng.choice(["file", "file.gz"])
        packed = gzip.compress(content) if path.suffix else content
        broken = bool(path.suffix) and not whole and rng.random() < 0.5
        path.write_bytes(damaged(rng, packed) if broken else packed)
        found = mnist._read_idx(path, shape)
        assert found.dtype == np.uint8
        assert found.size <= values.size + 4 * 255
        if whole:
            np.testing.assert_array_equal(found, values)

    fuzz(check, cases=600, allowed=(ValueError,))


CONTENT = bytes(range(256)) * 40


def random_reply(rng):
    """What a server, a proxy or a broken network may answer, byte for byte."""
    body = rng.choice([CONTENT, CONTENT, damaged(rng, CONTENT), CONTENT + CONTENT, b"", bytes(2**22)])
    packing = rng.choice(["", "", "gzip", "deflate", "br", "zstd", "nothing", "gzip, gzip"])
    if packing and rng.random() < 0.7:
        body = {"deflate": zlib.compress}.get(packing, gzip.compress)(body)
    headers = [("Content-Encoding", packing)] if packing else []
    if rng.random() < 0.3:
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(4))
        pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True) if start < end]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        headers.append(("Transfer-Encoding", "chunked"))
    elif rng.random() < 0.8:
        lengths = [len(body), len(body), len(body) // 2, len(body) + 1, -1, 2**63, "many", "1, 2", ""]
        headers.append(("Content-Length", rng.choice(lengths)))
    status = rng.choice(
        ["200 OK"] * 8 + ["206 Partial Content", "204 No Content", "302 Found", "404 Not Found", "999 ?"]
    )
    places = ["/", "//", "http://", "file:///etc/hostname", "http://[", "http://127.0.0.1:99999/", "\xff", ""]
    headers.append(("Location", rng.choice(places)))
    rng.shuffle(headers)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    reply = f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin1") + body
    return damaged(rng, reply[:200]) + reply[200:] if rng.random() < 0.2 else reply


def test_downloads(fuzz, tmp_path):
    replies = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.close_connection = True
            with contextlib.suppress(ConnectionError):
                self.wfile.write(replies[-1])

        def log_message(self, *_):
            pass

    path = tmp_path / "file"

    def check(rng):
        replies.append(random_reply(rng))
        path.unlink(missing_ok=True)
        try:
            cache.download(address, path, size=len(CONTENT), known_hash=cache.sha256(CONTENT), timeout=2)
            assert path.read_bytes() == CONTENT
        except ConnectionError:
            assert not list(tmp_path.iterdir())
            raise

    with serve(Handler) as address:
        fuzz(check, cases=150, allowed=(ConnectionError,))
