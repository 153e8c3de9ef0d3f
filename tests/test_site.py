"""The documentation: its code runs and prints what it shows, its notebook runs, and the site builds by itself."""

import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import tiny_mnist
import torch

from equivariant_transformers import cli, data

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUICKER = {"--epochs 20": "--epochs 1", "--batch-size 32": "--batch-size 8", "et audit": "et audit --count 2"}
NUMBER = re.compile(r"-?\d+\.\d+")


def assert_same_text(found, shown):
    """The same words, and the same numbers as far as another processor may round them."""
    assert NUMBER.sub("#", " ".join(found.split())) == NUMBER.sub("#", " ".join(shown.split()))
    assert list(map(float, NUMBER.findall(found))) == pytest.approx(list(map(float, NUMBER.findall(shown))), abs=0.02)


@pytest.mark.parametrize(
    "page", ["index", "tour", "mathematics", "choosing", "discovery", "limits", "faq", "tasks", "text"]
)
def test_the_code_on_a_page_prints_what_it_shows(page):
    space, said = {}, ""
    for kind, block in BLOCK.findall((DOCS / f"{page}.md").read_text()):
        if kind == "python":
            with redirect_stdout(io.StringIO()) as output:
                exec(compile(block, page, "exec"), space)
            said = output.getvalue()
        elif kind == "text":
            assert_same_text(said, block)


def test_the_tutorial_works_from_top_to_bottom(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    digits = tiny_mnist.arrays()
    parts = [
        data.ImageSet(images=torch.tensor(images)[:, None], labels=torch.arange(len(images)) % 6, name="digits")
        for images in (digits["train_images"], digits["test_images"])
    ]
    monkeypatch.setattr(data, "mnist", lambda: data.Splits(train=parts[0], validation=parts[1], test=parts[1]))
    monkeypatch.chdir(tmp_path)
    space = {}
    for kind, block in BLOCK.findall((DOCS / "tutorial.md").read_text()):
        if kind == "python":
            exec(compile(block, "tutorial", "exec"), space)
        for command in block.splitlines() if kind == "sh" else ():
            for usual, quick in QUICKER.items():
                command = command.replace(usual, quick)
            program, *arguments = shlex.split(command.replace("same/*.png", " ".join(map(str, Path().glob("same/*")))))
            assert program == "et"
            assert cli.main(arguments) == 0, capsys.readouterr().err
    assert len(list(Path("canonical").glob("*.png"))) == 8


def test_the_notebook_runs(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    tiny_mnist.install(monkeypatch, tmp_path)
    space = {}
    cells = [cell for cell in json.loads((DOCS / "quickstart.ipynb").read_text())["cells"] if "outputs" in cell]
    for cell in cells:
        small = "parameters" in cell["metadata"].get("tags", ())
        code = "examples, epochs, tested = 32, 1, 20" if small else "".join(cell["source"])
        exec(compile(code, "notebook", "exec"), space)
    assert "canonicalized: " in capsys.readouterr().out
    assert all(weight.grad is not None for weight in space["layers"].parameters())  # the layers are trained
    # What it shows was printed and drawn by these cells, in this order.
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert sum("image/png" in output.get("data", ()) for cell in cells for output in cell["outputs"]) == 3


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "tour.html", "quickstart.html", "lab-notebook.html"} <= pages.keys()
    for name, page in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*?\bsrc="([^"]*)"|<link\b[^>]*?\bhref="([^"]*)"', page)
        assert not [address for pair in loaded for address in pair if address.startswith(("http", "//"))], name
        assert "arithmatex" not in page, f"{name} has a formula that is no MathML"
        assert ">&gt;&gt;&gt;" not in page.replace('<span class="gp">&gt;&gt;&gt;', ""), f"{name} quotes a doctest"
    assert "<math" in pages["mathematics.html"]
    for name in ("geometry", "nn", "audit", "models", "data", "training", "hub", "experiments"):
        package = importlib.import_module(f"equivariant_transformers.{name}")
        shown = re.findall(rf'<h2 id="{package.__name__}\.[\w.]*?(\w+)"', pages[f"api/{name}.html"])
        assert {*shown} - {"load_2019"} == {*package.__all__}
    assert 'id="equivariant_transformers.geometry.groups.Group.matrix"' in pages["api/geometry.html"]
    assert 'id="equivariant_transformers.models.legacy.load_2019"' in pages["api/models.html"]
    # Signatures are wrapped.
    assert '<span class="nf">Chart</span><span class="p">(</span>\n' in pages["api/geometry.html"]
