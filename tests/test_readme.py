"""The README's code runs and its table is what the library says."""

import re
from pathlib import Path

import equivariant_transformers as et

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_code_runs():
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})


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
