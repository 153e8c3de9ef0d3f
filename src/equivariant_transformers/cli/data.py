"""`et data list`, `et data fetch` and `et data show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equivariant_transformers.cli import console
from equivariant_transformers.data import DATASETS, commands, registry
from equivariant_transformers.data.gathering import MEMORY

app = typer.Typer(no_args_is_help=True, help="List, download and show data sets.")

Name = Annotated[str, typer.Argument(help=f"Folder of images, CSV file, or one of {', '.join(DATASETS)}.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Option of the data set, such as examples=10000."),
]
AcceptOtherFiles = Annotated[
    bool, typer.Option("--accept-other-files", help="Accept SVHN files that differ from the official files.")
]
Memory = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        help="Decoded images of a folder or CSV file to keep in memory; more are streamed from disk. "
        f"[dim]({MEMORY:g})[/dim]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the data sets, with the size of the download and the licence."""
    if as_json:
        fields = ("name", "summary", "licence", "download_bytes", "present")
        console.print_json([{field: getattr(source, field) for field in fields} for source in DATASETS.values()])
    elif console.out().is_terminal:
        rows = [[s.name, f"{s.download_bytes / 1e6:.0f} MB", s.licence, s.summary] for s in DATASETS.values()]
        console.table("name", ">download", "terms", "what it is", rows=rows)
    else:
        console.say(commands.list_datasets())


@app.command()
def fetch(name: Name, option: Options = None) -> None:
    """Download or generate a data set, verify it, and print a summary."""
    options = _checked(name, option)
    with console.loading() as loading:
        text = commands.fetch(name, progress=loading, **options)
    console.say(text)


@app.command()
def show(
    name: Name,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PNG file to write; NAME.png by default, or NAME-sheet.png for own images."),
    ] = None,
    option: Options = None,
) -> None:
    """Count the images of each class and part, and write a PNG file with training images of every class.

    For own images, the picture shows what training makes of the files: the original sizes, and hatched padding.
    """
    options = _checked(name, option)
    with console.loading() as loading:
        text = commands.show(name, out, progress=loading, **options)
    console.say(text)


def _checked(name: str, given: list[str] | None) -> dict[str, object]:
    with console.usage():
        options = commands.parse_options(given or [])
        registry.prepare(name, **options)
    return options
