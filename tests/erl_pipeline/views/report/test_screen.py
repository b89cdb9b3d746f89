"""The attempts of an episode side by side: what is drawn of each, and what is marked as changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from erl_pipeline.environments.hotpotqa.environment import documents_in
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Document, FoundDocuments
from erl_pipeline.views.report.episodes import Drawing, Piece, episode_parts

TASK = Task("q", "hotpotqa-bridge", "hotpotqa", {"supporting": ["River Ode", "Bragg: a town"]})
DRAWING = Drawing(documents=lambda message: documents_in(HotpotQAConfig(), TASK, message))
FIRST = "[1] River Ode: It flows.\nPast Bragg.\n[2] Holm: A castle.\n4 turns are left."
SECOND = "[1] Bragg: a town: Its mayor is Anna.\n[2] River Ode: It flows.\nThis is the last turn: answer now."


def attempt(query: str, answer: str, **given: Any) -> Mapping[str, Any]:
    """An attempt with one search by a tool call, and the answer to it."""
    called = {"name": "search", "arguments": {"query": query}}
    messages = [
        {"role": "user", "content": "Who is the mayor?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call", "function": called}]},
        {"role": "tool", "content": answer, "tool_call_id": "call", "name": "search"},
        {"role": "assistant", "content": "Answer: Anna"},
    ]
    row = {
        "trajectory_id": query,
        "role": "first_attempt",
        "revision_index": 0,
        "finish_reason": "done",
        "text": None,
        "success": False,
        "feedback": "",
        "messages": json.dumps(messages),
        "memory_entry_ids": [],
        "memory_version": "",
    }
    return row | given


def test_documents_of_a_search_are_listed_and_those_that_are_needed_marked() -> None:
    found = documents_in(HotpotQAConfig(), TASK, FIRST)
    assert found == FoundDocuments(
        [Document("River Ode", "It flows.\nPast Bragg.", needed=True), Document("Holm", "A castle.")],
        "4 turns are left.",
    )
    last = documents_in(HotpotQAConfig(), TASK, SECOND)
    assert last is not None
    assert last.documents[0] == Document("Bragg: a town", "Its mayor is Anna.", needed=True)
    assert last.rest == "This is the last turn: answer now."
    assert documents_in(HotpotQAConfig(), TASK, "No page was found.\n4 turns are left.") is None


def test_a_second_search_is_marked_where_it_asks_something_else() -> None:
    rows = [attempt("river ode", FIRST), attempt("river ode mayor", SECOND, role="second_attempt")]
    first, second = episode_parts(rows, {}, DRAWING).parts
    assert (first.searches, first.found, first.needed) == (1, ["River Ode", "Holm"], ["River Ode"])
    assert second.needed == ["Bragg: a town", "River Ode"]
    assert [turn.changed for turn in first.turns] == [False, False]
    assert [turn.changed for turn in second.turns] == [True, False]
    (tool,) = second.turns[0].tools
    assert tool.arguments == [("query", [Piece("river ", False), Piece("ode mayor", True)])]


def test_a_task_that_its_environment_cannot_read_is_shown_as_text() -> None:
    other = Task("q", "hotpotqa-bridge", "hotpotqa", {})
    drawing = Drawing(documents=lambda message: documents_in(HotpotQAConfig(), other, message))
    shown = episode_parts([attempt("river", FIRST)], {}, drawing)
    assert "cannot draw this task (KeyError: 'supporting')" in shown.no_picture
    assert shown.parts[0].turns[0].tools[0].answer.text == FIRST
    assert shown.parts[0].searches == 0


def test_an_attempt_is_drawn_from_its_answers_and_shown_with_its_thoughts() -> None:
    drawn: list[list[str]] = []
    said = "<think>\nUp?\n</think>\n\nright"
    messages = json.dumps([{"role": "user", "content": "A board."}, {"role": "assistant", "content": said}])
    picture = Drawing(picture=lambda texts: drawn.append([*texts]))  # type: ignore[arg-type, return-value]
    (part,) = episode_parts([attempt("river", FIRST, messages=messages)], {}, picture).parts
    assert drawn == [["right"]]
    assert part.turns[0].policy == [Piece(said, False)]
