"""Tables and figures of the paper, and benchmarks published since: training runs, result files and reports.

`reproduce(name)` reproduces one of `NAMES`; `et reproduce NAME` does the same from a shell.
"""

from equivariant_transformers.experiments.command import NAMES, reproduce, write_report
from equivariant_transformers.experiments.field import EXPERIMENTS
from equivariant_transformers.experiments.paper import Cell, Experiment

__all__ = ["EXPERIMENTS", "NAMES", "Cell", "Experiment", "reproduce", "write_report"]
