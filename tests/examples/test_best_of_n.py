"""The selection of the method: which attempts become supervised rows."""

from __future__ import annotations

from dataclasses import replace

from best_of_n.selection import SelectionSettings, best_attempts

from erl_pipeline.stages.training.distillation import distilled_row
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import play

LONG = ("right a", "left c", "right a", "right a")
SHORT = ("right a", "right a")


def attempt(number: int, texts: tuple[str, ...] = SHORT, task: str = "t", reward: float = 1.0) -> Trajectory:
    """The `number`th attempt at a task."""
    row = play(list(texts))[0][0]
    return replace(
        row,
        trajectory_id=f"{task}-{number}",
        task_id=task,
        sample_index=number,
        reward=reward,
        success=reward > 0,
    )


def chosen(rows: list[Trajectory], keep: int = 1, prefer: str = "shortest") -> list[str]:
    """The ids of the attempts that are selected."""
    settings = SelectionSettings.model_validate({"keep": keep, "prefer": prefer})
    return [row.trajectory_id for row in best_attempts(rows, settings)]


def test_the_highest_reward_is_best_and_then_the_shortest_or_the_first() -> None:
    rows = [attempt(0, LONG), attempt(1, SHORT), attempt(2, LONG, reward=0.0), attempt(3, LONG, task="u")]
    assert chosen(rows) == ["t-1", "u-3"]
    assert chosen(rows, prefer="first") == ["t-0", "u-3"]
    assert chosen([*rows, attempt(4, LONG, reward=2.0)]) == ["t-4", "u-3"]


def test_what_was_not_scored_is_never_the_best() -> None:
    failed = replace(attempt(1, SHORT), finish_reason="environment_error")
    assert chosen([attempt(0, LONG), failed]) == ["t-0"]


def test_equal_attempts_count_once() -> None:
    rows = [attempt(0), attempt(1), attempt(2, LONG)]
    assert chosen(rows, keep=3) == ["t-0", "t-2"]


def test_failures_and_texts_that_were_cut_off_are_left_out() -> None:
    assert chosen([attempt(0, reward=0.0), replace(attempt(1), truncated=True)], keep=2) == []


def test_an_attempt_is_trained_on_its_own_prompt() -> None:
    row = attempt(0)
    supervised = distilled_row(row)
    assert supervised.input_token_ids == row.prompt_token_ids + row.response_token_ids
    assert supervised.loss_mask == (0,) * len(row.prompt_token_ids) + row.response_mask
    assert (supervised.first_trajectory_id, supervised.trajectory_id) == ("t-0", "t-0")
