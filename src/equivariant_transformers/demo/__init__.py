"""Demo that `et demo` opens in a browser: the effect of layers on digits and photographs, live."""

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
from equivariant_transformers.demo.photographs import uprighting
from equivariant_transformers.demo.store import Store
from equivariant_transformers.demo.work import Work
from equivariant_transformers.hub.classifier import Classifier

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
"""Host names under which a browser on this machine may request the page."""
_PATIENCE = 10.0  # seconds to wait for running computations at the end
_UPLOADS = "uploads"  # subfolder of the temporary folder


@contextmanager
def running(
    model: Classifier, plain: Classifier | None = None, *, port: int | None = None, browser: bool = False
) -> Iterator[str]:
    """Serve the demo until the block ends, to this machine only, and yield its address.

    Args:
        model: a network with layers.
        plain: a network without layers, for comparison.
        port: the port; the first free port from 7860 by default.
        browser: whether to open the page in a browser.
    """
    scene.check(model, plain, uploads.SIDE)
    if port is not None:
        _check_free(port)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster for one image, and less affected by other programs
    with tempfile.TemporaryDirectory(prefix="et-demo-") as folder, _environment(_variables(Path(folder))):
        from equivariant_transformers.demo import guard, page  # Gradio reads its variables at import

        @asynccontextmanager
        async def guarded(app: Any) -> AsyncIterator[None]:  # before serving, outside all of Gradio's own middleware
            store = Store(Path(folder, _UPLOADS))
            app.middleware_stack = guard.Guard(
                app.middleware_stack, hosts=HOSTS, store=store, most_bytes=uploads.MOST_BYTES
            )
            yield

        work = Work()
        blocks = page.build(model, plain, uprighting(), work)
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
            raise OSError(f"port {port} is in use or not allowed ({error.strerror}); choose another port") from None


def _variables(folder: Path) -> dict[str, str]:
    """Return environment variables that keep Gradio, matplotlib and torch in `folder` and disable telemetry."""
    return {
        "GRADIO_TEMP_DIR": str(folder / _UPLOADS),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_ANALYTICS_MAX_EVENTS": "100",  # Gradio keeps a record of each event in memory
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # created when a canonicalizer is loaded
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
