"""Which stored trajectories can be trained on again, on artifacts that the test has written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from erl_pipeline.methods.complementary.settings import SCORES, SCORES_FILE
from erl_pipeline.methods.complementary.tables import EXPERIENCE_SCORES, StoredTrajectories, read_stored
from erl_pipeline.stages.names import ROLLOUTS
from storage.tables.parquet import write_rows
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.stages.calls import Bench
from tests.erl_pipeline.stages.extractor.rows import attempt


def scores(
    bench: Bench, name: str, rows: Sequence[Trajectory], weight: float, before: str | None = None
) -> str:
    """The scores of an iteration with these rollouts, each of the same weight."""
    table = [
        {
            "trajectory_id": row.trajectory_id,
            "weight": weight,
            "label": None,
            "mean_logprob_then": -0.5,
            "mean_logprob_now": None,
            "advantage": None,
        }
        for row in rows
    ]
    inputs = {ROLLOUTS: bench.rollouts(rows)} | ({} if before is None else {SCORES: before})
    return bench.commit(
        name, "table", lambda folder: write_rows(folder / SCORES_FILE, table, EXPERIENCE_SCORES), inputs
    )


def stored_of(bench: Bench, newest: str, capacity: int) -> StoredTrajectories:
    return read_stored(bench.store, bench.store.open(newest), capacity)


def test_the_newest_come_first_up_to_the_capacity(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first = scores(bench, "first", [attempt(1), attempt(2)], 0.25)
    second = scores(bench, "second", [attempt(3), attempt(4)], 0.75, first)
    stored = stored_of(bench, second, 3)
    assert stored.newest(9) == ["a3", "a4", "a1"]
    assert [stored.weights[one] for one in ("a3", "a1")] == [0.75, 0.25]


def test_random_ones_are_drawn_once_each_by_the_seed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stored = stored_of(bench, scores(bench, "only", [attempt(place) for place in range(1, 7)], 0.5), 9)
    draws = [stored.random(3, seed) for seed in range(20)]
    assert all(len(set(draw)) == 3 for draw in draws)
    assert {one for draw in draws for one in draw} == {f"a{place}" for place in range(1, 7)}
    assert stored.random(3, 7) == draws[7]
    assert sorted(stored.random(9, 0)) == sorted(stored.newest(9))


def test_what_could_not_be_scored_or_has_no_sampled_token_is_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    rows = [
        attempt(1),
        attempt(2, finish_reason="scorer_error"),
        attempt(3, response_mask=(0, 0, 0)),
        attempt(4),
    ]
    assert stored_of(bench, scores(bench, "only", rows, 0.5), 2).newest(9) == ["a1", "a4"]
