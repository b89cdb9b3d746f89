"""Prompts that also hold what was found out later, for the teacher of self-distillation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from erl_pipeline.config.self_distillation import SelfDistillationConfig, SelfDistilledRoles
from erl_pipeline.environments.interface import Task
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.stages.training.hindsight import Hindsight, HindsightSources, hindsight_of
from storage.errors import InputError
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import CONTEXT, TOKENIZER, play


def hindsight(
    played: list[Trajectory],
    context_length: int = CONTEXT,
    earlier: Any = (),
    held_out: Any = (),
    **changes: Any,
) -> Any:
    roles = SelfDistilledRoles(attempt="first_attempt", retry="second_attempt")
    how = SelfDistillationConfig(**changes)
    sources = HindsightSources(how, roles, played, earlier, held_out)
    return hindsight_of(sources, ChatTokenizer(TOKENIZER), context_length, 0)


def test_a_reflection_teaches_through_the_prompt_of_the_second_attempt() -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"])
    first, reflection, second = rows

    (found,) = hindsight(rows).values()

    assert found == Hindsight(second.prompt_token_ids, reflection.trajectory_id)
    assert found.prompt_token_ids != first.prompt_token_ids


@pytest.mark.parametrize("place", [0, 2])
def test_an_attempt_that_its_agent_began_otherwise_is_not_read_behind_the_other_prompt(place: int) -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"])
    rows[place] = replace(rows[place], metrics='{"other_opening": 1.0}')

    assert hindsight(rows) == {rows[0].trajectory_id: "other_prompt"}


def test_an_attempt_without_a_second_one_has_no_hindsight() -> None:
    rows, _ = play(["right a", "right a"])

    assert hindsight(rows) == {rows[0].trajectory_id: "no_retry"}


def test_a_prompt_that_leaves_no_room_for_the_answer_has_none() -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"])
    needed = len(rows[2].prompt_token_ids) + len(rows[0].response_token_ids)

    assert hindsight(rows, needed)[rows[0].trajectory_id] != "too_long"
    assert hindsight(rows, needed - 1) == {rows[0].trajectory_id: "too_long"}
    assert hindsight(rows, max_tokens=needed)[rows[0].trajectory_id] != "too_long"
    assert hindsight(rows, max_tokens=needed - 1) == {rows[0].trajectory_id: "too_long"}


def test_a_sibling_that_succeeded_stands_in_the_prompt_but_never_the_attempt_itself() -> None:
    """Of two attempts at a task one succeeded: it teaches the other, and nobody teaches it."""
    (good,), (bad, *_) = play(["right a", "right a"])[0], play(["down b", "? a b ?", "down b"], sample=1)[0]
    assert (good.success, bad.success) == (True, False)
    assert good.group_id == bad.group_id

    found = hindsight([good, bad], hindsight="sibling", template="{{ text }} {{ task }}")

    assert found[good.trajectory_id] == "no_sibling"
    said = TOKENIZER("right a right a", add_special_tokens=False)["input_ids"]
    prompt = found[bad.trajectory_id].prompt_token_ids
    assert found[bad.trajectory_id].source_trajectory_id == good.trajectory_id
    assert len(prompt) == len(bad.prompt_token_ids) + len(said)
    assert any(list(prompt[at : at + len(said)]) == said for at in range(len(prompt)))


def with_call(row: Trajectory, **arguments: str) -> Trajectory:
    """The attempt, as if all that it said was one tool call."""
    opening = json.loads(row.messages)[:1]
    call = {"function": {"name": "right", "arguments": arguments}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    return replace(row, messages=json.dumps([*opening, said]))


def test_a_sibling_that_only_called_tools_teaches_its_calls() -> None:
    (good,), (bad, *_) = play(["right a", "right a"])[0], play(["down b", "? a b ?", "down b"], sample=1)[0]

    # The tiny policy has no word for a call, so the template says whether the text is one.
    template = "{{ task }}{{ ' right' if text == 'right({})' }}"
    found = hindsight([with_call(good), bad], hindsight="sibling", template=template)

    assert len(found[bad.trajectory_id].prompt_token_ids) == len(bad.prompt_token_ids) + 1


def test_wrong_hints_are_attempts_that_failed() -> None:
    good = play(["right a", "right a"])[0][0]
    others = [play(["right a", "right a"], sample=1)[0][0]]
    bad = [play(["down b", "? a b ?", "down b"], sample=number)[0][0] for number in (2, 3, 4)]
    changes: dict[str, Any] = {
        "hindsight": "sibling",
        "combination": "modulate",
        "template": "{{ text }} {{ task }}",
    }

    found = hindsight([good, *others, *bad], contrast={"wrong_hints": 2}, **changes)

    hints = found[good.trajectory_id]
    assert hints.source_trajectory_id == others[0].trajectory_id
    assert (
        len({each.source_trajectory_id for each in hints.wrong} & {each.trajectory_id for each in bad}) == 2
    )
    assert len(found[bad[0].trajectory_id].wrong) == 2  # never the attempt itself
    assert hindsight([good, *others], **changes)[good.trajectory_id] == "no_wrong_sibling"


SOLVED: dict[str, Any] = {"hindsight": "demonstration", "template": "{{ text }} {{ task }}"}


def with_solution(row: Trajectory, solution: str) -> Trajectory:
    return replace(row, task_payload=json.dumps({**json.loads(row.task_payload), "solution": solution}))


def test_a_stored_solution_stands_in_the_prompt_and_a_missing_one_is_counted() -> None:
    (row,) = play(["right a", "right a"])[0]

    assert hindsight([row], **SOLVED) == {row.trajectory_id: "no_demonstration"}
    (found,) = hindsight([with_solution(row, "right right")], **SOLVED).values()
    assert len(found.prompt_token_ids) == len(row.prompt_token_ids) + 2
    assert found.source_trajectory_id == row.trajectory_id


def test_an_own_success_of_an_earlier_iteration_is_a_demonstration() -> None:
    (good,), (bad, *_) = play(["right a", "right a"])[0], play(["down b", "? a b ?", "down b"], sample=1)[0]
    own: dict[str, Any] = {**SOLVED, "demonstration": {"source": "own_success"}}

    (found,) = hindsight([bad], earlier=[bad, good], **own).values()
    assert found.source_trajectory_id == good.trajectory_id
    assert hindsight([bad], earlier=[bad], **own) == {bad.trajectory_id: "no_demonstration"}
    assert hindsight([good, bad], **own)[bad.trajectory_id] == "no_demonstration"  # not of this iteration


def test_a_demonstration_that_holds_the_answer_to_a_held_out_task_is_refused() -> None:
    answer = "right " * 6 + "down down"
    (row,) = play(["right a", "right a"])[0]
    kept = Task("kept", "lake", "frozen_lake", {"solution": answer})

    with pytest.raises(InputError, match="holds the whole solution of a held-out task"):
        hindsight([with_solution(row, f"up {answer} up")], held_out=[kept], **SOLVED)
    lines = replace(kept, payload={"solution": answer.replace(" ", "\n")})
    calling, own = with_call(row, answer=lines.payload["solution"]), {"source": "own_success"}
    with pytest.raises(InputError, match="holds the whole solution of a held-out task"):
        hindsight([row], earlier=[calling], held_out=[lines], **SOLVED, demonstration=own)
    same = replace(kept, task_id=row.task_id)
    with pytest.raises(InputError, match="is of the held-out task corner"):
        hindsight([with_solution(row, "up")], held_out=[same], **SOLVED)


def test_for_comparison_the_text_is_of_another_task_or_the_prompt_is_that_of_the_attempt() -> None:
    (row,) = play(["right a", "right a"])[0]
    one = with_solution(row, "right right")
    two = replace(with_solution(row, "down"), trajectory_id="two", task_id="other")

    shuffled = hindsight([one, two], block="shuffled", **SOLVED)
    assert shuffled[row.trajectory_id].source_trajectory_id == "two"
    assert shuffled["two"].source_trajectory_id == row.trajectory_id
    assert hindsight([one], block="shuffled", **SOLVED) == {row.trajectory_id: "no_other_task"}
    empty = hindsight([one, replace(row, trajectory_id="none")], block="empty", **SOLVED)
    assert empty[row.trajectory_id].prompt_token_ids == row.prompt_token_ids
    assert empty["none"] == "no_demonstration"  # the same attempts are scored as with their own texts


def test_feedback_stands_in_the_prompt_of_failures_alone_where_only_those_are_asked_for() -> None:
    (good,), (bad, *_) = play(["right a", "right a"])[0], play(["down b", "? a b ?", "down b"], sample=1)[0]

    found = hindsight([good, bad], hindsight="feedback", rows="failed", template="{{ task }} {{ text }}")

    assert found[good.trajectory_id] == "succeeded"
    assert found[bad.trajectory_id].source_trajectory_id == bad.trajectory_id


def test_messages_that_do_not_give_the_tokens_of_the_prompt_are_not_rendered_again() -> None:
    (row,) = play(["right a", "right a"])[0]
    other = replace(row, prompt_token_ids=(*row.prompt_token_ids, 1))

    assert hindsight([other], hindsight="feedback") == {row.trajectory_id: "other_prompt"}
