"""`import traces`: what it prints, what it refuses, and that no file makes it fail otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erl_pipeline.traces.reading import Format
from tests.command_line.invoke import Result, invoke
from tests.command_line.test_malformed import GENERATED, JSON, check, damaged
from tests.erl_pipeline.traces.files import ANSWER, USER, request, span, write

TAKEN = ("--as", "sft", "--accept-unscored", "--terms-checked")
CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "2 + 2?"}]}],
    "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "4"}]}],
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.tool.definitions": '[{"type": "function", "name": "add"}]',
}
LLM = {
    "openinference.span.kind": "LLM",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "2 + 2?",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "4",
}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
PHOENIX = {"context": {"trace_id": "t", "span_id": "s"}, "span_kind": "LLM", "attributes": LLM}
LOGGED = {
    "request": {"messages": [USER], "tools": [{"type": "function", "function": {"name": "add"}}]},
    "response": {"id": "r", "choices": [{"message": {"role": "assistant", "tool_calls": [CALL]}}]},
}
OBSERVED = {"id": "o", "trace_id": "t", "type": "GENERATION", "input": [USER], "output": ANSWER}
RATED = {"name": "right", "data_type": "NUMERIC", "value": 1, "trace_id": "t", "comment": "Good."}
GOOD: list[tuple[Format, Any]] = [
    ("otel", request(span("s", CHAT), schema="https://opentelemetry.io/schemas/1.40.0")),
    ("openinference", request(span("s", LLM))),
    ("openinference", PHOENIX),
    ("langfuse", OBSERVED),
    ("openai", {"messages": [USER, ANSWER]}),
    ("openai", LOGGED),
]


def run(file: Path, name: Format, *words: object) -> Result:
    options = ("--name", "theirs", "--format", name, "--source-model", "m", "--store", file.parent / "store")
    return invoke("import", "traces", file, *options, *words)


def test_it_says_what_was_made_and_how_to_train_on_it(tmp_path: Path) -> None:
    file = write(tmp_path, OBSERVED, RATED)
    words = ("--as", "sft", "--terms-checked", "--min-reward", 0.5)
    found = run(file, "langfuse", *words, "--json")
    assert (found.status, found.json["sft_rows"], found.json["reused"]) == (0, 1, False)
    again = run(file, "langfuse", *words)
    assert f"{{type: messages, file: {found.json['dataset']}}}" in again.output
    assert "which was in the store" in again.output
    assert "texts without tokens and log-probabilities: for supervised training only" in again.output
    store = tmp_path / "store"
    assert invoke("lineage", "verify", "theirs", "--store", store).status == 0
    status = invoke("status", "theirs", "--store", store)
    assert (status.status, "which have no tokens and no log-probabilities" in status.errors) == (2, True)


def test_refused_lines_are_shown_and_nothing_is_committed(tmp_path: Path) -> None:
    file = write(tmp_path, {"messages": [USER, ANSWER]}, {"messages": [USER]}, *(["{"] * 11))
    refused = run(file, "openai", *TAKEN)
    lines = refused.errors.splitlines()
    assert (refused.status, len(lines)) == (2, 13)
    assert lines[0].endswith("traces.jsonl: 12 lines or spans are refused")
    assert lines[1].strip().startswith("line 2: messages: the answer is missing")
    assert lines[-2].strip() == "and 2 more"
    assert not (tmp_path / "store").exists()
    taken = run(file, "openai", *TAKEN, "--skip-bad")
    assert (taken.status, "left out: line 2: messages" in taken.output) == (0, True)


def test_comments_become_a_memory_that_commands_can_list(tmp_path: Path) -> None:
    imported = run(write(tmp_path, OBSERVED, RATED), "langfuse", "--as", "memory")
    assert imported.status == 0, imported.errors
    listed = invoke("memory", "list", "theirs", "--store", tmp_path / "store", "--json")
    assert "Good." in listed.output


@pytest.mark.parametrize(("name", "record"), GOOD)
def test_the_records_that_are_damaged_below_are_good_ones(name: Format, record: Any, tmp_path: Path) -> None:
    result = run(write(tmp_path, record), name, *TAKEN)
    assert result.status == 0, result.errors


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every object or list within a value, with each of its keys."""
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


DEEP = json.loads("[" * 200 + "]" * 200)
HOSTILE = st.sampled_from(["\ud83d", "", " ", "x" * 61 + "...", 10**30, float("nan"), DEEP, "[", "{}", -1])


@GENERATED
@given(data=st.data())
def test_any_file_is_accepted_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name, good = data.draw(st.sampled_from(GOOD))
    record = json.loads(json.dumps(good))
    for _ in range(data.draw(st.integers(0, 3))):
        holder, key = data.draw(st.sampled_from(list(_places(record)) or [([0], 0)]))
        holder[key] = deepcopy(data.draw(JSON | HOSTILE))
    content = json.dumps(record).encode()
    if data.draw(st.booleans()):
        content = data.draw(damaged(content))
    file = tmp_path_factory.mktemp("traces") / "traces.jsonl"
    file.write_bytes(content + b"\n")
    check(run(file, name, *TAKEN))
