"""A run iteration by iteration, as the terminal and Prefect's page show it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from erl_pipeline.evaluation.iterations import IterationRow
from erl_pipeline.plan.column import Column

MOST_ROWS = 50
"""The most rows of a table that is shown again with each new iteration."""

_LEGEND_WIDTH = 100


def shown_columns(rows: Sequence[IterationRow], columns: Sequence[Column]) -> list[Column]:
    """The columns that a table of these rows has."""
    return [
        column
        for column in columns
        if column.in_tables and (not column.optional or any(column.name in row.values for row in rows))
    ]


def row_cells(row: IterationRow, columns: Sequence[Column]) -> dict[str, str]:
    """A row as text, column by column; a cell without a value is blank."""
    cells = {"iter": str(row.iteration)}
    for column in columns:
        if column.in_tables:
            value = row.values.get(column.name)
            cells[column.label] = "" if value is None else column.text(value)
    return {**cells, "seconds": f"{row.seconds:,.1f}"}


def legend(columns: Sequence[Column]) -> str:
    """The lines below a table that say what its columns mean."""
    meanings = [f"{column.label}: {column.meaning}" for column in columns if column.in_tables]
    return textwrap.fill("; ".join(meanings), _LEGEND_WIDTH, break_on_hyphens=False)
