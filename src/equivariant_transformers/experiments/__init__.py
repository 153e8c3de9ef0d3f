"""The paper's tables and figures as runs, their results, and the report."""
