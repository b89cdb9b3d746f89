from erl_pipeline.stages.build_distillation import DistillationSettings, distilled_rows
from tests.erl_pipeline.episodes.script import play

SECOND_ATTEMPTS = DistillationSettings(
    role="second_attempt", prompt_role="first_attempt", via_role="reflection", max_rows_per_task=None
)
FIRST_ATTEMPTS = DistillationSettings(
    role="first_attempt", prompt_role="first_attempt", via_role=None, max_rows_per_task=None
)


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


def test_a_task_gives_no_more_rows_than_allowed() -> None:
    solved = play(["right a", "right a"])[0]

    settings = FIRST_ATTEMPTS.model_copy(update={"max_rows_per_task": 2})
    assert len(list(distilled_rows(solved * 3, settings))) == 2
