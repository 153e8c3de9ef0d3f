"""What the documentation site adds to the pages in docs/: a page a module, the notebook, and formulas as MathML."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
PACKAGE = "equivariant_transformers"
NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
API = """# API

`import equivariant_transformers as et` brings these names. The pages are made from docstrings, whose examples
are tests.

| name | |
|---|---|
{names}

## Modules

| module | |
|---|---|
{modules}
"""
DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the modules into the navigation, under the page that lists them."""
    api = next(section for section in config.nav if "API" in section)  # type: ignore[union-attr]
    api["API"] = [api["API"], *({name: f"api/{name}.md"} for name in modules())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file in docs/ holds."""
    for path, content in (*api_pages(), *notebook_pages()):
        files.append(File.generated(config, path, content=content))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Write formulas in the browser's own language for them: no script, no fonts to load."""
    return FORMULA.sub(mathml, html)


def mathml(formula: re.Match[str]) -> str:
    made = convert(html.unescape(formula[2]).strip(), display="block" if formula[1] == "div" else "inline")
    return re.sub(r"<mo([^>]*)>(&#x0007C;|\|)", r'<mo\1 lspace="0" rspace="0">\2', made)  # |x| without gaps


@cache
def package() -> griffe.Module:
    """The library, read and not imported."""
    return griffe.load(PACKAGE, search_paths=[ROOT / "src"], resolve_aliases=True)


def modules() -> list[str]:
    """The public modules and subpackages."""
    return sorted(name for name in package().modules if not name.startswith("_"))


def api_pages() -> Iterator[tuple[str, str]]:
    public = {name: package()[name] for name in package().exports or ()}
    public |= {name: thing[name] for name, thing in public.items() if thing.is_module}  # et.derive is the function
    names = [f"| [`et.{name}`][{thing.canonical_path}] | {first_sentence(thing)} |" for name, thing in public.items()]
    rows = [f"| [`{name}`]({name}.md) | {first_sentence(package()[name])} |" for name in modules()]
    yield "api/index.md", API.format(names="\n".join(names), modules="\n".join(rows))
    for name in modules():
        yield f"api/{name}.md", f"# {name}\n\n::: {PACKAGE}.{name}\n"


def first_sentence(thing: griffe.Object | griffe.Alias) -> str:
    text = thing.docstring.value if thing.docstring else ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


class Doctests(griffe.Extension):
    """Examples in docstrings, which begin with >>>, as blocks of code: to Markdown they are quotations."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)


def notebook_pages() -> Iterator[tuple[str, str | bytes]]:
    """The notebook as a page, and its pictures."""
    parts = []
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                picture = f"figures/quickstart-{number}.png"
                yield picture, base64.b64decode(data["image/png"])
                parts.append(f"![What the cell above draws]({picture})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    parts.insert(1, f"[:material-download: This page as a notebook]({NOTEBOOK.name}){{ .md-button }}")
    yield "quickstart.md", "\n\n".join(parts) + "\n"
