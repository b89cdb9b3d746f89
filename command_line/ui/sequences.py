"""An agent's attempt as a tree of token sequences: what each of them begins with, and what was sampled in it.

Rows name the first sequence as the parent of all others. Which sequence one really goes on from is found by
its messages: the one in which the last shared turn of the policy was sampled.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl

from command_line.episodes.rows import agent_calls
from command_line.ui.stored import RunView, Stored
from erl_pipeline.config.base import NotInstalledSettings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.episodes.roles import NEVER_TRAINED
from erl_pipeline.views.report.episodes import (
    ILL_FORMED,
    Drawing,
    EpisodeTurn,
    Piece,
    changed_pieces,
    drawing_of,
    episode_turns,
)
from storage.artifacts.manifest import Manifest
from storage.tables.sequences import attempt_files, further_files
from storage.tables.trajectories import OTHER_OPENING, scan_trajectories
from storage.texts import read_json

Message = Mapping[str, Any]
_COLUMNS = ("trajectory_id", "parent_trajectory_id", "messages", "response_mask", "metrics", "truncated")


@dataclass(frozen=True)
class PromptMessage:
    """A message that the policy was given before it first spoke in a sequence. Of a system message that the
    gateway changed, the pieces that it inserted are marked."""

    role: str
    text: Sequence[Piece]


@dataclass(frozen=True)
class ShownSequence:
    """One token sequence. `number` counts from 1, the first; `parent` is the number of the sequence that it
    goes on from, None where it begins a conversation.

    The first `shared` of its messages are those of its parent; `prompt` are the others before the policy's
    first turn here. `turns` were sampled here, as `sampled` tokens, and `training` is what updates did with
    them.
    """

    trajectory_id: str
    number: int
    parent: int | None
    depth: int
    shared: int
    prompt: Sequence[PromptMessage]
    turns: Sequence[EpisodeTurn]
    sampled: int
    truncated: bool
    pruned: bool
    training: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class TimedCall:
    """An answer to a call of the agent. `sequence` is the number of the sequence that it was sampled in, None
    where nothing was sampled; `ended` is why it ended, or what went wrong.

    Times are seconds: it came at `begin`, since the attempt began, and took `policy` in the policy and
    `gateway` in all else.
    """

    sequence: int | None
    tokens: int
    ended: str
    begin: float
    policy: float
    gateway: float


@dataclass(frozen=True)
class AgentAttempt:
    """The sequences of an attempt, each after the one that it goes on from, and its calls, as they came.

    `inserted`: whether the gateway changed the agent's system message. It is None where rows do not tell, as
    the agent began this attempt with other messages than the episode's first one.
    """

    title: str
    sequences: Sequence[ShownSequence]
    inserted: bool | None
    calls: Sequence[TimedCall]

    @property
    def seconds(self) -> float:
        """When the last answer was given, since the attempt began."""
        return max((call.begin + call.policy + call.gateway for call in self.calls), default=0.0)


def agent_attempts(
    stored: Stored,
    run: RunView,
    holder: Manifest,
    rows: Sequence[Mapping[str, Any]],
    training: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[AgentAttempt]:
    """The attempts of an episode as trees, if agents play its environment; `rows` are those of the episode,
    in order, from the artifact `holder`."""
    if not _played_by_agents(run):
        return []
    artifact = stored.artifacts.open_found(holder)
    episode = pl.col("episode_id") == rows[0]["episode_id"]
    first, further = (
        scan_trajectories(files).filter(episode).select(_COLUMNS).collect().to_dicts()
        for files in (attempt_files([artifact]), further_files([artifact]))
    )
    by_id = {row["trajectory_id"]: row for row in first}
    attempts = [
        row
        for row in rows
        if row["text"] is None and row["finish_reason"] != ILL_FORMED and row["role"] not in NEVER_TRAINED
    ]
    if not attempts:
        return []
    drawing = drawing_of(run.config, rows[0])
    calls = agent_calls(stored.artifacts, holder, attempts)
    agents_own = _system(_messages(by_id[attempts[0]["trajectory_id"]]))
    shown = []
    for row in attempts:
        own = by_id[row["trajectory_id"]]
        others = [each for each in further if each["parent_trajectory_id"] == row["trajectory_id"]]
        told, comparable = _system(_messages(own)), not read_json(own["metrics"]).get(OTHER_OPENING)
        pieces = inserted_pieces(agents_own, told) if comparable else []
        title = row["role"].replace("_", " ").capitalize()
        shown.append(
            AgentAttempt(
                title if row["revision_index"] < 2 else f"{title}, revision {row['revision_index']}",
                sequence_tree([own, *others], {told: pieces} if pieces else {}, drawing, training),
                bool(pieces) if comparable else None,
                timed_calls(calls.get(row["trajectory_id"], ())),
            )
        )
    return shown


def timed_calls(calls: Sequence[Mapping[str, Any]]) -> list[TimedCall]:
    """The calls of an attempt, the earliest first."""
    found = [
        TimedCall(
            None if call["sequence_index"] is None else call["sequence_index"] + 1,
            (call["end"] or 0) - (call["start"] or 0),
            call["problem"] or call["finish"] or "",
            call["arrived_ms"] / 1000,
            call["engine_ms"] / 1000,
            call["gateway_ms"] / 1000,
        )
        for call in calls
    ]
    return sorted(found, key=lambda call: call.begin)


def inserted_pieces(own: str, told: str) -> list[Piece]:
    """The system message that the policy was told, with what it has more than the agent's own marked; empty
    if they are equal."""
    if own == told:
        return []
    if not own:  # The agent has no system message of its own.
        return [Piece(told, True)]
    before, found, after = told.partition(own)
    if not found:
        return changed_pieces(own, told)
    return [piece for piece in (Piece(before, True), Piece(own, False), Piece(after, True)) if piece.text]


def _played_by_agents(run: RunView) -> bool:
    config = run.config
    if config is None or isinstance(config.environment, NotInstalledSettings):
        return False
    plays: bool = plugins("environments")[config.environment.type].value.has_agents(config.environment)
    return plays


def sequence_tree(
    rows: Sequence[Mapping[str, Any]],
    marked: Mapping[str, Sequence[Piece]],
    drawing: Drawing,
    training: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[ShownSequence]:
    """The sequences of an attempt, the first one first, and each followed by those that go on from it.

    Args:
        marked: system messages that the gateway changed, and their pieces.
    """
    messages = [_messages(row) for row in rows]
    begins = [_begin(each, row["response_mask"] or ()) for each, row in zip(messages, rows, strict=True)]
    parents: list[int | None] = [None]
    for place in range(1, len(rows)):
        parents.append(_parent(place, messages, begins, parents))
    shown: list[ShownSequence] = []

    def add(place: int, depth: int) -> None:
        row, parent = rows[place], parents[place]
        shared = 0 if parent is None else _shared(messages[place][: begins[place]], messages[parent])
        shown.append(
            ShownSequence(
                trajectory_id=row["trajectory_id"],
                number=place + 1,
                parent=None if parent is None else parent + 1,
                depth=depth,
                shared=shared,
                prompt=[_prompt_message(each, marked) for each in messages[place][shared : begins[place]]],
                turns=episode_turns(messages[place][begins[place] :], None, drawing),
                sampled=sum(row["response_mask"] or ()),
                truncated=row["truncated"],
                pruned=row["messages"] is None,
                training=training.get(row["trajectory_id"], ()),
            )
        )
        for child, of in enumerate(parents):
            if of == place:
                add(child, depth + 1)

    for place, parent in enumerate(parents):
        if parent is None:
            add(place, 0)
    return shown


def _parent(
    place: int, messages: Sequence[Sequence[Message]], begins: Sequence[int], parents: Sequence[int | None]
) -> int | None:
    """The sequence that one goes on from: that with the longest history in common, the last turn of which was
    sampled there; or an earlier one with the same prompt."""
    prompt = messages[place][: begins[place]]
    best, longest = None, 0
    for other in range(len(messages)):
        if other == place or (other < place and _comes_from(other, place, parents)):
            continue
        shared = _shared(prompt, messages[other])
        turns = [number for number in range(shared) if messages[other][number]["role"] == "assistant"]
        goes_on = bool(turns) and turns[-1] >= begins[other]
        same = other < place and shared == len(prompt) == begins[other]
        if (goes_on or same) and shared > longest:
            best, longest = other, shared
    return best


def _comes_from(sequence: int, ancestor: int, parents: Sequence[int | None]) -> bool:
    """Whether a sequence goes on from another one, as far as is known: equal texts must give no circle."""
    above: int | None = sequence
    while above is not None and above < len(parents):
        above = parents[above]
        if above == ancestor:
            return True
    return False


def _begin(messages: Sequence[Message], mask: Sequence[int]) -> int:
    """The place of the policy's first turn that was sampled in a sequence: each run of sampled tokens is a
    turn, and the turns before them are context."""
    sampled = sum(not before and bit for before, bit in pairwise((0, *mask)))
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[-min(sampled, len(turns))] if sampled and turns else len(messages)


def _shared(prompt: Sequence[Message], of: Sequence[Message]) -> int:
    pairs = enumerate(zip(prompt, of, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(prompt), len(of)))


def _messages(row: Mapping[str, Any]) -> list[Message]:
    messages: list[Message] = json.loads(row["messages"] or "[]")  # none where retention has pruned them
    return messages


def _system(messages: Sequence[Message]) -> str:
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else ""


def _prompt_message(message: Message, marked: Mapping[str, Sequence[Piece]]) -> PromptMessage:
    text = message["content"] or ""
    if message["role"] == "system" and text in marked:
        return PromptMessage(message["role"], marked[text])
    calls = [
        f"{call['function']['name']}({json.dumps(call['function']['arguments'], ensure_ascii=False)})"
        for call in message.get("tool_calls") or ()
    ]
    return PromptMessage(message["role"], [Piece("\n".join([*([text] if text else []), *calls]), False)])
