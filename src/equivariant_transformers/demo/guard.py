"""Access to the demo: requests of its own page only, under its own name, and of bounded size."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from equivariant_transformers.demo.store import Store

UPLOAD = "/gradio_api/upload"
MOST_UPLOADS = 4
"""Number of uploads that may be under way at once."""
MOST_BODY = 2**20
"""Number of bytes in the body of a request that is not an upload. A drawing takes a tenth of it."""
_AROUND = 2**16  # bytes of an upload's request around its file
_OWN = ("same-origin", "none")  # requests of the page itself, and of a person who types its address


class Guard:
    """ASGI application that refuses what must not reach `app`, and answers it with the reason.

    A web page of another site can send requests to this machine through the browser of a person who visits it. Such
    requests name another site in their `Origin` or `Sec-Fetch-Site`. If the site resolves its own name to this machine
    (DNS rebinding), they name the site in their `Host`. Links to the page itself are allowed.

    Args:
        app: the application behind the guard.
        hosts: names in `Host` under which the application may be asked, without the port.
        store: the place of uploaded files.
        most_bytes: size of the largest file that may be uploaded.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], store: Store, most_bytes: int) -> None:
        self.app = app
        self.hosts = hosts
        self.store = store
        self.most_bytes = most_bytes
        self._uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = self._stranger(scope) or self._too_large(scope)
        if refusal is not None:
            await _refuse(scope, receive, send, *refusal)
        elif scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == UPLOAD:
            await self._upload(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _stranger(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason to refuse a request that comes from another site."""
        headers = Headers(scope=scope)
        given = headers.getlist("host")
        if len(given) != 1 or re.sub(r":\d+$", "", given[0]).lower() not in self.hosts:
            names = " or ".join(self.hosts)
            return 421, f"The demo is served as {names}, not as {given!a}. Open the address that et demo printed."
        own = f"{'https' if scope['scheme'] in ('https', 'wss') else 'http'}://{given[0]}".lower()
        if any(origin.lower() != own for origin in headers.getlist("origin")):
            return 403, f"The demo answers its own page at {own} only, not a page of another origin."
        if any(site not in _OWN for site in headers.getlist("sec-fetch-site")) and not _is_link(scope, headers):
            return 403, f"The demo answers its own page at {own} only, not a page of another site."
        return None

    def _too_large(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason to refuse a request before its body is read."""
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers:
            return 411, "The size of a request must be known beforehand. Send a Content-Length."
        most = self.most_bytes + _AROUND if scope["path"] == UPLOAD else MOST_BODY
        size = int(headers.get("content-length", 0))
        if size > most:
            return 413, f"The request has {size:,} bytes, and {most:,} are allowed. Send a smaller file."
        return None

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the file in a request, in place of Gradio: one whole file, whatever its name."""
        if self._uploads == MOST_UPLOADS:
            reason = f"{MOST_UPLOADS} uploads are under way already. Try again when one of them has ended."
            await _refuse(scope, receive, send, 503, reason)
            return
        self._uploads += 1
        try:
            async with Request(scope, receive).form(max_files=1, max_fields=0) as form:
                file = form.get("files")
                data = await file.read() if isinstance(file, UploadFile) else None
        except HTTPException as error:
            await _refuse(scope, receive, send, error.status_code, error.detail)
        except ClientDisconnect:
            pass  # the page was closed before all of the file had come
        else:
            if data is None:
                await _refuse(scope, receive, send, 400, "An upload is a form with one file, which is called files.")
            else:
                await JSONResponse([str(self.store.keep(data))])(scope, receive, send)
        finally:
            self._uploads -= 1


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Return whether a browser follows a link to the page, in a tab and not in a frame."""
    navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/" and navigates


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})
    else:
        await PlainTextResponse(f"{reason}\n", status)(scope, receive, send)
