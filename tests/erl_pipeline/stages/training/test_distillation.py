from dataclasses import replace

import numpy as np
import pytest

from erl_pipeline.config.distillation import DistilledRoles
from erl_pipeline.stages.training.distillation import (
    DistillationSettings,
    count_rows,
    distilled_rows,
)
from tests.erl_pipeline.episodes.script import play

SECOND_ATTEMPTS = DistillationSettings(
    roles=DistilledRoles(role="second_attempt", prompt_role="first_attempt", via_role="reflection"),
    reward_above=None,
    max_rows_per_task=None,
)
FIRST_ATTEMPTS = DistillationSettings(
    roles=DistilledRoles(role="first_attempt", prompt_role="first_attempt"),
    reward_above=None,
    max_rows_per_task=None,
)
CHAIN = SECOND_ATTEMPTS.model_copy(update={"roles": SECOND_ATTEMPTS.roles.model_copy(update={"chain": True})})


def test_a_successful_second_attempt_becomes_a_row_on_the_prompt_of_the_first() -> None:
    first, reflection, second = play(["down b", "? a b ?", "right a", "right a"])[0]
    [row] = distilled_rows([first, reflection, second], SECOND_ATTEMPTS)

    assert row.input_token_ids == first.prompt_token_ids + second.response_token_ids
    assert row.loss_mask == (0,) * 24 + (1, 1, 1, 0, 0, 0, 0, 1, 1, 1)
    assert [message["content"] for message in row.prompt] == ["@ # & # $ # # # # # # # # # # # notes ? ? ? ?"]
    assert [message["content"] for message in row.completion] == ["right a", "right c1", "right a"]
    assert (row.trajectory_id, row.reflection_trajectory_id, row.first_trajectory_id) == (
        second.trajectory_id,
        reflection.trajectory_id,
        first.trajectory_id,
    )


def test_failures_and_other_roles_are_left_out() -> None:
    failed = play(["down b", "? a b ?", "down b"])[0]
    solved = play(["right a", "right a"])[0]

    assert list(distilled_rows([*failed, *solved], SECOND_ATTEMPTS)) == []
    [row] = distilled_rows([*failed, *solved], FIRST_ATTEMPTS)
    assert (row.trajectory_id, row.reflection_trajectory_id) == (solved[0].trajectory_id, None)


def test_an_attempt_that_said_nothing_is_left_out_whatever_its_reward() -> None:
    """An environment that fails at once may count as a reward of 0, which is above a negative threshold."""
    row = play(["right a", "right a"])[0][0]
    silent = replace(row, prompt_token_ids=(), response_token_ids=(), response_mask=(), behaviour_logprobs=())
    failed = replace(silent, messages="[]", reward=0.0, success=False)
    below = FIRST_ATTEMPTS.model_copy(update={"reward_above": -0.5})
    assert [each.trajectory_id for each in distilled_rows([failed, row], below)] == [row.trajectory_id]


def test_an_attempt_that_its_agent_began_otherwise_than_the_first_is_left_out() -> None:
    """Its answers belong to another prompt than that of the first attempt."""
    first, reflection, second = play(["down b", "? a b ?", "right a", "right a"])[0]
    other = replace(second, metrics='{"other_opening": 1.0}')
    assert list(distilled_rows([first, reflection, other], SECOND_ATTEMPTS)) == []


def test_an_own_success_is_kept_however_its_agent_began_and_none_is_trained_on_another_prompt() -> None:
    """The first attempt's first call got no answer, so that its first sequence is that of another call."""
    first, reflection, second = play(["down b", "? a b ?", "right a", "right a"])[0]
    otherwise = replace(first, metrics='{"other_opening": 1.0}')
    assert not list(distilled_rows([otherwise, reflection, second], SECOND_ATTEMPTS))
    own = replace(play(["right a", "right a"])[0][0], metrics='{"other_opening": 1.0}')
    assert len(list(distilled_rows([own], FIRST_ATTEMPTS))) == 1


def test_a_task_gives_no_more_rows_than_allowed() -> None:
    solved = play(["right a", "right a"])[0]

    settings = FIRST_ATTEMPTS.model_copy(update={"max_rows_per_task": 2})
    assert len(list(distilled_rows(solved * 3, settings))) == 2


@pytest.mark.parametrize(
    ("reward_above", "kept"),
    [(None, [1.0]), (0.0, [0.25, 0.6, 1.0]), (0.25, [0.6, 1.0]), (0.6, [1.0]), (-1.0, [0.0, 0.25, 0.6, 1.0])],
)
def test_graded_rewards_are_kept_above_a_threshold(reward_above: float | None, kept: list[float]) -> None:
    attempt = play(["right a", "right a"])[0][0]
    graded = [
        replace(attempt, trajectory_id=str(reward), reward=reward, success=reward == 1.0)
        for reward in (0.0, 0.25, 0.6, 1.0)
    ]
    cut_off = replace(attempt, trajectory_id="cut off", reward=1.0, truncated=True)

    settings = FIRST_ATTEMPTS.model_copy(update={"reward_above": reward_above})
    rows = distilled_rows([cut_off, *graded], settings)
    assert [float(row.trajectory_id) for row in rows] == kept
    # As they are stored, in 32 bits.
    stored = [replace(row, reward=float(np.float32(row.reward))) for row in graded]
    assert [float(row.trajectory_id) for row in distilled_rows(stored, settings)] == kept


def test_rows_count_alike_or_by_their_reward() -> None:
    attempt = play(["right a", "right a"])[0][0]
    graded = [replace(attempt, trajectory_id=str(reward), reward=reward) for reward in (-0.5, 0.3, 1.0)]

    everything = FIRST_ATTEMPTS.model_copy(update={"reward_above": -1.0})
    assert [row.weight for row in distilled_rows(graded, everything)] == [1.0, 1.0, 1.0]
    by_reward = everything.model_copy(update={"weight": "reward"})
    assert [row.weight for row in distilled_rows(graded, by_reward)] == [0.0, 0.3, 1.0]
    # A dataset whose rows count alike has the recipe that it always had.
    assert "weight" not in everything.model_dump()


def test_the_chain_adds_the_reflection_and_the_second_attempt_on_their_own_prompts() -> None:
    first, reflection, second = play(["down b", "? a b ?", "right a", "right a"])[0]
    taught, written, used = distilled_rows([first, reflection, second], CHAIN)

    assert [taught] == list(distilled_rows([first, reflection, second], SECOND_ATTEMPTS))
    assert [row.role for row in (taught, written, used)] == ["distilled", "reflection", "second_attempt"]
    assert written.input_token_ids == reflection.prompt_token_ids + reflection.response_token_ids
    # The reflection is four words and its end.
    assert written.loss_mask == (0,) * len(reflection.prompt_token_ids) + (1, 1, 1, 1, 1)
    assert used.input_token_ids == second.prompt_token_ids + second.response_token_ids
    assert used.loss_mask == (0,) * len(second.prompt_token_ids) + (1, 1, 1, 0, 0, 0, 0, 1, 1, 1)
    assert used.prompt[-1]["content"].endswith("notes ? a b ?")
    assert [message["content"] for message in written.completion] == ["? a b ?"]
    assert {row.first_trajectory_id for row in (taught, written, used)} == {first.trajectory_id}
    assert {row.reflection_trajectory_id for row in (taught, written, used)} == {reflection.trajectory_id}
    assert len({row.sft_row_id for row in (taught, written, used)}) == 3
    assert count_rows([taught, written, used]) == {
        "sft_rows": 1,
        "sft_tokens": 6 + 5 + 6,
        "sft_chain_rows": 2,
    }


def test_the_chain_has_only_what_led_to_the_attempt_that_went_well() -> None:
    rows = play(["down b", "? a b ?", "down b", "? a b ?", "right a", "right a"], max_revisions=2)[0]
    _, _, _, latest, solved = rows
    assert [row.trajectory_id for row in distilled_rows(rows, CHAIN)] == [
        solved.trajectory_id,
        latest.trajectory_id,
        solved.trajectory_id,
    ]


def test_the_chain_leaves_out_texts_that_are_cut_off_and_prompts_that_are_the_first_ones() -> None:
    first, reflection, second = play(["down b", "? a b ?", "right a", "right a"])[0]
    cut_off = replace(reflection, truncated=True)
    assert [row.role for row in distilled_rows([first, cut_off, second], CHAIN)] == [
        "distilled",
        "second_attempt",
    ]
    ill_formed = replace(reflection, text=None)
    resampled = replace(second, prompt_token_ids=first.prompt_token_ids)
    assert [row.role for row in distilled_rows([first, ill_formed, resampled], CHAIN)] == ["distilled"]
