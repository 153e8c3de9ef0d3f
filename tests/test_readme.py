"""The code on the pages runs, and their tables are what the library and its result files say."""

import json
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest
import stand_ins
import tiny_mnist
import torch

import equivariant_transformers as et

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MATHEMATICS = (ROOT / "docs" / "mathematics.md").read_text()
CONSISTENCY = (ROOT / "docs" / "consistency.md").read_text()
sys.path.append(str(ROOT / "benchmarks"))
quickstart = import_module("quickstart")


def test_the_code_runs():
    for page in (README, CONSISTENCY):
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(block, "page", "exec"), {})


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("library", ["stand-in", "timm"])
def test_the_training_loop_runs_before_and_after_the_change(library, added, monkeypatch):
    stand_ins.backbones_of(library, monkeypatch)
    (diff,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    kept = [line[1:] for line in diff.splitlines() if not line.startswith("-" if added else "+")]
    space = {"loader": [(torch.rand(4, 3, 32, 32), torch.arange(4))], "validation_images": torch.rand(4, 3, 32, 32)}
    exec(compile("\n".join(kept), "README", "exec"), space)
    assert isinstance(space["model"], et.Canonicalized) == added
    assert all(parameter.grad is not None for parameter in space["model"].parameters())


@pytest.mark.parametrize("page", ["README.md", "docs/reproduction.md"])
def test_the_summaries_quote_the_tables_of_results(page):
    """A figure in a table that is written by hand stands in a generated table, with as many seeds."""
    tables = "".join((ROOT / "docs" / name).read_text() for name in ("reproduction.md", "lab-notebook.md"))
    tables = "".join(re.findall(r"<!-- [\w-]+ -->(.*?)<!-- end -->", tables, re.DOTALL)).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    text = (ROOT / page).read_text()
    if page == "README.md":
        quoted = re.findall(r"^\|.* % \| ([\d.]+(?: ± [\d.]+)?) % \| (\d) \|", text, re.MULTILINE)
        assert len(quoted) == 5
    else:
        part = text.partition("(`beat`)")[2].partition("## ")[0]
        quoted = [(figure, "3") for figure in re.findall(r"\*\*([\d. ±]+)\*\*", part)]
        assert len(quoted) == 4
    for figure, seeds in quoted:
        assert f"**{figure}** (n = {seeds})" in tables


def test_the_chart_table_is_true():
    part = MATHEMATICS.partition("## The charts")[2].partition("## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert [row[0].strip("`") for row in rows] == list(et.CHARTS)
    for name, _, _, first, second, sheets, share in rows:
        chart = et.chart(name.strip("`"))
        for shown, (low, high), periodic in zip((first, second), chart.ranges, chart.periodic, strict=True):
            assert shown == f"[{low:.2f}, {high:.2f}{')' if periodic else ']'}"
        assert int(sheets) == chart.sheets
        assert share == f"{100 * chart.coverage():.0f} %"


@pytest.mark.parametrize("name", ["table", "trained", "derived"])
def test_the_consistency_tables_are_what_was_measured(name):
    results = json.loads((ROOT / "results" / "consistency.json").read_text())
    part = CONSISTENCY.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    rows = {line.split("|")[1].strip(): line for line in part.splitlines() if line.startswith("| ")}
    special = {condition: next((m for m in ("trained", "derived") if m in condition), "table") for condition in results}
    wanted = {condition: results[condition] for condition, mark in special.items() if mark == name}
    assert wanted
    for condition, figures in wanted.items():
        assert condition in rows["group"]
        for group, row in figures.items():
            shown = f"{row['slope']:.2f} / {row['rms']:.3f} / {row['median']:.3f}"
            assert shown in rows[group].replace("*", ""), (condition, group)


def test_the_quickstart_table_is_what_was_measured():
    figures = json.loads((ROOT / "results" / "quickstart.json").read_text())
    part = README.partition("<!-- quickstart -->\n")[2].partition("\n<!-- end of quickstart -->")[0]
    assert part == quickstart.table(figures)


def test_the_quickstart_was_measured_as_it_is_and_depends_little_on_luck():
    figures = json.loads((ROOT / "results" / "quickstart.json").read_text())
    example = runpy.run_path(str(quickstart.EXAMPLE))
    settings = figures["settings"]
    assert [settings[name] for name in ("examples", "epochs", "seeds")] == [example["EXAMPLES"], example["EPOCHS"], 5]
    assert set(figures["runs"]) == {"threads: 1", "threads: 2"}
    plain, equivariant = (quickstart.errors_of(figures)[name] for name in example["NETWORKS"])
    assert len(plain) == len(equivariant) == 10
    assert max(equivariant) - min(equivariant) <= 5
    assert max(equivariant) < min(plain) / 2


def test_the_quickstart_is_measured_with_every_seed(monkeypatch, tmp_path, capsys):
    pytest.importorskip("rich")
    tiny_mnist.install(monkeypatch, tmp_path)
    small = {**runpy.run_path(str(quickstart.EXAMPLE)), "EXAMPLES": 16, "EPOCHS": 1}
    monkeypatch.setattr(quickstart.runpy, "run_path", lambda _: small)
    out, page = tmp_path / "figures.json", tmp_path / "page.md"
    page.write_text("Before\n<!-- quickstart -->\n<!-- end of quickstart -->\nAfter\n")
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--seeds", "2", "--out", str(out), "--docs", str(page)])
    quickstart.main()
    figures = json.loads(out.read_text())
    (run,) = figures["runs"].values()
    assert {name: len(errors) for name, errors in run.items()} == {"plain CNN": 2, "ET network": 2}
    assert all(0 <= error <= 100 for errors in run.values() for error in errors)
    figures["runs"] = {"threads: 1000": run}
    out.write_text(json.dumps(figures))
    quickstart.main()
    figures = json.loads(out.read_text())
    assert list(figures["runs"].values()) == [run, run]  # one kept, one measured again
    table = quickstart.table(figures)
    assert table in capsys.readouterr().out
    assert page.read_text() == f"Before\n<!-- quickstart -->\n{table}\n<!-- end of quickstart -->\nAfter\n"
