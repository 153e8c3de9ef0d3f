"""Typer application of all commands. An error is printed as one line and returned as an exit code."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from equivariant_transformers import install
from equivariant_transformers.cli import (
    align,
    audit,
    console,
    data,
    demo,
    discover,
    evaluate,
    export,
    info,
    predict,
    reproduce,
    train,
)
from equivariant_transformers.cli.flags import closest
from equivariant_transformers.training.checkpoint import CheckpointError

EXPECTED = (CheckpointError, ModuleNotFoundError, OSError, RuntimeError, ValueError)
"""Errors that are printed as their message alone. Other errors are printed with their type."""

app = typer.Typer(
    name="et",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 failure, 2 usage error, 3 training diverged, 130 or 143 interrupted.",
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train_model,
    "align": align.align_images,
    "discover": discover.discover_groups,
    "evaluate": evaluate.evaluate_model,
    "audit": audit.audit_layers,
    "predict": predict.predict_images,
    "export": export.export_model,
    "demo": demo.open_demo,
    "reproduce": reproduce.reproduce_experiment,
    "info": info.show_info,
}
for name, command in _COMMANDS.items():
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    app.command(name, help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs))(command)
app.add_typer(data.app, name="data")


@app.callback()
def _everywhere(debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False) -> None:
    """Train, test and use image networks that are robust to rotation, shear, scale and perspective."""


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code. `--debug` is accepted at any position."""
    debug = "--debug" in arguments
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: console.warn(str(message))
        try:
            code = app([word for word in arguments if word != "--debug"], prog_name="et", standalone_mode=False)
        except KeyboardInterrupt:
            return console.INTERRUPTED
        except Exception as error:
            if debug:
                traceback.print_exc()
            return _explain(error)
    return code if isinstance(code, int) else 0


def _explain(error: Any) -> int:
    """Print an error as one line and return its exit code."""
    if isinstance(error, console.Failure):
        speak = console.note if error.code in (console.INTERRUPTED, console.TERMINATED) else console.error
        speak(str(error))
        return error.code
    if hasattr(error, "format_message"):  # an error of Typer
        context: Any = getattr(error, "ctx", None)
        message = error.format_message().rstrip(".")
        if context and hasattr(error, "option_name"):  # an unknown flag
            known = [flag for parameter in context.command.params for flag in parameter.opts]
            guess = closest(error.option_name, known)
            message = f"No such option: {error.option_name}" + (f". Did you mean {guess}?" if guess else "")
        if message:  # without a message, Typer has printed the help
            end = "" if message.endswith("?") else "."
            console.error(f"{message}{end} Try {context.command_path if context else 'et'} --help")
        return console.WRONG_USAGE
    if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
        console.error(f"{error}: {install.command('train')}")
    elif isinstance(error, EXPECTED):
        console.error(console.reason(error))
    else:
        console.error(f"{type(error).__name__}: {error}. Add --debug for the traceback")
    return console.FAILED
