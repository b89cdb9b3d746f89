from __future__ import annotations

import polars as pl
import pytest

from erl_pipeline.stages.rollouts.counts import gain_metrics, retry_gains


def episode(task: str, number: int, first: bool, retry: bool | None = None) -> list[dict[str, object]]:
    """A first attempt; after a failed one a reflection and a retry, which succeeded or not."""
    base: dict[str, object] = {
        "task_id": task,
        "episode_id": f"{task}-{number}",
        "text": None,
        "finish_reason": "done",
    }
    rows = [
        base | {"role": "first_attempt", "parent_trajectory_id": None, "revision_index": 0, "success": first}
    ]
    if retry is not None:
        later = {"parent_trajectory_id": "some", "revision_index": 1, "success": retry}
        rows.append(base | later | {"role": "reflection", "text": "a b c d"})
        rows.append(base | later | {"role": "second_attempt"})
    return rows


def frame(*episodes: list[dict[str, object]]) -> pl.LazyFrame:
    schema = {"parent_trajectory_id": pl.String, "text": pl.String}
    return pl.DataFrame([row for rows in episodes for row in rows], schema_overrides=schema).lazy()


THREE_TASKS = frame(
    # Without its own first attempt, each retry is compared with one success and one failure: 1/2.
    episode("a", 0, True),
    episode("a", 1, False, retry=True),
    episode("a", 2, False, retry=False),
    # No other first attempt solved it: 0.
    episode("b", 0, False, retry=True),
    episode("b", 1, False, retry=True),
    # The only other first attempt solved it: 1.
    episode("c", 0, True),
    episode("c", 1, False, retry=False),
)


def test_a_retry_is_set_against_the_other_first_attempts_at_its_task() -> None:
    assert retry_gains(THREE_TASKS) == {"second_attempt": {"a": [0.5, -0.5], "b": [1.0, 1.0], "c": [-1.0]}}


def test_the_mean_gain_has_an_interval_over_tasks() -> None:
    # 3 of 5 retries succeeded; plain second tries would have reached 2 of 5.
    metrics = gain_metrics(THREE_TASKS)
    assert metrics["gain_second_attempt"] == pytest.approx(0.2)
    # Student's t with 2 degrees of freedom is so wide that the ends are the smallest and largest possible
    # values.
    assert (metrics["gain_second_attempt_low"], metrics["gain_second_attempt_high"]) == (-1.0, 1.0)


def test_many_tasks_give_a_narrow_interval() -> None:
    """20 tasks at which one of two retries succeeded and no other first attempt did: gains 1 and 0."""
    both = [
        [episode(f"t{number}", 0, False, retry=True), episode(f"t{number}", 1, False, retry=False)]
        for number in range(20)
    ]
    one = episode("easy", 0, False, retry=True), episode("easy", 1, False, retry=True)
    metrics = gain_metrics(frame(*[rows for task in both for rows in task], *one))
    # 22 of 42; residuals of the 20 tasks 1 - 2 * 22/42 = -1/21, of the easy one 2 - 44/42 = 20/21.
    assert metrics["gain_second_attempt"] == pytest.approx(22 / 42)
    half_width = 2.0860 * (21 / 20 * (20 / 441 + 400 / 441)) ** 0.5 / 42
    assert metrics["gain_second_attempt_low"] == pytest.approx(22 / 42 - half_width, abs=1e-4)


def test_where_all_tasks_agree_nothing_is_known_of_how_they_differ() -> None:
    failures = [episode(task, number, False, retry=False) for task in "ab" for number in (0, 1)]
    ends = {"gain_second_attempt_low": -1.0, "gain_second_attempt_high": 1.0}
    assert gain_metrics(frame(*failures)) == {"gain_second_attempt": 0.0, **ends}


def test_a_task_with_one_episode_tells_nothing() -> None:
    assert gain_metrics(frame(episode("a", 0, False, retry=True))) == {}


def test_what_a_judge_says_is_no_retry() -> None:
    judged = [{**row, "role": "judge"} for row in episode("a", 1, False, retry=True)[2:]]
    assert retry_gains(frame(episode("a", 0, False), judged)) == {}
