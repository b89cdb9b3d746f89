from __future__ import annotations

import pytest

from erl_pipeline.comparison.streams import RunStreams, run_streams, summarize
from tests.stage_records import stage_record


def test_the_first_and_the_last_evaluation_are_those_before_and_after_training() -> None:
    history = [
        stage_record(0, "evaluate_stream", {"first_none": 0.2}),
        stage_record(3, "evaluate", {"greedy_success": 0.9}),
        stage_record(5, "evaluate_stream", {"first_none": 0.4}),
    ]
    assert run_streams(history) == RunStreams({"first_none": 0.2}, {"first_none": 0.4})
    assert run_streams(history[:2]) == RunStreams({"first_none": 0.2}, {})
    assert run_streams(history[1:2]) == RunStreams({}, {})


def test_differences_to_no_note_are_taken_seed_by_seed() -> None:
    seeds = [
        RunStreams({"first_none": 0.2, "first_own": 0.5, "first_other": 0.3}, {}),
        RunStreams({"first_none": 0.4, "first_own": 0.9, "first_other": 0.3}, {"retry_none": 0.6}),
    ]
    first, retry = summarize(seeds)
    assert (first.attempt, first.trained) == ("first", False)
    assert {note: each.mean for note, each in first.success.items()} == pytest.approx(
        {"none": 0.3, "own": 0.7, "other": 0.3}
    )
    # Differences are +0.3 and +0.5; +0.1 and -0.1.
    assert first.less_none["own"].mean == pytest.approx(0.4)
    assert first.less_none["own"].sd == pytest.approx(0.2 / 2**0.5)
    assert first.less_none["other"].mean == pytest.approx(0.0)
    assert (retry.attempt, retry.trained, retry.success["none"].seeds) == ("retry", True, 1)
    assert retry.less_none == {}


def test_arms_without_streams_have_no_rows() -> None:
    assert summarize([RunStreams({}, {})]) == []
