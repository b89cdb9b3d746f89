import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.episodes.context import RetrievalRequest, SampleRequest
from erl_pipeline.methods.erl.episode import ErlPhase
from storage.errors import InputError
from tests.erl_pipeline.episodes.script import COMPACT, play

BOARD = "@ # & # $ # # # # # # # # # # #"


def test_a_success_is_not_reflected_on() -> None:
    rows, asked = play(["right a", "right a"])

    assert [(row.role, row.reward, row.success) for row in rows] == [("first_attempt", 1.0, True)]
    assert [request.phase for request in asked] == [ErlPhase.FIRST_ATTEMPT] * 2


def test_a_failure_leads_to_a_reflection_with_the_reward_of_the_second_attempt() -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"])

    assert [(row.role, row.reward, row.success) for row in rows] == [
        ("first_attempt", 0.0, False),
        ("reflection", 1.0, True),
        ("second_attempt", 1.0, True),
    ]
    first, reflection, second = rows
    assert reflection.text == "? a b ?"
    assert first.parent_trajectory_id is None
    assert reflection.parent_trajectory_id == first.trajectory_id
    assert second.parent_trajectory_id == reflection.trajectory_id
    assert len({row.episode_id for row in rows}) == 1
    assert len({row.group_id for row in rows}) == 3


def test_what_each_role_sees() -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"])
    openings = [json.loads(row.messages)[0]["content"] for row in rows]

    assert openings == [
        f"{BOARD} notes ? ? ? ?",
        f"{BOARD} trace down b fell c4 {'. ' * 20}fell memory ? ? ? ? reflect",
        f"{BOARD} notes ? a b ?",
    ]


def test_environment_tokens_are_masked_and_sampled_ones_keep_their_log_probabilities() -> None:
    [row], _ = play(["up d", "right a", "right a"])

    # up d <end> | <user> bump c0 <assistant> | right a <end> | <user> right c1 <assistant> | right a <end>
    assert row.response_mask == (1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1)
    assert row.behaviour_logprobs == tuple(-0.25 * trained for trained in row.response_mask)


def test_an_ill_formed_reflection_ends_the_episode_without_reward() -> None:
    rows, _ = play(["down b", "a b"])

    assert [(row.role, row.reward, row.finish_reason) for row in rows] == [
        ("first_attempt", 0.0, "done"),
        ("reflection", 0.0, "ill_formed"),
    ]
    assert rows[1].text is None


def test_retrieved_reflections_stand_in_the_reflection_prompt_and_in_the_row() -> None:
    hit = SimpleNamespace(entry=SimpleNamespace(entry_id="m-7", text="d ? b ?"))
    rows, asked = play(["down b", "d a b ?", "right a", "right a"], [hit], retrieval=True)

    [retrieval] = [request for request in asked if isinstance(request, RetrievalRequest)]
    assert retrieval.situation == f"{BOARD} notes ? ? ? ?\nfell"
    assert "memory d ? b ? reflect" in json.loads(rows[1].messages)[0]["content"]
    assert [row.memory_entry_ids for row in rows] == [(), ("m-7",), ()]


def test_a_reflection_from_which_memory_is_withheld_does_not_ask_for_it() -> None:
    """With a share of 1 memory is withheld from all samples, with .5 from every other one."""
    hit = SimpleNamespace(entry=SimpleNamespace(entry_id="m-7", text="d ? b ?"))
    answers = ["down b", "d a b ?", "right a", "right a"]
    rows, asked = play(answers, [hit], retrieval=True, withhold=1.0)
    assert not any(isinstance(request, RetrievalRequest) for request in asked)
    assert "memory ? ? ? ? reflect" in json.loads(rows[1].messages)[0]["content"]
    assert [row.subgroup for row in rows] == [None, "free", None]
    assert (rows[1].memory_version, rows[1].memory_entry_ids) == ("", ())

    half = [play(answers, [hit], sample=sample, retrieval=True, withhold=0.5)[0][1] for sample in (0, 1)]
    assert {row.subgroup: row.memory_entry_ids for row in half} == {"guided": ("m-7",), "free": ()}
    # Where there is no memory yet there is nothing to withhold.
    assert play(answers, withhold=0.5)[0][1].subgroup is None


def test_an_ill_formed_reflection_may_be_followed_by_a_retry_on_the_first_prompt() -> None:
    answers = ["down b", "a b", "right a", "right a"]
    rows, _ = play(answers, retry_ill_formed=True, show_failed_attempt=True)

    assert [(row.role, row.reward, row.finish_reason) for row in rows] == [
        ("first_attempt", 0.0, "done"),
        ("reflection", 1.0, "ill_formed"),
        ("second_attempt", 1.0, "done"),
    ]
    assert rows[1].text is None
    assert rows[2].prompt_token_ids == rows[0].prompt_token_ids


def test_a_second_attempt_may_see_the_failed_one_beside_the_reflection() -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"], show_failed_attempt=True)

    opening = json.loads(rows[2].messages)[0]["content"]
    assert opening == f"{BOARD} notes ? a b ? trace down b fell c4 {'. ' * 20}fell"


def test_without_reflection_the_second_attempt_sees_the_failed_one_and_its_feedback() -> None:
    rows, _ = play(["down b", "right a", "right a"], reflection=False, show_failed_attempt=True)

    opening = json.loads(rows[1].messages)[0]["content"]
    assert opening == f"{BOARD} notes ? ? ? ? trace down b fell c4 {'. ' * 20}fell"


def test_without_reflection_and_failed_attempt_it_is_a_plain_second_try() -> None:
    rows, _ = play(["down b", "right a", "right a"], reflection=False)

    assert rows[1].prompt_token_ids == rows[0].prompt_token_ids


def test_without_reflection_the_second_attempt_follows_the_first() -> None:
    rows, _ = play(["down b", "right a", "right a"], reflection=False)

    assert [(row.role, row.reward) for row in rows] == [("first_attempt", 0.0), ("second_attempt", 1.0)]
    assert rows[1].parent_trajectory_id == rows[0].trajectory_id


def test_without_retries_an_episode_is_its_first_attempt() -> None:
    rows, _ = play(["down b"], max_revisions=0)

    assert [row.role for row in rows] == ["first_attempt"]


def test_revisions_go_on_until_an_attempt_succeeds() -> None:
    rows, _ = play(["down b", "? ? b ?", "down b", "? a b ?", "right a", "right a"], max_revisions=3)

    assert [(row.role, row.revision_index, row.reward) for row in rows] == [
        ("first_attempt", 0, 0.0),
        ("reflection", 1, 0.0),
        ("second_attempt", 1, 0.0),
        ("reflection", 2, 1.0),
        ("second_attempt", 2, 1.0),
    ]


def test_every_turn_has_a_seed_of_its_own_and_rows_hold_that_of_their_first() -> None:
    answers = ["up d", "down b", "? a b ?", "right a", "right a"]
    rows, asked = play(answers)
    seeds = [request.request.seed for request in asked if isinstance(request, SampleRequest)]

    assert len(set(seeds)) == 5
    assert [row.seed for row in rows] == [seeds[0], seeds[2], seeds[3]]
    assert [row.seed for row in play(answers)[0]] == [row.seed for row in rows]
    assert seeds[0] not in {row.seed for row in play(answers, sample=1)[0]}


def test_each_role_is_sampled_within_its_own_limits() -> None:
    rows, asked = play(["down b", "? a b ?", "right a", "right a"])
    requests = [request.request for request in asked if isinstance(request, SampleRequest)]

    assert [(each.temperature, each.max_new_tokens) for each in requests] == [
        (1.0, 8),
        (0.7, 6),
        (1.0, 8),
        (1.0, 8),
    ]
    assert {each.model for each in requests} == {"policy"}
    assert [row.temperature for row in rows] == [1.0, 0.7, 1.0]
    assert {row.policy_version for row in rows} == {"policy-1"}


class Lengthening:
    """The prompts of FrozenLake, with what memory has behind a reflection's as it is: four tokens each."""

    def __getattr__(self, name: str) -> Any:
        return getattr(COMPACT, name)

    def reflection(self, instructions: str, report: Any, remembered: Sequence[str]) -> list[Message]:
        *before, last = COMPACT.reflection(instructions, report, [])
        return [*before, user_message(" ".join([last["content"], *remembered]))]


def test_what_memory_has_and_leaves_no_room_is_left_out() -> None:
    found = [
        SimpleNamespace(entry=SimpleNamespace(entry_id=name, text="a b ? ?"), score=0.5)
        for name in ("m-1", "m-2")
    ]
    answers = ["down b", "a b"]  # it ends with a reflection that cannot be read
    plain = len(play(answers, prompts=Lengthening())[0][1].prompt_token_ids)

    def shown(room: int) -> tuple[str, ...]:
        length = plain + room
        rows, _ = play(answers, found, context_length=length, prompts=Lengthening(), retrieval=True)
        return rows[1].memory_entry_ids

    assert [shown(room) for room in (9, 8, 5, 4)] == [("m-1", "m-2"), ("m-1",), ("m-1",), ()]


def test_an_attempt_that_fills_the_context_is_truncated_and_a_prompt_that_does_is_refused() -> None:
    # The prompt has 24 tokens, a turn 3, an observation 4.
    [row], _ = play(["up d", "up d"], context_length=24 + 3 + 4 + 3 + 4, max_revisions=0)
    assert (row.finish_reason, row.truncated, row.success) == ("context", True, False)

    with pytest.raises(InputError, match="task corner: its prompt has 24 tokens"):
        play([], context_length=24)
