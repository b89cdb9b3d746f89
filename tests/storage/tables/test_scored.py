"""Which trajectories were scored."""

import polars as pl
import pytest

from storage.tables.scored import reason_is_scored, redacted_reason, was_scored


@pytest.mark.parametrize(
    ("before", "after", "is_scored"),
    [
        ("done", "redacted_scored", True),
        ("not_rated", "redacted_not_scored", False),
        ("scorer_error", "redacted_not_scored", False),
        ("redacted_scored", "redacted_scored", True),
        ("redacted_not_scored", "redacted_not_scored", False),
        # Earlier versions wrote it whether the row was scored or not.
        ("redacted", "redacted", False),
    ],
)
def test_a_row_whose_user_was_forgotten_is_scored_as_before(before: str, after: str, is_scored: bool) -> None:
    assert redacted_reason(before) == after
    for reason in (before, after):
        assert reason_is_scored(reason) == is_scored
        assert pl.DataFrame({"finish_reason": [reason]}).select(was_scored()).item() == is_scored
