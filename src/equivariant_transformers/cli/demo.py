"""`et demo`."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from equivariant_transformers import install
from equivariant_transformers.cli import console, models

_MODEL = "projective-mnist"


def open_demo(
    model: Annotated[str, typer.Option(metavar="FILE", help=models.HELP)] = _MODEL,
    plain: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help=f"Network without layers, for comparison; {_MODEL}-plain for the default model."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; the first free port from 7860 by default.")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address without opening a browser.")
    ] = False,
) -> None:
    """Open a page that shows the effect of each layer of a network on a digit that you distort.

    The page is available on this machine only, until Ctrl-C.
    """
    if plain is None and model == _MODEL:
        plain = f"{_MODEL}-plain"
    stopped = threading.Event()
    usual = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        from equivariant_transformers.demo import running

        with running(
            models.load(model, any_task=False),
            models.load(plain, any_task=False) if plain else None,
            port=port,
            browser=not no_browser,
        ) as address:
            console.say(f"The demo is at {address} (Ctrl-C to stop)")
            stopped.wait()
    except KeyboardInterrupt:
        console.note("demo stopped")
    except ModuleNotFoundError as missing:
        raise console.Failure(f"et demo needs {missing.name}: {install.command('demo')}") from missing
    finally:
        signal.signal(signal.SIGTERM, usual)
