"""Agents with tools whose policy's chat template writes calls in another form than Hermes'."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from erl_pipeline.environments.agent.attempts import AgentTask
from tests.erl_pipeline.episodes.call_templates import FAMILIES, Family
from tests.erl_pipeline.episodes.gateway.agents import client
from tests.erl_pipeline.episodes.gateway.playing import END, TOKENIZER, only, played, text
from tests.erl_pipeline.episodes.gateway.test_apis import (
    SEARCH,
    asks_by_messages,
    asks_by_responses,
    dumps_by_messages,
    streams_by_chat,
)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("agent", [asks_by_responses, asks_by_messages, dumps_by_messages, streams_by_chat])
def test_tools_are_called_and_answered_in_one_sequence(
    agent: Any, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TOKENIZER, "chat_template", family.template)
    calls = family.between.join(
        family.call("search", {"for": what}) for what in ("lakes", "ice")[-family.most :]
    )

    def says(prompt: str) -> str:
        return "7" if "page on ice" in prompt else calls

    episodes = played(agent, says, reward="scorer")
    row = only(episodes)
    assert (row.reward, row.finish_reason, episodes.further) == (1.0, "done", [])
    said = text(row.response_token_ids)
    assert said.startswith(f"{calls}{END}\n<|im_start|>tool\n")
    assert said.endswith(f"7{END}")
    assert sum(row.response_mask) == len(calls) + 1 + 2
    assert json.loads(row.metrics) == {"calls": 2.0, "overridden_calls": 2.0, "sequences": 1.0, "said": 2.0}
    roles = ["system", "user", "assistant", *["tool"] * family.most, "assistant"]
    assert [each["role"] for each in json.loads(row.messages)] == roles


def is_refused_tools(task: AgentTask) -> dict[str, Any]:
    tools: Any = [{"type": "function", "function": SEARCH}]
    asked: Any = [{"role": "user", "content": task.prompt}]
    with pytest.raises(openai.BadRequestError) as refused:
        client(task).chat.completions.create(model="any", messages=asked, tools=tools)
    answer = client(task).chat.completions.create(model="any", messages=asked)
    return {"answer": answer.choices[0].message.content, "feedback": str(refused.value)}


def test_tools_are_refused_where_calls_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    template = FAMILIES["mistral, by name"].template.replace("[TOOL_CALLS]", "[CALLS]")
    monkeypatch.setattr(TOKENIZER, "chat_template", template)
    row = only(played(is_refused_tools, lambda prompt: "7", reward="scorer"))
    assert row.reward == 1.0
    assert "does not write calls in a form that is read" in row.feedback
