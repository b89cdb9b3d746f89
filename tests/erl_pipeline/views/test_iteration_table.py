from __future__ import annotations

from erl_pipeline.evaluation.iterations import IterationRow
from erl_pipeline.plan.column import Column
from erl_pipeline.views.iteration_table import legend, row_cells, shown_columns

COLUMNS = (
    Column("roll", "success", "1st", "success of attempts"),
    Column("learn", "loss", "RL loss", "loss of the update", "+.4f"),
    Column("roll", "tokens", "tokens", "tokens generated", ",d"),
    Column("learn", "entropy", "entropy", "drawn alone", in_tables=False),
)


def test_cells_are_written_for_people_and_blank_where_nothing_happened() -> None:
    row = IterationRow(1, {"learn/loss": 0.5, "roll/tokens": 12345.0, "learn/entropy": 1.0}, 1234.56)
    assert row_cells(row, COLUMNS) == {
        "iter": "1",
        "1st": "",
        "RL loss": "+0.5000",
        "tokens": "12,345",
        "seconds": "1,234.6",
    }


def test_the_legend_tells_what_the_columns_of_the_table_mean() -> None:
    assert legend(COLUMNS) == (
        "1st: success of attempts; RL loss: loss of the update; tokens: tokens generated"
    )


def test_an_optional_column_is_left_out_where_no_row_has_it() -> None:
    optional = Column("evaluate", "extra", "extra", "measured where it is asked for", optional=True)
    without, having = IterationRow(1, {}), IterationRow(2, {"evaluate/extra": 0.5})
    assert shown_columns([without], [*COLUMNS, optional]) == list(COLUMNS[:3])
    assert shown_columns([without, having], [*COLUMNS, optional]) == [*COLUMNS[:3], optional]
