"""Choosing episodes of a run and laying them out for a person to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from erl_pipeline.episodes.roles import NEVER_TRAINED

_COLUMNS = (
    "trajectory_id",
    "episode_id",
    "task_id",
    "sample_index",
    "parent_trajectory_id",
    "role",
    "revision_index",
    "success",
    "reward",
    "finish_reason",
    "feedback",
    "messages",
    "text",
    "memory_entry_ids",
    "task_payload",
)
_KINDS = {
    "helped": "Solved at a later attempt",
    "not_helped": "Failed, also at later attempts",
    "solved": "Solved at the first attempt",
    "failed": "Failed, and not tried again",
}
_ILL_FORMED = "ill_formed"
"""Finish reason of a text, such as a reflection, that its role's parser could not read."""


_IS_TEXT = (
    pl.col("text").is_not_null()
    | (pl.col("finish_reason") == _ILL_FORMED)
    | pl.col("role").is_in(sorted(NEVER_TRAINED))
)


@dataclass(frozen=True)
class Turn:
    """What the policy said, and the environment's answer; none follows the turn that ends the attempt."""

    policy: str
    environment: str


@dataclass(frozen=True)
class EpisodePart:
    """An attempt, or a text such as a reflection. `outcome` is `solved`, `failed`, or empty for a text."""

    title: str
    outcome: str
    prompt: str
    turns: Sequence[Turn] = ()
    feedback: str = ""
    memory: Sequence[str] = ()
    text: str = ""

    @property
    def wordy(self) -> bool:
        """Whether some text is too long for two narrow columns."""
        return any(max(len(turn.policy), len(turn.environment)) > 40 for turn in self.turns)


@dataclass(frozen=True)
class TaskPicture:
    """A task's payload for people: the rows of its board, empty where it has none, and all else as text."""

    board: Sequence[str]
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class EpisodeExample:
    """A whole episode."""

    kind: str
    episode_id: str
    task_id: str
    sample_index: int
    task: TaskPicture
    parts: Sequence[EpisodePart]


def example_episodes(rollouts: pl.LazyFrame, memory_texts: Mapping[str, str]) -> list[EpisodeExample]:
    """One episode of each kind among an iteration's rollouts: the first in order of task and sample.

    `memory_texts` maps the id of a memory entry to its text. Kinds that did not occur are left out, and
    an episode that failed without a second attempt is shown only where there was no second attempt at all.
    """
    chosen = _choose(rollouts)
    rows = rollouts.select(_COLUMNS).filter(pl.col("episode_id").is_in(list(chosen.values()))).collect()
    return [
        _example(_KINDS[kind], rows.filter(pl.col("episode_id") == episode_id).to_dicts(), memory_texts)
        for kind, episode_id in chosen.items()
    ]


def _choose(rollouts: pl.LazyFrame) -> dict[str, str]:
    """Episode ids by kind."""
    first = pl.col("parent_trajectory_id").is_null()
    later = ~first & ~_IS_TEXT
    episodes = (
        rollouts.group_by("episode_id", "task_id", "sample_index")
        .agg(
            pl.col("success").filter(first).any().alias("at_once"),
            later.any().alias("retried"),
            pl.col("success").filter(later).any().alias("later"),
        )
        .sort("task_id", "sample_index")
        .collect()
    )
    kinds = {
        "helped": pl.col("later"),
        "not_helped": pl.col("retried") & ~pl.col("later"),
        "solved": pl.col("at_once"),
    }
    if not episodes["retried"].any():
        kinds["failed"] = ~pl.col("at_once")
    found = {kind: episodes.filter(condition)["episode_id"] for kind, condition in kinds.items()}
    return {kind: ids[0] for kind, ids in found.items() if not ids.is_empty()}


def _example(kind: str, rows: list[dict[str, Any]], memory_texts: Mapping[str, str]) -> EpisodeExample:
    rows = in_order(rows)
    return EpisodeExample(
        kind=kind,
        episode_id=rows[0]["episode_id"],
        task_id=rows[0]["task_id"],
        sample_index=rows[0]["sample_index"],
        task=task_picture(json.loads(rows[0]["task_payload"])),
        parts=[episode_part(row, memory_texts) for row in rows],
    )


def task_picture(payload: Mapping[str, Any]) -> TaskPicture:
    """A task's payload, laid out."""
    facts = [(name.replace("_", " "), _words(value)) for name, value in payload.items() if name != "board"]
    return TaskPicture(payload.get("board", ()), facts)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    return str(value)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an episode, each behind the one that led to it. Needs `trajectory_id` and
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
    """A trajectory, laid out. `memory_texts` maps the id of a memory entry to its text."""
    messages = json.loads(row["messages"])
    spoken = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    prompt = "\n\n".join(message["content"] for message in messages[:spoken])
    title = _title(row["role"], row["revision_index"])
    ill_formed = row["finish_reason"] == _ILL_FORMED
    if row["text"] is not None or ill_formed or row["role"] in NEVER_TRAINED:
        said = messages[spoken]["content"] if spoken < len(messages) else row["feedback"]
        problem = "ill-formed and not used" if ill_formed else "no answer"
        return EpisodePart(
            title=title if row["text"] is not None else f"{title}, {problem}",
            outcome="",
            prompt=prompt,
            # Imported trajectories may have seen entries of a memory elsewhere.
            memory=[
                memory_texts.get(entry_id, f"{entry_id}: not in this store")
                for entry_id in row["memory_entry_ids"]
            ],
            text=row["text"] if row["text"] is not None else said,
        )
    return EpisodePart(
        title=title,
        outcome="solved" if row["success"] else "failed",
        prompt=prompt,
        turns=_turns(messages[spoken:]),
        feedback=row["feedback"] or "",
    )


def _title(role: str, revision: int) -> str:
    """The role in words; from the second revision on with its number."""
    words = role.replace("_", " ").capitalize()
    return f"{words}, revision {revision}" if revision > 1 else words


def _turns(messages: Sequence[Mapping[str, str]]) -> list[Turn]:
    """Pair what the policy said with the observation that followed."""
    turns: list[Turn] = []
    for message in messages:
        if message["role"] == "assistant":
            turns.append(Turn(message["content"], ""))
        else:
            turns[-1] = Turn(turns[-1].policy, message["content"])
    return turns
