"""Requests to the demo's guard without a network."""

import asyncio

from equivariant_transformers.demo.guard import Guard
from equivariant_transformers.demo.store import Store

HOST = "127.0.0.1:7860"
ORIGIN = f"http://{HOST}"


class Guarded:
    """A guard before an application that counts the requests that reach it, and answers each with 200."""

    def __init__(self, folder, *, most_bytes=1000, **limits):
        self.store = Store(folder, **limits)
        self.reached = 0
        self.guard = Guard(self._app, hosts=("127.0.0.1", "localhost"), store=self.store, most_bytes=most_bytes)

    async def _app(self, _scope, _receive, send):
        self.reached += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def ask(self, method="GET", path="/", headers=(), chunks=(), *, kind="http", whole=True):
        """Send a request with the body `chunks`, and return the messages of the answer. If not `whole`, hang up."""
        scope = {
            "type": kind,
            "method": method,
            "path": path,
            "scheme": "http" if kind == "http" else "ws",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
            "app": self,
        }
        coming = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        coming.append({"type": "http.request", "body": b""} if whole else {"type": "http.disconnect"})
        answer = []

        async def receive():
            return coming.pop(0)

        async def send(message):
            answer.append(message)

        asyncio.run(self.guard(scope, receive, send))
        return answer


def form(data, name="picture.png", field="files", boundary="frontier"):
    """The body of an upload as the page sends it, and its headers."""
    disposition = f'Content-Disposition: form-data; name="{field}"; filename="{name}"'
    head = f"--{boundary}\r\n{disposition}\r\nContent-Type: image/png\r\n\r\n"
    body = head.encode("utf-8", "surrogateescape") + data + f"\r\n--{boundary}--\r\n".encode()
    return body, [
        ("Host", HOST),
        ("Origin", ORIGIN),
        ("Content-Type", f"multipart/form-data; boundary={boundary}"),
        ("Content-Length", str(len(body))),
    ]
