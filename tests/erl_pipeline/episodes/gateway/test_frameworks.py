"""Agents of openai-agents and pydantic-ai: whatever history they send, each answer is trained once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from erl_pipeline.episodes.play import PlayedEpisodes
from storage.errors import EnvironmentFailed
from tests.erl_pipeline.episodes.gateway import framework_agents
from tests.erl_pipeline.episodes.gateway.playing import only, played, text


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def trained(episodes: PlayedEpisodes) -> Sequence[list[str]]:
    """The texts that are trained, by sequence."""
    rows = (*episodes.rows, *episodes.further)
    return [_parts(row.response_token_ids, row.response_mask) for row in rows]


def _parts(ids: Sequence[int], mask: Sequence[int]) -> list[str]:
    said: list[str] = []
    for place, (token, bit) in enumerate(zip(ids, mask, strict=True)):
        if bit and (place == 0 or not mask[place - 1]):
            said.append("")
        if bit:
            said[-1] += text([token])
    return [each.removesuffix("<|im_end|>") for each in said]


HANDED = called("transfer_to_expert")
SEARCHED = called("search", query="lakes")


@pytest.mark.parametrize("agent", [framework_agents.hands_off, framework_agents.streams_with_a_handoff])
def test_a_handoff_begins_a_sequence_and_the_expert_goes_on_in_it(agent: Any) -> None:
    """It has instructions of its own, and what was said before is context there."""

    def says(prompt: str) -> str:
        if "page on lakes" in prompt:
            return "7"
        return SEARCHED if "You know lakes." in prompt else HANDED

    episodes = played(agent, says, reward="scorer")
    assert only(episodes).reward == 1.0
    assert trained(episodes) == [[HANDED], [SEARCHED, "7"]]


def test_an_agent_as_a_tool_has_a_sequence_of_its_own() -> None:
    """The outer conversation goes on behind the inner one in its own sequence."""
    asked = called("ask_expert", input="how many lakes?")

    def says(prompt: str) -> str:
        if "Ask before you answer." in prompt:
            return "7" if "seven lakes" in prompt else asked
        return "seven lakes" if "page on lakes" in prompt else SEARCHED

    episodes = played(framework_agents.asks_an_agent_as_a_tool, says, reward="scorer")
    assert only(episodes).reward == 1.0
    assert trained(episodes) == [[asked, "7"], [SEARCHED, "seven lakes"]]


def test_answers_that_a_framework_rejects_are_turns_of_one_conversation() -> None:
    """One that does not fit its type, one that its validator refuses, and one that is accepted."""

    def says(prompt: str) -> str:
        if "above 10" in prompt:
            return called("final_result", number=7)
        return called("final_result", number=70 if "int_parsing" in prompt else "many")

    episodes = played(framework_agents.answers_by_type, says, reward="scorer")
    assert only(episodes).reward == 1.0
    assert trained(episodes) == [
        [called("final_result", number=each) for each in ("many", 70, 7)],
    ]


def test_a_tool_call_that_a_framework_forces_is_refused_by_name() -> None:
    with pytest.raises(EnvironmentFailed, match="tool_choice"):
        played(framework_agents.requires_a_tool, lambda prompt: "7")
