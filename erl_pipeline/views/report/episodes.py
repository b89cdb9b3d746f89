"""The trajectories of an episode, laid out for a person to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from erl_pipeline.episodes.roles import NEVER_TRAINED
from storage.tables.scored import NOT_SCORED

ILL_FORMED = "ill_formed"
"""The finish reason of a text, such as a reflection, that the parser of its role could not read."""


@dataclass(frozen=True)
class ToolUse:
    """A tool call with its answer. Values of arguments that are not text are given as JSON."""

    name: str
    arguments: Sequence[tuple[str, str]]
    answer: str = ""


@dataclass(frozen=True)
class Turn:
    """What the policy said, the tools that it called, and the environment's answer, which is empty for the
    turn that ends the attempt."""

    policy: str
    environment: str
    tools: Sequence[ToolUse] = ()


@dataclass(frozen=True)
class EpisodePart:
    """An attempt, or a text such as a reflection. `outcome` is `solved`, `failed`, `not scored`, or empty for
    a text."""

    title: str
    outcome: str
    prompt: str
    turns: Sequence[Turn] = ()
    feedback: str = ""
    memory: Sequence[str] = ()
    text: str = ""


@dataclass(frozen=True)
class TaskPicture:
    """A task's payload for people: the rows of its board, empty if it has none, and all else as text. Where
    the payload says which symbols the policy reads, the board is in these."""

    board: Sequence[str]
    facts: Sequence[tuple[str, str]]


def task_picture(payload: Mapping[str, Any]) -> TaskPicture:
    """A task's payload, laid out for people."""
    facts = [(name.replace("_", " "), _words(value)) for name, value in payload.items() if name != "board"]
    return TaskPicture(_in_symbols(payload.get("board", ()), payload.get("symbols")), facts)


_LETTERS = {"S": "player", "F": "frozen", "H": "hole", "G": "goal"}
"""The letters of stored boards, and the names of the symbols that stand for them."""


def _in_symbols(board: Sequence[str], symbols: Any) -> Sequence[str]:
    if not isinstance(symbols, Mapping) or not set(_LETTERS.values()) <= set(symbols):
        return board
    seen = {letter: symbols[name] for letter, name in _LETTERS.items()}
    return ["".join(seen.get(letter, letter) for letter in row) for row in board]


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    return ", ".join(map(_words, value)) if isinstance(value, list) else str(value)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an episode, each after the row that led to it. Needs `trajectory_id` and
    `parent_trajectory_id`."""
    following: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        following.setdefault(row["parent_trajectory_id"], []).append(row)
    ordered, waiting = [], following.get(None, [])
    while waiting:
        row, *waiting = waiting
        ordered.append(row)
        waiting = [*following.get(row["trajectory_id"], []), *waiting]
    return ordered


def episode_part(row: Mapping[str, Any], memory_texts: Mapping[str, str]) -> EpisodePart:
    """A trajectory, laid out for people. `memory_texts` maps the id of a memory entry to its text."""
    messages = json.loads(row["messages"])
    spoken = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    prompt = "\n\n".join(message["content"] for message in messages[:spoken])
    title = _title(row["role"], row["revision_index"])
    ill_formed = row["finish_reason"] == ILL_FORMED
    if row["text"] is not None or ill_formed or row["role"] in NEVER_TRAINED:
        said = messages[spoken]["content"] if spoken < len(messages) else row["feedback"]
        problem = "ill-formed and not used" if ill_formed else "no answer"
        return EpisodePart(
            title=title if row["text"] is not None else f"{title}, {problem}",
            outcome="",
            prompt=prompt,
            # Imported trajectories may have seen entries of a memory that is not in this store.
            memory=[
                memory_texts.get(entry_id, f"{entry_id}: not in this store")
                for entry_id in row["memory_entry_ids"]
            ],
            text=row["text"] if row["text"] is not None else said,
        )
    return EpisodePart(
        title=title,
        outcome=_outcome(row),
        prompt=prompt,
        turns=_turns(messages[spoken:]),
        feedback=row["feedback"] or "",
    )


def _outcome(row: Mapping[str, Any]) -> str:
    if row["finish_reason"] in NOT_SCORED:
        return "not scored"
    return "solved" if row["success"] else "failed"


def _title(role: str, revision: int) -> str:
    """The role in words, with the number of the revision from the second one on."""
    words = role.replace("_", " ").capitalize()
    return f"{words}, revision {revision}" if revision > 1 else words


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Pair what the policy said and called with the answers that it got."""
    turns: list[Turn] = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        following = list(takewhile(lambda each: each["role"] != "assistant", messages[place + 1 :]))
        called = [(call.get("id"), call["function"]) for call in message.get("tool_calls") or ()]
        known = {call_id for call_id, _ in called}
        answers = {each.get("tool_call_id"): each["content"] for each in following if each["role"] == "tool"}
        # A call that could not be read is part of what the policy said; its answer is among the others.
        others = [
            each["content"]
            for each in following
            if each["role"] != "tool" or each.get("tool_call_id") not in known
        ]
        tools = tuple(_tool_use(function, answers.get(call_id, "")) for call_id, function in called)
        turns.append(Turn(message["content"] or "", "\n".join(others), tools))
    return turns


def _tool_use(function: Mapping[str, Any], answer: str) -> ToolUse:
    arguments = function.get("arguments") or {}
    # Imported conversations may have the arguments as JSON text.
    named = arguments if isinstance(arguments, Mapping) else {"arguments": arguments}
    return ToolUse(function["name"], [(name, _argument(value)) for name, value in named.items()], answer)


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
