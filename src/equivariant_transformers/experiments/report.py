"""Tables of measured values beside the published ones, generated from the result files alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from statistics import fmean, stdev

from equivariant_transformers.data.files import atomic_write
from equivariant_transformers.experiments import results, rotation
from equivariant_transformers.experiments.display import show_duration
from equivariant_transformers.experiments.field import EXPERIMENTS
from equivariant_transformers.experiments.paper import Cell, Experiment
from equivariant_transformers.experiments.results import Record

END = "<!-- end -->"


def write_page(page: Path, root: Path) -> None:
    """Write the tables of the results in `root` between the marks of a markdown page. The rest of the page is kept."""
    filled = fill(page.read_text(), root)
    with atomic_write(page) as file:
        file.write(filled.encode())


def fill(text: str, root: Path) -> str:
    """Return `text` with the table of each experiment between `<!-- NAME -->` and `<!-- end -->`."""
    for name in (*EXPERIMENTS, rotation.NAME):
        mark = f"<!-- {name} -->"
        if mark in text:
            before, rest = text.split(mark, 1)
            _, found, after = rest.partition(END)
            if not found:
                raise ValueError(f"the page has {mark} without {END} after it; add {END} below the table")
            text = f"{before}{mark}\n{table(name, root)}\n{END}{after}"
    return text


def table(name: str, root: Path) -> str:
    """Return the table of the experiment `name` from the results in `root`, as markdown."""
    if name == rotation.NAME:
        return rotation.table(root)
    experiment = EXPERIMENTS[name]
    records = cell_records(experiment, results.load_all(root).values())
    settings = sorted({record.settings for found in records.values() for record in found})
    parts = [
        _table(experiment, {cell: [r for r in found if r.settings == setting] for cell, found in records.items()})
        for setting in settings or [""]
    ]
    return "\n\n".join(parts)


def cell_records(experiment: Experiment, records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """Return the records of each cell by seed, from any machine and with any machine settings."""
    by_config: dict[object, list[Record]] = {}
    for record in records:
        by_config.setdefault(results.base(record.config), []).append(record)
    return {
        cell: sorted(by_config.get(results.base(cell.config), ()), key=lambda record: record.config.seed)
        for cell in experiment.cells
    }


def measured(experiment: Experiment, records: Collection[Record]) -> str:
    """Return mean, standard deviation and number of the finished runs of a cell, on one line.

    Diverged runs are counted and excluded from the mean.
    """
    if not records:
        return "not measured"
    values = [experiment.value(record) for record in records if record.failure is None]
    diverged = f"{len(records) - len(values)} diverged" if len(records) > len(values) else ""
    if not values:
        return diverged
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    notes = ", ".join(filter(None, (f"n = {len(values)}", diverged)))
    return f"**{fmean(values):.2f}{spread}** ({notes})".replace(" ", "\N{NO-BREAK SPACE}")


def _table(experiment: Experiment, records: dict[Cell, list[Record]]) -> str:
    rows, columns = experiment.rows, experiment.columns
    places = {(cell.row, cell.column): cell for cell in experiment.cells}

    def entry(row: str, column: str) -> str:
        cell = places.get((row, column))
        if cell is None:
            return ""
        return measured(experiment, records[cell]) + _quote(experiment, cell)

    def cells(row: str) -> list[str]:
        found = [record for cell, some in records.items() if cell.row == row for record in some]
        return [row, *(entry(row, column) for column in columns), *(_costs(found) if experiment.costs else ())]

    heads = [f"{experiment.metric}, %", *columns, *(("parameters", "time per run") if experiment.costs else ())]
    lines = [
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
        "",
        _footnote(experiment, [record for found in records.values() for record in found]),
    ]
    return "\n".join(lines)


def _quote(experiment: Experiment, cell: Cell) -> str:
    """Return the published value with the digits that its publication prints, and the publication."""
    if cell.paper is None:
        return ""
    value = f"{cell.paper:g}" if experiment.metric == "test accuracy" else f"{cell.paper:.2f}"
    return f"<br>{cell.source} {value}"


def _costs(records: Collection[Record]) -> tuple[str, str]:
    """Return the number of parameters and the mean time of the runs of a row, both empty without runs."""
    if not records:
        return "", ""
    counts = " to ".join(f"{count:,}" for count in sorted({record.parameters for record in records}))
    return counts, show_duration(fmean(record.seconds for record in records))


def _footnote(experiment: Experiment, records: Collection[Record]) -> str:
    """Return the number of runs behind a table, their hardware and their settings."""
    wanted = len(experiment.cells) * experiment.seeds
    if not records:
        return f"*None of the {wanted} runs of this table is finished.*"
    cells = len({results.base(record.config) for record in records})
    seconds = [record.seconds for record in records]

    def named(field: str) -> str:
        return ", ".join(sorted({getattr(record, field) for record in records}))

    return (
        f"*{len(records)} of {wanted} runs, in {cells} of {len(experiment.cells)} cells; mean ± standard "
        f"deviation over seeds; {named('device')}; torch {named('torch')}; {named('settings')}; "
        f"commits {named('commit')}; {show_duration(min(seconds))} to {show_duration(max(seconds))} per run; "
        f"data {named('origin')}.*"
    )
