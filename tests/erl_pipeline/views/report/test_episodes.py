from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.views.report.episodes import (
    Drawing,
    EnvironmentAnswer,
    EpisodePart,
    EpisodeTurn,
    Piece,
    ToolUse,
    episode_parts,
    in_order,
    task_picture,
)
from erl_pipeline.views.report.page import EpisodeExample, example_episodes
from storage.tables.trajectories import scan_trajectories, write_trajectories


@pytest.fixture
def scan(tmp_path: Path) -> Any:
    """Writes trajectories and scans them."""

    def write_and_scan(rows: list[Any]) -> pl.LazyFrame:
        write_trajectories(tmp_path / "trajectories.parquet", rows)
        return scan_trajectories([tmp_path / "trajectories.parquet"])

    return write_and_scan


def turn(policy: str, environment: str, *tools: ToolUse, changed: bool = False) -> EpisodeTurn:
    """A turn of which nothing, or all, is new."""
    return EpisodeTurn([Piece(policy, changed)], list(tools), EnvironmentAnswer(environment), changed)


def parts_of(example: EpisodeExample) -> list[EpisodePart]:
    """The trajectories of an example, each once."""
    return [part for part in example.shown.parts if part.kind in ("attempt", "text")]


def test_the_first_episode_of_each_kind_is_chosen(make_attempt: Any, make_retried: Any, scan: Any) -> None:
    rows = [
        *make_retried("lake-2", 0, True, 1),
        *make_retried("lake-1", 1, True, 1),
        *make_retried("lake-1", 0, False, 1),
        make_attempt("lake-3", 0, "first_attempt", True, 1),
        make_attempt("lake-4", 0, "first_attempt", False, 1),
    ]
    examples = example_episodes(scan(rows), {})
    assert [(example.kind, example.task_id, example.sample_index) for example in examples] == [
        ("Solved at a later attempt", "lake-1", 1),
        ("Failed, also at later attempts", "lake-1", 0),
        ("Solved at the first attempt", "lake-3", 0),
    ]


def test_failures_are_shown_where_nothing_was_tried_again(make_attempt: Any, scan: Any) -> None:
    examples = example_episodes(scan([make_attempt("lake-4", 0, "first_attempt", False, 1)]), {})
    assert [example.kind for example in examples] == ["Failed, and not tried again"]


def test_an_episode_reads_in_the_order_it_happened(make_retried: Any, scan: Any) -> None:
    rows = make_retried("lake-1", 0, True, 1, memory=("entry-7",))
    (example,) = example_episodes(
        scan(list(reversed(rows))), {"entry-7": "Look first.", "entry-8": "Unseen."}
    )
    first, reflection, second = parts_of(example)
    assert [part.title for part in parts_of(example)] == ["First attempt", "Reflection", "Second attempt"]
    assert [part.outcome for part in parts_of(example)] == ["failed", "", "solved"]
    assert first.turns == [turn("down a", "")]
    assert first.feedback == "You fell into a hole."
    assert reflection.memory == [("entry-7", "Look first.")]
    assert reflection.text == "Say <b>b</b> to go down."
    assert second.prompt == "the second_attempt prompt"


def test_a_row_whose_parent_is_elsewhere_begins_the_episode() -> None:
    """As a reflection that a night writes on a conversation in another artifact."""
    rows = [
        {"trajectory_id": "b", "parent_trajectory_id": "a"},
        {"trajectory_id": "a", "parent_trajectory_id": "elsewhere"},
    ]
    assert [row["trajectory_id"] for row in in_order(rows)] == ["a", "b"]


def test_turns_pair_words_with_answers(make_attempt: Any, scan: Any) -> None:
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "board"},
        {"role": "assistant", "content": "down a"},
        {"role": "user", "content": "down c4"},
        {"role": "assistant", "content": "right b"},
    ]
    row = make_attempt("lake-1", 0, "first_attempt", True, 1, messages=json.dumps(messages))
    (example,) = example_episodes(scan([row]), {})
    assert parts_of(example)[0].prompt == "rules\n\nboard"
    assert parts_of(example)[0].turns == [turn("down a", "down c4"), turn("right b", "")]


def test_an_ill_formed_reflection_is_shown_as_it_was_said(
    make_attempt: Any, make_retried: Any, scan: Any
) -> None:
    first, _, _ = make_retried("lake-1", 0, False, 1)
    ill_formed = make_attempt("lake-1", 0, "reflection", False, 1, parent=first, finish_reason="ill_formed")
    rows = [first, ill_formed, make_attempt("lake-2", 0, "first_attempt", True, 1)]
    failed = example_episodes(scan(rows), {})[-1]
    assert [part.title for part in parts_of(failed)] == [
        "First attempt",
        "Reflection, ill-formed and not used",
    ]
    assert parts_of(failed)[1].text == "down a"


def test_a_judge_that_gave_no_answer_is_no_attempt(make_attempt: Any, scan: Any) -> None:
    first = make_attempt("lake-1", 0, "first_attempt", False, 1)
    silent = make_attempt("lake-1", 0, "judge", False, 1, parent=first, finish_reason="judge_timeout")
    (example,) = example_episodes(scan([first, silent]), {})
    assert example.kind == "Failed, and not tried again"
    assert [part.title for part in parts_of(example)] == ["First attempt", "Judge, no answer"]


def test_the_task_is_drawn_from_its_payload(make_attempt: Any, scan: Any) -> None:
    (example,) = example_episodes(scan([make_attempt("lake-1", 0, "first_attempt", True, 1)]), {})
    assert example.task.board == ["SFF", "FHF", "FFG"]
    assert example.task.facts == [("max steps", "6"), ("actions", "a up, b down")]


def test_tool_calls_stand_with_what_each_was_answered() -> None:
    def call(number: int, name: str, arguments: object) -> dict[str, Any]:
        return {"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": arguments}}

    messages = [
        {"role": "user", "content": "question"},
        {
            "role": "assistant",
            "content": "<tool_call>{</tool_call>",
            "tool_calls": [call(0, "search", {"query": "Ode", "top": 2}), call(1, "clock", {})],
        },
        {"role": "tool", "content": "no JSON", "tool_call_id": "call9", "name": ""},
        {"role": "tool", "content": "noon", "tool_call_id": "call1", "name": "clock"},
        {"role": "tool", "content": "a river", "tool_call_id": "call0", "name": "search"},
        {"role": "user", "content": "1 turn is left"},
        {"role": "assistant", "content": "Answer: Bragg"},
    ]
    row = {
        "trajectory_id": "t",
        "role": "first_attempt",
        "revision_index": 0,
        "finish_reason": "done",
        "text": None,
        "success": True,
        "feedback": "",
        "messages": json.dumps(messages),
    }
    (part,) = episode_parts([row], {}, Drawing()).parts
    searched = ToolUse(
        "search",
        [("query", [Piece("Ode", False)]), ("top", [Piece("2", False)])],
        EnvironmentAnswer("a river"),
    )
    assert part.turns == [
        turn(
            "<tool_call>{</tool_call>",
            "no JSON\n1 turn is left",
            searched,
            ToolUse("clock", [], EnvironmentAnswer("noon")),
        ),
        turn("Answer: Bragg", ""),
    ]


def test_a_board_is_shown_in_the_symbols_that_the_policy_reads() -> None:
    symbols = {"player": "P", "frozen": ".", "hole": "X", "goal": "G"}
    assert task_picture({"board": ["SFH", "FFG"], "symbols": symbols}).board == ["P.X", "..G"]
    assert task_picture({"board": ["#@$.#"], "symbols": {"wall": "#"}}).board == ["#@$.#"]
