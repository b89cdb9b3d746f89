from __future__ import annotations

import polars as pl
import pytest

from erl_pipeline.stages.evaluation.scores import greedy_outcomes, score_evaluation


def rows(*values: tuple[str, str, str | None, float, bool]) -> pl.DataFrame:
    schema = {
        "task_id": pl.String,
        "episode_id": pl.String,
        "parent_trajectory_id": pl.String,
        "temperature": pl.Float64,
        "success": pl.Boolean,
    }
    return pl.DataFrame(values, schema=schema, orient="row").with_columns(finish_reason=pl.lit("done"))


def evaluation(
    greedy: dict[str, bool],
    sampled: dict[str, list[bool]] | None = None,
    followed: dict[str, bool] | None = None,
) -> pl.LazyFrame:
    """For each task the success of its greedy attempt, of its sampled attempts, and of the attempts after the
    greedy one."""
    found: list[tuple[str, str, str | None, float, bool]] = [
        (task, f"greedy {task}", None, 0.0, success) for task, success in greedy.items()
    ]
    for task, success in (followed or {}).items():
        found += [
            (task, f"greedy {task}", "first", 0.0, success),
            (task, f"greedy {task}", "text", 0.0, success),
        ]
    for task, successes in (sampled or {}).items():
        found += [
            (task, f"sample {number} of {task}", None, 1.0, success)
            for number, success in enumerate(successes)
        ]
    return rows(*found).lazy()


def test_greedy_and_sampled_attempts_are_scored_apart() -> None:
    scores = score_evaluation(
        evaluation(
            greedy={"lake-1": True, "lake-2": False},
            sampled={"lake-1": [True, False], "lake-2": [False, False]},
        )
    )
    assert scores.greedy is not None
    assert scores.sampled is not None
    assert (scores.greedy.value, scores.greedy.tasks) == (0.5, 2)
    assert (scores.sampled.value, scores.sampled.attempts) == (0.25, 4)
    assert scores.pass_at_k == {1: 0.25, 2: 0.5}
    assert scores.episode is None


def test_a_second_attempt_counts_for_success_episode_alone() -> None:
    scores = score_evaluation(
        evaluation(
            greedy={"lake-1": False, "lake-2": True, "lake-3": False},
            followed={"lake-1": True, "lake-3": False},
        )
    )
    assert scores.greedy is not None
    assert scores.episode is not None
    assert scores.greedy.value == pytest.approx(1 / 3)
    assert scores.episode.value == pytest.approx(2 / 3)


def test_with_memory_counts_the_tasks_that_were_solved_at_first_or_then() -> None:
    again = rows(
        ("lake-1", "again", None, 0.0, False),
        ("lake-1", "again", "first", 0.0, True),
        ("lake-3", "other", None, 0.0, False),
        ("lake-3", "other", "first", 0.0, False),
    )
    greedy = {"lake-1": False, "lake-2": True, "lake-3": False, "lake-4": True}
    metrics = score_evaluation(evaluation(greedy), again.lazy()).metrics()
    assert metrics["greedy_success"] == 0.5
    assert metrics["success_episode_with_memory"] == 0.75


def test_metrics_name_only_what_was_measured() -> None:
    scores = score_evaluation(rows(("lake-1", "e1", None, 0.0, True)).lazy())
    assert set(scores.metrics()) == {"greedy_success", "greedy_success_low", "greedy_success_high"}


def test_two_greedy_attempts_of_one_task_are_refused() -> None:
    doubled = rows(("lake-1", "e1", None, 0.0, True), ("lake-1", "e2", None, 0.0, True))
    with pytest.raises(ValueError, match="several greedy attempts"):
        greedy_outcomes(doubled)


def not_scored(rows: pl.LazyFrame, *ends: tuple[str, float]) -> pl.LazyFrame:
    """The rows; the last one of a task at each temperature was failed by the environment."""
    for task, temperature in ends:
        place = (pl.col("task_id") == task) & (pl.col("temperature") == temperature)
        last = place & (pl.col("success").cum_count(reverse=True).over("task_id", "temperature") == 1)
        failed = pl.when(last).then(pl.lit("environment_error")).otherwise("finish_reason")
        rows = rows.with_columns(finish_reason=failed)
    return rows


def test_what_was_not_scored_is_left_out_of_each_rate_and_counted() -> None:
    solved = {"lake-1": True, "lake-2": True, "lake-3": False}
    tries = {"lake-1": [True, False], "lake-2": [True, False]}
    scores = score_evaluation(not_scored(evaluation(solved, tries), ("lake-3", 0.0), ("lake-2", 1.0)))
    without = score_evaluation(
        evaluation({"lake-1": True, "lake-2": True}, {"lake-1": [True, False], "lake-2": [True]})
    )
    assert scores.greedy == without.greedy
    assert scores.sampled == without.sampled
    # One of one attempt at lake-2, and one of two at lake-1, succeeded; only lake-1 has two attempts.
    assert scores.pass_at_k == without.pass_at_k == {1: 0.75, 2: 1.0}
    metrics = scores.metrics()
    assert (metrics["greedy_success_left_out"], metrics["sampled_success_left_out"]) == (1, 1)
    assert metrics["greedy_success"] == 1.0


def test_an_episode_whose_second_attempt_was_not_scored_is_left_out_of_the_rate_of_episodes() -> None:
    solved = {"lake-1": True, "lake-2": False, "lake-3": False}
    scores = score_evaluation(
        not_scored(evaluation(solved, followed={"lake-2": True, "lake-3": False}), ("lake-3", 0.0))
    )
    assert scores.greedy is not None
    assert scores.episode is not None
    assert scores.greedy.value == pytest.approx(1 / 3)
    assert (scores.episode.value, scores.episode.tasks) == (1.0, 2)
    assert scores.left_out["success_episode"] == 1


def test_with_memory_an_episode_that_was_not_scored_is_left_out() -> None:
    first = evaluation({"lake-1": True, "lake-2": False, "lake-3": False})
    again = evaluation({"lake-2": False, "lake-3": False}, followed={"lake-2": True, "lake-3": False})
    scores = score_evaluation(first, not_scored(again, ("lake-3", 0.0)))
    assert scores.episode_with_memory is not None
    assert (scores.episode_with_memory.value, scores.episode_with_memory.tasks) == (1.0, 2)
    assert scores.left_out["success_episode_with_memory"] == 1
