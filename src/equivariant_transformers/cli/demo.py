"""`et demo`."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from equivariant_transformers.cli import console, models

_MODEL = "projective-mnist"


def open_demo(
    model: Annotated[str, typer.Option(metavar="FILE", help="A model file, or the name of a shipped model.")] = _MODEL,
    plain: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The network without layers beside it, by default that of the shipped model."
        ),
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="By default a free one from 7860 on.")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the page's address.")] = False,
) -> None:
    """Open a page on which you distort a digit and watch what each layer of a network does to it.

    The page is served to this machine only, from this machine only, until Ctrl-C.
    """
    if plain is None and model == _MODEL:
        plain = f"{_MODEL}-plain"
    stopped = threading.Event()
    usual = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        from equivariant_transformers.demo import running

        with running(
            models.load(model), models.load(plain) if plain else None, port=port, browser=not no_browser
        ) as address:
            console.say(f"The demo is at {address} (Ctrl-C ends it)")
            stopped.wait()
    except KeyboardInterrupt:
        console.note("the demo has ended")
    except ModuleNotFoundError as missing:
        needed = f"et demo needs {missing.name}: pip install 'equivariant-transformers[demo]'"
        raise console.Failure(needed) from missing
    finally:
        signal.signal(signal.SIGTERM, usual)
