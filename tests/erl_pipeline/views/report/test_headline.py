from __future__ import annotations

from typing import Any

from erl_pipeline.evaluation.history import CurvePoint, read_history
from erl_pipeline.statistics import paired_difference
from erl_pipeline.views.report.tables import (
    Tile,
    held_out_result,
    held_out_tile,
    summary_line,
    tiles,
)


def point(iteration: int, success: float) -> CurvePoint:
    return CurvePoint(iteration, success, success - 0.05, success + 0.05, 0, 0, 0, 0, 0.0)


def test_the_verdict_names_both_ends_with_intervals_and_what_changed() -> None:
    before = {f"lake-{number}": number < 2 for number in range(10)}
    after = {f"lake-{number}": number > 0 for number in range(10)}
    result = held_out_result([point(0, 0.2), point(1, 0.5), point(2, 0.9)], paired_difference(before, after))
    assert result is not None
    assert (result.start, result.end) == ("20 %", "90 %")
    assert "15 to 25 % before, 85 to 95 % after iteration 2" in result.details[0]
    assert "+70.0 points" in result.details[1]
    assert "tasks gained: 8, lost: 1" in result.details[1]


def test_there_is_no_verdict_without_and_no_end_with_one_evaluation() -> None:
    assert held_out_result([], None) is None
    only = held_out_result([point(0, 0.2)], None)
    assert only is not None
    assert (only.start, only.end) == ("20 %", "")


def test_held_out_success_is_a_figure_with_both_ends() -> None:
    assert held_out_tile([]) is None
    one = held_out_tile([point(0, 0.2)])
    assert one == Tile("Held-out success", "20 %", "iteration 0, 95 % interval 15 to 25 %")
    both = held_out_tile([point(0, 0.2), point(1, 0.5), point(2, 0.9)])
    assert both == Tile("Held-out success", "20 % → 90 %", "iteration 0 and 2; 95 % interval 85 to 95 %")


def test_tiles_show_what_the_run_has(erl_run: Any, rlvr_run: Any) -> None:
    shown = tiles(read_history(erl_run.store, erl_run.run), erl_run.description.columns)
    erl = {tile.label: tile.value for tile in shown}
    assert erl["Retries that succeed"] == "50 % → 50 %"
    assert (erl["Generated tokens"], erl["Memory"], erl["Distilled"]) == ("200", "2", "2")
    assert "in 4 training episodes" in [tile.detail for tile in shown]
    shown = tiles(read_history(rlvr_run.store, rlvr_run.run), rlvr_run.description.columns)
    assert [tile.label for tile in shown] == ["Generated tokens", "Training time"]


def test_the_summary_says_how_far_the_run_is(rlvr_run: Any) -> None:
    line = summary_line(rlvr_run.run.config, read_history(rlvr_run.store, rlvr_run.run), done=1)
    assert line.startswith(
        "RLVR · environment frozen_lake · tiny policy · seed 0 · 1 of 2 iterations · last "
    )
