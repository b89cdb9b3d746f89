"""Few episodes that cannot be scored are data; more than a hundredth of them stop the run."""

from __future__ import annotations

import polars as pl
import pytest

from erl_pipeline.stages.rollouts.scorer_errors import require_scored
from storage.errors import EnvironmentFailed

ROLLOUTS = pl.DataFrame(
    {
        "episode_id": ["a-0", "b-0", "b-0", "c-0"],
        "task_id": ["a", "b", "b", "c"],
        "finish_reason": ["done", "scorer_error", "scorer_error", "scorer_error"],
        "feedback": ["wrong", "what a reflection answers", "step: it gave nan", "step: it gave 2"],
    }
).lazy()


def test_a_hundredth_of_the_episodes_may_fail() -> None:
    require_scored({"episodes": 200, "scorer_errors": 2}, ROLLOUTS)
    require_scored({"episodes": 3}, ROLLOUTS)


def test_more_stop_the_run_and_name_the_first_task() -> None:
    told = (
        "2 of 199 episodes could not be scored, more than 1%; they are of 2 tasks, the first is b: step: it"
    )
    with pytest.raises(EnvironmentFailed, match=told):
        require_scored({"episodes": 199, "scorer_errors": 2}, ROLLOUTS)
