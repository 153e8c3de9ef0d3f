"""The code on the pages runs, and their tables are what the library and its result files say."""

import json
import re
from pathlib import Path

import equivariant_transformers as et

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONSISTENCY = (ROOT / "docs" / "consistency.md").read_text()


def test_the_code_runs():
    for page in (README, CONSISTENCY):
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(block, "page", "exec"), {})


def test_the_chart_table_is_true():
    lines = [line for line in README.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert [row[0].strip("`") for row in rows] == list(et.CHARTS)
    for name, _, _, first, second, sheets, share in rows:
        chart = et.chart(name.strip("`"))
        for shown, (low, high), periodic in zip((first, second), chart.ranges, chart.periodic, strict=True):
            assert shown == f"[{low:.2f}, {high:.2f}{')' if periodic else ']'}"
        assert int(sheets) == chart.sheets
        assert share == f"{100 * chart.coverage():.0f} %"


def test_the_consistency_table_is_what_was_measured():
    results = json.loads((ROOT / "results" / "consistency.json").read_text())
    rows = {line.split("|")[1].strip(): line for line in CONSISTENCY.splitlines() if line.startswith("| ")}
    for condition, figures in results.items():
        assert condition in rows["group"]
        for group, row in figures.items():
            shown = f"{row['slope']:.2f} / {row['rms']:.3f} / {row['median']:.3f}"
            assert shown in rows[group].replace("*", ""), (condition, group)
