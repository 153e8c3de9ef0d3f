"""The code on the pages runs, and their tables are what the library and its result files say."""

import json
import re
from pathlib import Path

import pytest
import stand_ins
import torch

import equivariant_transformers as et

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MATHEMATICS = (ROOT / "docs" / "mathematics.md").read_text()
CONSISTENCY = (ROOT / "docs" / "consistency.md").read_text()


def test_the_code_runs():
    for page in (README, CONSISTENCY):
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(block, "page", "exec"), {})


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("library", ["stand-in", "timm"])
def test_the_training_loop_runs_before_and_after_the_change(library, added, monkeypatch):
    stand_ins.backbones_of(library, monkeypatch)
    (diff,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    kept = [line[1:] for line in diff.splitlines() if added or not line.startswith("+")]
    space = {"loader": [(torch.rand(4, 3, 32, 32), torch.arange(4))]}
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
