"""The tree of what one thing came from, with the facts that a reader wants beside each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage.graph import reachable
from storage.lineage.rows import Kind, LineageRows, identify
from storage.runs.run import Run


@dataclass(frozen=True)
class LineageNode:
    """An artifact or a row, and what it came from.

    `relation` is its relation to the node above it. The facts of a row include its `messages`, if it has any.
    If a node was shown before, or its origins lie deeper than asked for, `origins` is empty and `more` says
    why.
    """

    kind: Literal["artifact", "sft_row", "trajectory", "memory_entry"]
    id: str
    relation: str
    facts: Mapping[str, Any]
    origins: tuple[LineageNode, ...] = ()
    more: Literal["", "shown above", "deeper"] = ""


def explain(store: ArtifactStore, run: Run | None, identifier: str, depth: int = 2) -> LineageNode:
    """The tree of what an artifact, trajectory, SFT row or memory entry came from.

    Args:
        run: look among this run's artifacts only; None for the whole store.
        identifier: an id, or the beginning of one when there is only one such.
        depth: how many steps to go; with 0 there is only the thing itself.

    Raises InputError when nothing, or more than one thing, has this id.
    """
    manifests = reachable(store, [entry.artifact_id for entry in run.stages()]) if run else list(store.list())
    rows = LineageRows(store, manifests)
    kind, found = identify(rows, identifier)
    return _Explanation(rows).node(kind, found, "", depth, None)


class _Explanation:
    """Builds one tree, in which each node's origins are shown only once."""

    def __init__(self, rows: LineageRows) -> None:
        self._rows = rows
        self._shown: set[tuple[str, str]] = set()

    def node(self, kind: Kind, identifier: str, relation: str, depth: int, near: str | None) -> LineageNode:
        """One node with its origins; `near` is the artifact that most likely holds the row."""
        row = self._rows.row(kind, identifier, near)
        if row is None:
            raise InputError(
                f"{kind} {identifier} is named in the lineage, but is in no artifact that was looked at."
            )
        facts = {name: row[name] for name in _FACTS[kind] if row[name] is not None}
        messages = _messages(kind, row)
        if messages is not None:
            facts["messages"] = messages
        if (kind, identifier) in self._shown:
            return LineageNode(kind, identifier, relation, facts, more="shown above")
        found = list(_origins(kind, row))
        if found and depth == 0:
            return LineageNode(kind, identifier, relation, facts, more="deeper")
        self._shown.add((kind, identifier))
        origins = tuple(
            self.node(origin, origin_id, name, depth - 1, row.get("artifact_id"))
            for origin, origin_id, name in found
        )
        return LineageNode(kind, identifier, relation, facts, origins)


_FACTS: dict[Kind, tuple[str, ...]] = {
    "artifact": ("stage", "run", "iteration", "code_version", "seed", "counters", "metrics"),
    "sft_row": ("task_id", "task_type", "iteration", "weight", "artifact_id"),
    "trajectory": (
        "episode_id",
        "role",
        "task_id",
        "task_type",
        "iteration",
        "reward",
        "success",
        "finish_reason",
        "feedback",
        "text",
        "memory_version",
        "artifact_id",
    ),
    "memory_entry": (
        "text",
        "task_type",
        "feedback",
        "iteration",
        "artifact_id",
    ),
}


def _messages(kind: Kind, row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The messages of a row; None if it holds none, or if they were pruned."""
    if kind == "sft_row":
        return [*row["prompt"], *row["completion"]]
    if kind == "trajectory" and row["messages"] is not None:
        found: list[dict[str, Any]] = json.loads(row["messages"])
        return found
    return None


def _origins(kind: Kind, row: Mapping[str, Any]) -> Iterator[tuple[Kind, str, str]]:
    """(kind, id, relation) of what a row directly came from."""
    if kind == "artifact":
        for name, input_id in row["inputs"].items():
            yield "artifact", input_id, f"input {name}"
    elif kind == "sft_row":
        yield "trajectory", row["trajectory_id"], "trajectory that it teaches"
    elif kind == "memory_entry":
        yield "trajectory", row["source_trajectory_id"], "trajectory it was taken from"
    else:
        if row["parent_trajectory_id"] is not None:
            yield "trajectory", row["parent_trajectory_id"], "trajectory it followed"
        for entry_id in row["memory_entry_ids"]:
            yield "memory_entry", entry_id, "memory entry it saw"
        if row["policy_version"]:
            yield "artifact", row["policy_version"], "policy that sampled it"
