"""Hooks of the documentation site: pages generated from docstrings and from the notebook, and formulas as MathML."""

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
PACKAGES = ("geometry", "nn", "audit", "discovery", "models", "data", "training", "hub", "experiments", "viz")
NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
API = """# API

These pages are generated from the docstrings. The examples in the docstrings are tests.

## Packages

| package | description |
|---|---|
{packages}

## Names in `et`

`import equivariant_transformers as et` provides these names.

| name | description |
|---|---|
{names}
"""
PAGE = """# {name}

::: {package}.{name}
    options:
      members: false
"""
ENTRY = """
::: {path}
    options:
      show_root_heading: true
      show_root_full_path: false
      show_root_toc_entry: true
"""
DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the packages to the navigation, below the page that lists them."""
    api = next(section for section in config.nav if "API" in section)  # type: ignore[union-attr]
    api["API"] = [api["API"], *({name: f"api/{name}.md"} for name in PACKAGES)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, content in (*api_pages(), *notebook_pages()):
        files.append(File.generated(config, path, content=content))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Replace formulas by MathML, which needs no scripts and no fonts."""
    return FORMULA.sub(mathml, html)


def mathml(formula: re.Match[str]) -> str:
    made = convert(html.unescape(formula[2]).strip(), display="block" if formula[1] == "div" else "inline")
    return re.sub(r"<mo([^>]*)>(&#x0007C;|\|)", r'<mo\1 lspace="0" rspace="0">\2', made)  # |x| without gaps


@cache
def package() -> griffe.Module:
    """Load the source of the library without importing it."""
    return griffe.load(PACKAGE, search_paths=[ROOT / "src"], resolve_aliases=True)


def public(module: griffe.Object | griffe.Alias) -> dict[str, griffe.Object | griffe.Alias]:
    """Return the names in `__all__`, or the public names that the module itself defines if it has no `__all__`."""
    own = (name for name, thing in module.members.items() if not (name.startswith("_") or thing.is_alias))
    found = {str(name): module[str(name)] for name in module.exports or own}
    # A function with the name of its module takes precedence: data.mnist is the function.
    return {name: thing[name] if thing.is_module and name in thing.members else thing for name, thing in found.items()}


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each package with its public names, and a page that lists all of them."""
    top = public(package())
    for name in PACKAGES:
        entries = public(package()[name])
        # Names of `et` that the package loads on demand are not in its `__all__`.
        entries |= {key: thing for key, thing in top.items() if thing.canonical_path.startswith(f"{PACKAGE}.{name}.")}
        page = PAGE.format(name=name, package=PACKAGE)
        yield f"api/{name}.md", page + "".join(ENTRY.format(path=thing.canonical_path) for thing in entries.values())
    packages = [f"| [`{name}`]({name}.md) | {first_sentence(package()[name])} |" for name in PACKAGES]
    names = [f"| [`et.{name}`]{target(name, thing)} | {first_sentence(thing)} |" for name, thing in top.items()]
    yield "api/index.md", API.format(packages="\n".join(packages), names="\n".join(names))


def target(name: str, thing: griffe.Object | griffe.Alias) -> str:
    """Return the link to a package or to the entry of a name."""
    return f"({name}.md)" if thing.is_module else f"[{thing.canonical_path}]"


def first_sentence(thing: griffe.Object | griffe.Alias) -> str:
    text = thing.docstring.value if thing.docstring else ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


class Doctests(griffe.Extension):
    """Griffe extension that turns examples in docstrings, which are quotations in Markdown, into code blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)


def notebook_pages() -> Iterator[tuple[str, str | bytes]]:
    """Yield the notebook as a page, and its pictures."""
    parts = []
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                picture = f"figures/quickstart-{number}.png"
                yield picture, base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({picture})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    parts.insert(1, f"[:material-download: This page as a notebook]({NOTEBOOK.name}){{ .md-button }}")
    yield "quickstart.md", "\n\n".join(parts) + "\n"
