"""The report in a run's folder is of the newest iteration, or does not exist."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.runs.report import REPORTED_ITERATIONS, renew_report
from tests.command_line.ui.stores import write_page_store


def test_the_report_of_a_run_that_is_too_long_is_removed_and_not_left_behind(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    run, page = made.runs.open("one"), tmp_path / "report.html"
    page.write_text("of an earlier iteration")
    assert renew_report(made.store, run, 2, page) == page
    assert "2 of 2 iterations" in page.read_text(encoding="utf-8")
    assert renew_report(made.store, run, REPORTED_ITERATIONS + 1, page) is None
    assert not page.exists()
    assert renew_report(made.store, run, REPORTED_ITERATIONS + 1, page) is None
