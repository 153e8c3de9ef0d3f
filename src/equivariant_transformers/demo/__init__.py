"""The demo that `et demo` opens in a browser: what the layers do to a digit, live."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import torch

from equivariant_transformers.demo import scene, uploads
from equivariant_transformers.demo.store import Store
from equivariant_transformers.demo.work import Work
from equivariant_transformers.hub.classifier import Classifier

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
"""Names under which a browser on this machine may ask for the page."""
_PATIENCE = 10.0  # seconds to let what is being drawn end
_UPLOADS = "uploads"  # folder inside of the temporary one


@contextmanager
def running(
    model: Classifier, plain: Classifier | None = None, *, port: int | None = None, browser: bool = False
) -> Iterator[str]:
    """The address of the demo, which is served until the block ends, to this machine only.

    Args:
        model: a network with layers.
        plain: a network without, for comparison.
        port: by default a free one from 7860 on.
        browser: whether to open the page.
    """
    scene.check(model, plain, uploads.SIDE)
    if port is not None:
        _check_free(port)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster for one image, and steady beside other programs
    with tempfile.TemporaryDirectory(prefix="et-demo-") as folder, _environment(_variables(Path(folder))):
        from equivariant_transformers.demo import guard, page  # Gradio looks at its variables when it is imported

        @asynccontextmanager
        async def guarded(app: Any) -> AsyncIterator[None]:  # outside all of Gradio's own middleware, before it serves
            store = Store(Path(folder, _UPLOADS))
            app.middleware_stack = guard.Guard(
                app.middleware_stack, hosts=HOSTS, store=store, most_bytes=uploads.MOST_BYTES
            )
            yield

        work = Work()
        blocks = page.build(model, plain, work)
        try:
            _, address, _ = blocks.launch(
                server_name=HOST,
                server_port=port,
                inbrowser=browser,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                footer_links=[],
                max_file_size=uploads.MOST_BYTES,
                state_session_capacity=page.SESSIONS,
                app_kwargs={"lifespan": guarded},
                ssr_mode=False,
                theme=page.theme(),
                css=page.STYLE,
            )
            yield address
        finally:
            blocks.close(verbose=False)
            work.wait(seconds=_PATIENCE)
            torch.set_num_threads(threads)


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise OSError(f"port {port} is taken or not allowed ({error.strerror}); choose another one") from None


def _variables(folder: Path) -> dict[str, str]:
    """Return what keeps Gradio, and the matplotlib that it loads, from writing elsewhere and from telling anyone."""
    return {
        "GRADIO_TEMP_DIR": str(folder / _UPLOADS),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_ANALYTICS_MAX_EVENTS": "100",  # a record of each event is kept in memory
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": str(folder),
    }


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
