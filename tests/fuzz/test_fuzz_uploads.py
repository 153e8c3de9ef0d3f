"""Files, drawings and requests of any kind give the demo a digit or a reason, and reach neither names nor strangers."""

import base64
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from asgi import HOST, ORIGIN, Guarded, form
from PIL import Image
from test_uploads import BAD, GOOD

from equivariant_transformers.data.pictures import PictureError
from equivariant_transformers.demo import uploads
from equivariant_transformers.demo.guard import UPLOAD

FILES = [*GOOD.values(), *(data for data, _ in BAD.values() if len(data) < 10**5)]
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "I;16", "F")
NAMES = (
    "picture.png",
    "../up.png",
    "/etc/passwd",
    "\x00\x1b[2J\x9b",
    "\u202e\u4e03.png",
    "",
    "..",
    "n" * 900,
    'q"; x="y',
)


def damaged(random, data):
    """Some bytes of a file changed, cut off, doubled or moved."""
    data = bytearray(data)
    for _ in range(random.randrange(6)):
        start, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
        match random.randrange(4):
            case 0:
                data[start : start + 4] = random.randbytes(4)
            case 1:
                del data[start:]
            case 2:
                data[start:end] = b""
            case 3:
                data[start:start] = data[start : min(end, start + 1000)]
    return bytes(data)


def picture(random):
    """A file of any format, kind of pixel and shape."""
    size = random.choice([(1, 1), (1, 3000), (3000, 1), (7, 5), (40, 60), (600, 500)])
    values = np.random.default_rng(random.randrange(2**32)).integers(0, 256, (size[1], size[0]), dtype=np.uint8)
    image = Image.fromarray(values // random.choice([1, 2, 255]))
    file = io.BytesIO()
    try:
        others = [image.convert("L")] * random.choice([0, 0, 3])
        image = image.convert(random.choice(MODES))
        image.save(
            file, random.choice(uploads.FORMATS), **({"save_all": True, "append_images": others} if others else {})
        )
    except (OSError, ValueError, KeyError, DeprecationWarning):  # which this format cannot hold
        return b""
    return file.getvalue()


def check_digit(digit):
    assert digit.shape == (28, 28)
    assert 0 < digit.max() <= 255


def test_any_file_gives_a_picture_or_a_reason(fuzz):
    def check(random):
        data = random.choice([lambda: random.choice(FILES), lambda: picture(random)])()
        data = damaged(random, data)
        if random.randrange(3):
            check_digit(uploads.read(data))
        else:
            assert uploads.read_photograph(data).shape == (3, 192, 192)

    fuzz(check, cases=150, allowed=(PictureError,))


def test_any_drawing_gives_a_digit_or_a_reason(fuzz):
    def check(random):
        code = list(base64.b64encode(GOOD["grey"]).decode())
        for _ in range(random.randrange(3)):
            code[random.randrange(len(code))] = random.choice(["\u00fc", "\u4e03", "\ud800", "=", "\x00", "", "+", "A"])
        start = random.choice(["data:image/png;base64,", "data:image/png;base64,", "", "data:", "\ud800,"])
        check_digit(uploads.read_drawing(random.choice([start + "".join(code), start, None, {}, b"\xff", 7.0])))

    fuzz(check, cases=100, allowed=(PictureError,))


@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # nameless ones, of forms without an end
def test_any_upload_is_stored_within_the_limits_or_refused(fuzz):
    def check(random):
        with tempfile.TemporaryDirectory() as folder:
            inside = Path(folder, "uploads")
            guarded = Guarded(inside, most_bytes=1000, most_files=3)
            for _ in range(8):
                body, headers = form(
                    random.randbytes(random.randrange(1000)),
                    random.choice(NAMES),
                    random.choice(["files", "files", "file", ""]),
                    random.choice(["frontier", "f", "-" * 60]),
                )
                if random.random() < 0.3:
                    body = damaged(random, body)
                if random.random() < 0.1:
                    headers[2] = (
                        "Content-Type",
                        random.choice(["multipart/form-data", "text/plain", "multipart/form-data; boundary="]),
                    )
                cut = random.randrange(len(body) + 1)
                answer = guarded.ask("POST", UPLOAD, headers, [body[:cut], body[cut:]], whole=random.random() < 0.9)
                assert not answer or answer[0]["status"] in (200, 400)
            assert guarded.reached == 0
            assert guarded.guard._uploads == 0
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            assert len(files) <= 3
            assert all(path.parent == inside and path.name.isalnum() for path in files)

    fuzz(check, cases=25)


def test_no_request_of_a_stranger_arrives(fuzz):
    def check(random):
        guarded = Guarded(Path("never"))
        host = random.choice(
            [HOST, "localhost:1", "LocalHost", "evil.example", "127.0.0.1.evil:80", "", "a b", "[::1]"]
        )
        origin = random.choice(
            [None, f"http://{host}".lower(), ORIGIN, "null", "", "http://evil.example", f"https://{host}"]
        )
        site = random.choice([None, "same-origin", "none", "same-site", "cross-site", "other"])
        mode, dest = random.choice(["navigate", "cors", "no-cors"]), random.choice(["document", "iframe", "image"])
        method = random.choice(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "ODD"])
        path = random.choice(["/", "/config", "/gradio_api/queue/join", "/gradio_api/queue/data", "/any\u4e03"])
        kind = random.choice(["http", "http", "websocket"])
        headers = [("Host", host), ("Sec-Fetch-Mode", mode), ("Sec-Fetch-Dest", dest)]
        headers += [("Origin", origin)] if origin is not None else []
        headers += [("Sec-Fetch-Site", site)] if site else []
        known = host in (HOST, "localhost:1", "LocalHost")
        link = kind == "http" and (method, path, mode, dest) == ("GET", "/", "navigate", "document")
        own = origin in (None, f"http://{host}".lower()) and (site in (None, "same-origin", "none") or link)
        answer = guarded.ask(method, path, headers, kind=kind)
        assert guarded.reached == (known and own)
        if not guarded.reached and kind == "http":
            assert answer[0]["status"] == (403 if known else 421)

    fuzz(check, cases=400)
