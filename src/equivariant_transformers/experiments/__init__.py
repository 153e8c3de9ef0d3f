"""The paper's tables and figures as runs, their results, and the report.

`reproduce(name)` makes one of `NAMES`; `et reproduce NAME` is the same from a shell.
"""

from equivariant_transformers.experiments.command import NAMES, reproduce, write_report
from equivariant_transformers.experiments.paper import EXPERIMENTS, Cell, Experiment

__all__ = ["EXPERIMENTS", "NAMES", "Cell", "Experiment", "reproduce", "write_report"]
