"""Access control of the demo: only requests of its own page, under its own host name, and of limited size."""

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
"""Maximum number of simultaneous uploads."""
MOST_BODY = 2**20
"""Maximum number of bytes in the body of a request that is not an upload. A drawing takes a tenth of it."""
_AROUND = 2**16  # bytes of an upload request in addition to its file
_OWN = ("same-origin", "none")  # requests of the page itself, and of a user who types the address


class Guard:
    """ASGI application that refuses requests that must not reach `app`, and responds with the reason.

    A page of another site can send requests to this machine through the user's browser. The headers `Origin` or
    `Sec-Fetch-Site` of such a request name another site. If the site resolves its own name to this machine (DNS
    rebinding), the header `Host` names the site. Links to the demo's page are allowed.

    Args:
        app: the application behind the guard.
        hosts: allowed host names in `Host`, without the port.
        store: storage of uploaded files.
        most_bytes: maximum size of an uploaded file.
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
            return 421, f"The host must be {names}, got {given!a}. Open the address that et demo printed."
        own = f"{'https' if scope['scheme'] in ('https', 'wss') else 'http'}://{given[0]}".lower()
        if any(origin.lower() != own for origin in headers.getlist("origin")):
            return 403, f"Only the page at {own} may send requests to the demo, not a page of another origin."
        if any(site not in _OWN for site in headers.getlist("sec-fetch-site")) and not _is_link(scope, headers):
            return 403, f"Only the page at {own} may send requests to the demo, not a page of another site."
        return None

    def _too_large(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason to refuse a request before its body is read."""
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers:
            return 411, "A Transfer-Encoding is not allowed. Send a Content-Length instead."
        most = self.most_bytes + _AROUND if scope["path"] == UPLOAD else MOST_BODY
        size = int(headers.get("content-length", 0))
        if size > most:
            return 413, f"The request has {size:,} bytes; at most {most:,} are allowed. Send a smaller file."
        return None

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the file of an upload request, in place of Gradio: exactly one complete file, with any name."""
        if self._uploads == MOST_UPLOADS:
            reason = f"{MOST_UPLOADS} uploads are in progress, the maximum. Try again when one has finished."
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
            pass  # the page was closed before the upload was complete
        else:
            if data is None:
                await _refuse(scope, receive, send, 400, "The form has no file. Send one file in the field 'files'.")
            else:
                await JSONResponse([str(self.store.keep(data))])(scope, receive, send)
        finally:
            self._uploads -= 1


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Return whether the request follows a link to the page, in a tab and not in a frame."""
    navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/" and navigates


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})
    else:
        await PlainTextResponse(f"{reason}\n", status)(scope, receive, send)
