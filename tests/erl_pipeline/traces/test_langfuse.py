"""Observations and scores of Langfuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.traces.conversations import with_scores
from tests.erl_pipeline.traces.files import ANSWER, USER, read, refuse, texts

EXPORTED: dict[str, Any] = {
    "id": "o1",
    "trace_id": "t1",
    "type": "GENERATION",
    "start_time": "2026-01-02 03:04:05.000000",
    "session_id": "session",
    "provided_model_name": "m",
    "input": json.dumps([USER]),
    "output": json.dumps(ANSWER),
    "usage_details": {"output": 1},
}
OF_API = {
    "id": "o2",
    "traceId": "t2",
    "type": "GENERATION",
    "model": "m",
    "input": {"messages": [USER], "tools": [{"type": "function", "function": {"name": "add"}}]},
    "output": "{4}",
}
SCORE = {"id": "x", "name": "right", "data_type": "NUMERIC", "value": 0.5, "observation_id": "o1"}


def test_observations_of_the_export_and_of_the_api(tmp_path: Path) -> None:
    found = read(tmp_path, "langfuse", EXPORTED, {**OF_API, "type": "SPAN"}, OF_API)
    assert [texts(call.messages) for call in found.calls] == [
        [("user", "2 + 2?"), ("assistant", "4")],
        [("user", "2 + 2?"), ("assistant", "{4}")],
    ]
    assert [(call.conversation, call.trace_id, call.model) for call in found.calls] == [
        ("session", "t1", "m"),
        ("t2", "t2", "m"),
    ]
    assert found.calls[1].tools == '[{"type": "function", "function": {"name": "add"}}]'
    assert found.others == 1


@pytest.mark.parametrize(
    "said", ['{"title": "x", "content": "y"}', "[1, 2]", "{", "[a](b)", '"role": {', '["content"]']
)
def test_an_answer_that_is_json_is_what_the_model_said(said: str, tmp_path: Path) -> None:
    [call] = read(tmp_path, "langfuse", {**EXPORTED, "output": said}).calls
    assert texts(call.messages)[-1] == ("assistant", said)


def test_a_score_belongs_to_its_observation_else_to_its_trace(tmp_path: Path) -> None:
    of_trace = {"name": "right", "dataType": "BOOLEAN", "value": 1, "traceId": "t2", "comment": "Thanks!"}
    category = {"name": "tone", "dataType": "CATEGORICAL", "value": "kind", "traceId": "t2"}
    found = read(tmp_path, "langfuse", SCORE, EXPORTED, OF_API, of_trace, category)
    scored = with_scores(found.calls, found.scores, None)
    assert [(call.score, call.comments) for call in scored] == [(0.5, ()), (1.0, ("Thanks!",))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output": None}, "output: is missing; content was not recorded"),
        ({"output": json.dumps(ANSWER)[:-3]}, "output: is cut or malformed"),
        ({"output": '{"title": "x", "content": "y'}, "output: is cut or malformed"),
        ({"input": '[{"type": "human", "content": "x"}]'}, "input.0.role: Field required"),
        ({"output": [ANSWER, ANSWER]}, "output: has 2 answers"),
        ({"output": USER}, 'output.0.role: is "user"; an answer is the assistant\'s'),
        ({"output": {"answer": 4}}, "output.0.role: Field required"),
        ({"input": {"prompt": "x"}}, 'input: has ["prompt"]; allowed are messages and tools'),
        ({"input": "x" * 61 + "..."}, "input.content: is cut at a length limit"),
        ({"level": "ERROR"}, "level: is ERROR"),
        ({"tool_definitions": {"add": "{}"}}, "tool_definitions: is there, and input has no tools"),
        ({"trace_id": None}, "observation.trace_id: Input should be a valid string"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    refuse(tmp_path, "langfuse", {**EXPORTED, **changes}, said)


def test_a_score_that_is_no_number_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    """Else its answer would count as one without a score."""
    refuse(tmp_path, "langfuse", {**SCORE, "value": "0.7"}, 'value: is "0.7"; allowed is a number')
