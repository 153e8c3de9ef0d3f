"""The served demo answers its own page only, and neither its memory nor its disk grows with use."""

import http.client
import json
import socket
import time

import demo_process
import pytest
from asgi import HOST, ORIGIN, Guarded, form
from test_uploads import GOOD

from equivariant_transformers.demo.guard import MOST_BODY, MOST_UPLOADS, UPLOAD
from equivariant_transformers.demo.store import MOST_FILES, MOST_STORED
from equivariant_transformers.demo.uploads import MOST_BYTES

OTHER = "http://elsewhere.example"
WRITES = [  # what a page may ask a Gradio application to do
    ("POST", path)
    for path in (
        UPLOAD,
        *(f"/gradio_api/{name}" for name in ("queue/join", "run/show", "api/show", "call/show", "call/v2/show")),
        *(f"/gradio_api/{name}" for name in ("cancel", "reset", "component_server", "process_recording", "stream/7")),
        "/login",
    )
]
READS = [
    ("GET", path)
    for path in (
        *("/", "/config", "/theme.css", "/gradio_api/info", "/gradio_api/queue/data?session_hash=7"),
        *("/gradio_api/heartbeat/7", "/gradio_api/deep_link?session_hash=7", "/gradio_api/startup-events"),
    )
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with demo_process.running(tmp_path_factory.mktemp) as process:
        process.config = json.loads(ask(process, "GET", "/config")[1])
        yield process


def ask(demo, method, path, headers=None, body=b"", *, host="127.0.0.1:{port}", size=None):
    """Send a request, and return the status and the text of the answer. A `host` of None is left out."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host.format(port=demo.port))
        for name, value in (headers or {}).items():
            connection.putheader(name, value.format(port=demo.port))
        if method != "GET":
            connection.putheader("Content-Length", str(len(body) if size is None else size))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def upload(demo, data, **options):
    body, headers = form(data, **options)
    content = {name: value for name, value in headers if name == "Content-Type"}
    return ask(demo, "POST", UPLOAD, {"Origin": "http://127.0.0.1:{port}", **content}, body)


def join(demo, event, session, **event_data):
    """Start the first event of a kind, with the values that the page has at first."""
    values = {part["id"]: part["props"].get("value") for part in demo.config["components"]}
    found = next(each for each in demo.config["dependencies"] if [target[1] for target in each["targets"]] == [event])
    data = {"data": [values[number] for number in found["inputs"]], "fn_index": found["id"], "session_hash": session}
    body = json.dumps({**data, "event_data": event_data or None}).encode()
    status, text = ask(demo, "POST", "/gradio_api/queue/join", {"Content-Type": "application/json"}, body)
    assert status == 200, text


def outcome(demo, session):
    status, text = ask(demo, "GET", f"/gradio_api/queue/data?session_hash={session}")
    assert status == 200
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize(("method", "path"), WRITES + READS, ids=lambda part: part)
def test_another_host_is_refused_everywhere(demo, method, path):
    for host in ("elsewhere.example", "elsewhere.example:{port}", "127.0.0.1.elsewhere.example:{port}", "[::1]:{port}"):
        assert ask(demo, method, path, host=host)[0] == 421
        assert ask(demo, method, path, {"Origin": f"http://{host}"}, host=host)[0] == 421


@pytest.mark.parametrize(("method", "path"), WRITES + READS, ids=lambda part: part)
def test_another_site_is_refused_everywhere(demo, method, path):
    for headers in (
        {"Origin": OTHER},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost:{port}"},  # the same program, but not the same origin
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ):
        status, text = ask(demo, method, path, headers)
        assert status == 403
        assert "may send requests to the demo" in text


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:9000"])
def test_the_own_page_is_answered_under_each_of_its_names(demo, host):
    for headers in (
        {},
        {"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},  # a link
    ):
        status, text = ask(demo, "GET", "/", headers, host=host)
        assert status == 200
        assert "Equivariant Transformers" in text


def test_a_request_without_a_host_or_with_two_is_refused(demo, tmp_path):
    for headers in ("", f"Origin: {OTHER}\r\n"):
        with socket.create_connection(("127.0.0.1", demo.port), timeout=60) as connection:
            connection.sendall(f"GET / HTTP/1.0\r\n{headers}\r\n".encode())
            assert connection.recv(100).split()[1] == b"421"
    guarded = Guarded(tmp_path)
    assert guarded.ask(headers=[("Host", HOST), ("Host", HOST)])[0]["status"] == 421
    assert guarded.ask(headers=[("Host", HOST), ("Origin", ORIGIN), ("Origin", OTHER)])[0]["status"] == 403
    assert guarded.reached == 0


def test_an_event_of_the_own_page_works(demo):
    join(demo, "pick", "picked", index=3)
    assert outcome(demo, "picked")[-2]["success"]


@pytest.mark.parametrize(("path", "most"), [(UPLOAD, MOST_BYTES + 2**17), ("/gradio_api/queue/join", MOST_BODY)])
def test_a_large_request_is_refused_before_it_is_read(demo, path, most):
    status, text = ask(demo, "POST", path, size=most + 1)
    assert status == 413
    assert f"{most + 1:,} bytes" in text
    assert ask(demo, "GET", path, {"Transfer-Encoding": "chunked"})[0] == 411


def stored(demo):
    """The files of uploads, of which the sizes are known."""
    return {path: path.stat().st_size for path in demo.temporary.glob("et-demo-*/uploads/**/*") if path.is_file()}


def test_the_disk_does_not_grow_with_uploads(demo):
    for number in range(2 * MOST_FILES):
        status, text = upload(demo, b"%d" % number * 1000)
        assert status == 200
        (path,) = json.loads(text)
        assert path in map(str, stored(demo))
    assert len(stored(demo)) == MOST_FILES
    for number in range(8):
        assert upload(demo, b"%d" % number * (MOST_BYTES - 1))[0] == 200
    assert sum(stored(demo).values()) <= MOST_STORED
    before = stored(demo)
    assert upload(demo, b"7" * (MOST_BYTES - 1))[0] == 200  # again
    assert stored(demo) == before


def test_an_upload_that_breaks_off_leaves_nothing(demo):
    body, headers = form(bytes(10**6))
    before = stored(demo)
    for _ in range(2 * MOST_UPLOADS):
        with socket.create_connection(("127.0.0.1", demo.port), timeout=60) as connection:
            lines = [f"POST {UPLOAD} HTTP/1.1", f"Host: 127.0.0.1:{demo.port}"]
            lines += [f"{name}: {value}" for name, value in headers if name.startswith("Content")]
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + body[:500_000])
    deadline = time.monotonic() + 20
    while upload(demo, b"whole")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(stored(demo)) <= len(before) + 1
    assert set(before.values()) >= set(stored(demo).values()) - {5}


@pytest.mark.parametrize(
    "name",
    ["../../up.png", "/etc/passwd", "..", "", "a\x1b[2Jb\x9b.png", "\u202egnp.\u4e03", "n" * 1000, "a\\..\\b", "CON"],
    ids=range(9),
)
def test_the_name_of_an_upload_is_not_used(demo, name):
    status, text = upload(demo, GOOD["grey"], name=name)
    assert status == 200
    assert upload(demo, GOOD["grey"])[1] == text
    assert all(len(path.name) == 64 and path.name.isalnum() for path in stored(demo))
    assert not list(demo.temporary.rglob("*.png"))


def memory(demo):
    """Megabytes that a demo takes."""
    with open(f"/proc/{demo.pid}/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) / 1024


def test_memory_does_not_grow_with_sessions(demo):
    def visit(number):
        if number % 4 == 0:
            join(demo, "input", f"abandoned{number}")  # which nobody waits for
        join(demo, "pick", f"session{number}", index=3)
        assert outcome(demo, f"session{number}")[-2]["success"]

    for number in range(80):
        visit(number)
    before = memory(demo)
    for number in range(200):
        visit(1000 + number)
    assert memory(demo) - before < 8


@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # nameless ones, of forms without an end
def test_uploads_at_once_are_limited(tmp_path):
    guarded = Guarded(tmp_path)
    guarded.guard._uploads = MOST_UPLOADS
    body, headers = form(b"one")
    assert guarded.ask("POST", UPLOAD, headers, [body])[0]["status"] == 503
    guarded.guard._uploads = MOST_UPLOADS - 1
    assert guarded.ask("POST", UPLOAD, headers, [body])[0]["status"] == 200
    assert guarded.ask("POST", UPLOAD, headers, [body[:50]], whole=False) == []
    assert guarded.ask("POST", UPLOAD, headers, [body])[0]["status"] == 200
    assert guarded.reached == 0


def test_websockets_of_others_are_closed(tmp_path):
    guarded = Guarded(tmp_path)
    (closed,) = guarded.ask(kind="websocket", path="/any", headers=[("Host", HOST), ("Origin", OTHER)])
    assert closed["type"] == "websocket.close"
    guarded.ask(kind="websocket", path="/any", headers=[("Host", HOST), ("Origin", ORIGIN)])
    assert guarded.reached == 1
