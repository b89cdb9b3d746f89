"""Episodes that agents play with OpenAI's own client, against a policy that gives scripted answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.play import ConcurrentSampling
from erl_pipeline.methods.erl.settings import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT
from storage.errors import EngineError, EnvironmentFailed
from tests.erl_pipeline.episodes.gateway import agents
from tests.erl_pipeline.episodes.gateway.playing import (
    END,
    TASK,
    TOKENIZER,
    ScriptedEngine,
    only,
    played,
    text,
)


def test_what_is_stored_is_what_was_asked_and_sampled() -> None:
    engine = ScriptedEngine(lambda prompt: "7")
    row = only(played(agents.asks_once, lambda prompt: "7", engine=engine))
    assert (row.reward, row.success, row.finish_reason, row.feedback) == (1.0, True, "done", "it said 7")
    assert text(row.prompt_token_ids) == (
        f"<|im_start|>system\nbe brief{END}\n<|im_start|>user\nhow many?{END}\n<|im_start|>assistant\n"
    )
    assert text(row.response_token_ids) == f"7{END}"
    assert row.response_mask == (1, 1)
    (asked,) = engine.asked
    assert asked.prompt_token_ids == row.prompt_token_ids
    # The temperature of the agent does not count, and it is told so.
    assert (asked.temperature, json.loads(row.metrics)) == (
        1.0,
        {"calls": 1.0, "overridden_calls": 1.0, "sequences": 1.0},
    )


def test_a_reflection_reaches_an_agent_that_knows_nothing_of_it() -> None:
    """It stands in the system message of the second attempt; the agent's own words are unchanged."""

    def says(prompt: str) -> str:
        if "Count the corners" in prompt and "assistant" in prompt[-12:]:
            return "7"
        return "Count the corners." if "it said 3" in prompt else "3"

    first, reflection, second = played(agents.asks_once, says, max_revisions=1).rows
    assert [first.role, reflection.role, second.role] == [FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT]
    assert (first.reward, second.reward, reflection.reward) == (0.0, 1.0, 1.0)
    assert "it said 3" in text(reflection.prompt_token_ids)
    assert "assistant: 3" in text(reflection.prompt_token_ids)
    system, user, answer = json.loads(second.messages)
    assert "Count the corners." in system["content"]
    assert system["content"].startswith("be brief")
    assert (user["content"], answer["content"]) == ("how many?", "7")
    assert "other_opening" not in second.metrics
    assert second.parent_trajectory_id == reflection.trajectory_id


class AnswersTheCriticFirst(ScriptedEngine):
    """In second attempts; in first ones the planner's answer comes first."""

    def __init__(self, says: Callable[[str], str]) -> None:
        super().__init__(says)
        self._answered = {"planner": asyncio.Event(), "critic": asyncio.Event()}

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    async def sample(self, request: GenerationRequest) -> Generation:
        asked = TOKENIZER.decode(request.prompt_token_ids)
        who = next((each for each in self._answered if f"user\n{each}" in asked), None)
        if who is not None:
            first = "critic" if "Look further" in asked else "planner"
            if who == "planner":
                agents.planner_was_asked.set()
            if who != first:
                await self._answered[first].wait()
            self._answered[who].set()
            if all(each.is_set() for each in self._answered.values()):
                for each in self._answered.values():
                    each.clear()
        return self.generate([request])[0]


def test_the_first_sequence_is_that_of_the_first_call_whichever_is_answered_first() -> None:
    """So distillation trains a plan on the prompt of the planner, never a critique. An empty system message
    of the agent's is replaced as any other."""

    def says(prompt: str) -> str:
        if "plan better" in prompt:
            return "Look further."
        if "critic" in prompt:
            return "a critique"
        return "good" if "Look further" in prompt else "bad"

    engine = AnswersTheCriticFirst(says)
    first, _, second = played(
        agents.asks_planner_and_critic, says, max_revisions=1, sampling=ConcurrentSampling(engine, 4)
    ).rows
    for row, said in ((first, "bad"), (second, "good")):
        assert [each["role"] for each in json.loads(row.messages)] == ["system", "user", "assistant"]
        assert [each["content"] for each in json.loads(row.messages)][1:] == ["planner", said]
    assert "other_opening" not in second.metrics


def test_an_attempt_with_other_tools_began_otherwise() -> None:
    said = iter(["3", "Count.", "7"])
    _, _, second = played(agents.offers_another_tool, lambda _: next(said), max_revisions=1).rows
    assert second.reward == 1.0
    assert json.loads(second.metrics)["other_opening"] == 1.0


def test_tools_are_called_by_the_policy_and_answered_by_the_agent() -> None:
    def says(prompt: str) -> str:
        if "page on lakes" in prompt:
            return "7"
        return 'look <tool_call>{"name": "search", "arguments": {"for": "lakes"}}</tool_call>'

    episodes = played(agents.uses_a_tool, says, reward="scorer")
    row = only(episodes)
    assert (row.reward, row.finish_reason, episodes.further) == (1.0, "done", [])
    assert text(row.response_token_ids).endswith(
        f"page on lakes</tool_response>{END}\n<|im_start|>assistant\n7{END}"
    )
    assert sum(row.response_mask) == len(says("")) + 1 + 2
    assert [message["role"] for message in json.loads(row.messages)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_a_stream_says_the_same_as_an_answer() -> None:
    row = only(played(agents.streams, lambda prompt: "a long answer"))
    assert (row.feedback, json.loads(row.metrics)["said"]) == ("a long answer", len("a long answer") + 1)


def test_calls_at_the_same_time_become_further_sequences() -> None:
    episodes = played(agents.asks_at_the_same_time, lambda prompt: f"said{prompt.count('assistant')}")
    row, (branch,) = only(episodes), episodes.further
    assert branch.parent_trajectory_id == row.trajectory_id != branch.trajectory_id
    assert (branch.reward, branch.role, branch.group_id) == (row.reward, row.role, row.group_id)
    # Five answers of six tokens each, every one trained once.
    assert sum(row.response_mask) + sum(branch.response_mask) == 5 * 6
    assert text(branch.prompt_token_ids).count(f"said1{END}") == 1
    assert {"left" in row.messages, "left" in branch.messages} == {True, False}


def test_each_call_is_recorded_with_its_tokens() -> None:
    """In the order of the sequences, whatever came first; then what was refused."""
    episodes = played(agents.asks_at_the_same_time, lambda prompt: f"said{prompt.count('assistant')}")
    (row,), (branch,) = episodes.rows, episodes.further
    assert {call.attempt_id for call in episodes.calls} == {row.trajectory_id}
    assert [call.sequence_index for call in episodes.calls] == [0, 0, 0, 1, 1]
    for call in episodes.calls:
        sequence = (row, branch)[call.sequence_index or 0]
        assert "said" in text(sequence.response_token_ids[call.start : call.end])
        assert set(sequence.response_mask[call.start : call.end]) == {1}
        assert (call.api, call.finish, call.streamed, call.problem) == ("chat", "stop", False, None)
        assert min(call.arrived_ms, call.engine_ms, call.gateway_ms) > 0
    assert len({call.call_id for call in episodes.calls}) == 5

    *_, refused = played(agents.asks_without_end, lambda prompt: "7", limits={"calls": 1}).calls
    assert (refused.call_id, refused.start) == (None, None)
    assert refused.problem == "this attempt may have at most 1 calls"

    (streamed,) = played(agents.streams, lambda prompt: "<tool_call>").calls
    assert (streamed.streamed, streamed.problem) == (True, None)


def test_the_seeds_of_calls_depend_on_what_was_asked_not_on_what_arrives_first() -> None:
    def once() -> set[int]:
        engine = ScriptedEngine(lambda prompt: f"said{prompt.count('assistant')}")
        played(agents.asks_at_the_same_time, lambda prompt: "", engine=engine)
        return {each.seed for each in engine.asked}

    seeds, again = once(), once()
    assert seeds == again
    assert len(seeds) == 5


def test_choices_are_sampled_with_seeds_of_their_own_and_all_trained() -> None:
    engine = ScriptedEngine(lambda prompt: "7")
    episodes = played(agents.asks_for_choices, lambda prompt: "", engine=engine)
    assert len({each.seed for each in engine.asked}) == 3
    assert [row.feedback for row in episodes.rows] == ["7 7 7"]
    assert [sum(row.response_mask) for row in (*episodes.rows, *episodes.further)] == [2, 2, 2]


@pytest.mark.parametrize("limits", [{"calls": 3}, {"tokens": 6}], ids=["calls", "tokens"])
def test_an_attempt_has_limits(limits: dict[str, int]) -> None:
    episodes = played(agents.asks_without_end, lambda prompt: "7", limits=limits)
    row = only(episodes)
    assert (row.reward, row.feedback) == (0.5, "attempt_limit")
    assert json.loads(row.metrics)["calls"] == 3
    assert json.loads(row.metrics)["limit_reached"] == 1.0


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (agents.says_nothing, {}, "the agent: ValueError: no report: None is no object"),
        (agents.crashes, {}, "the agent: RuntimeError: no map"),
        (agents.makes_no_call, {}, "the agent made no call"),
        (agents.knows_the_answer, {"reward": "scorer"}, "the report has a reward"),
    ],
)
def test_an_attempt_without_a_result_is_not_scored(
    function: Callable[..., Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=message):
        played(function, lambda prompt: "7", **settings)


def test_a_key_is_dead_when_its_attempt_has_ended() -> None:
    agents.late.clear()
    played(agents.calls_later, lambda prompt: "Look again.", max_revisions=1)
    first, second, answer = agents.late
    assert first != second
    assert answer == "attempt_closed"


def test_a_full_context_is_an_error_that_agents_know() -> None:
    with pytest.raises(EnvironmentFailed, match="has 28 tokens, and the policy's context holds 20"):
        played(agents.says_nothing, lambda prompt: "7", context_length=20)


@pytest.mark.parametrize(
    ("asks", "context", "told"),
    [
        ({}, 20, "has 28 tokens, and the policy's context holds 20"),
        ({"tool_choice": "required"}, 4000, "tool_choice"),
    ],
)
def test_an_attempt_without_any_answer_is_not_scored_whatever_its_agent_reports(
    asks: dict[str, Any], context: int, told: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=f"no call of the agent was answered.*{told}"):
        played(
            agents.goes_on_without_an_answer,
            lambda prompt: "7",
            context_length=context,
            task={**TASK, "asks": asks},
        )


def test_an_engine_that_fails_ends_the_stage_as_in_any_other_episode() -> None:
    def fails(prompt: str) -> str:
        raise EngineError("the server is gone")

    with pytest.raises(EngineError, match="the server is gone"):
        played(agents.asks_once, fails)
