"""Checks of the links between the rows of a file of trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.tables.row_checks import shown
from storage.tables.scored import NOT_SCORED

SHOWN_PROBLEMS = 10

_ILL_FORMED = "ill_formed"


@dataclass
class Problems:
    """Problems of a file: the messages of the first few, and the number of all."""

    shown: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, problem: str) -> None:
        self.count += 1
        if len(self.shown) < SHOWN_PROBLEMS:
            self.shown.append(problem)


class RowLinks:
    """Collects the ids and links of rows, and reports contradictions and missing rows."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, str]] = {}
        self._parents: list[tuple[int, str, str]] = []
        self._episodes: dict[str, tuple[int, int]] = {}
        self._groups: dict[str, tuple[str, str]] = {}
        self._begun: set[str] = set()
        self._revised: dict[str, int] = {}
        self._iteration = 1
        self._texts: dict[str, int] = {}
        self._not_scored: list[tuple[int, str, str]] = []

    def take(self, number: int, row: Mapping[str, Any], problems: Problems) -> None:
        """Remember a row, and add a problem for each contradiction with the rows before it."""
        name, episode, group = row["trajectory_id"], row["episode_id"], row["group_id"]
        first, _ = self._rows.setdefault(name, (number, episode))
        if first != number:
            problems.add(f"row {number}: trajectory_id: {shown(name)} is the id of row {first} too")
        if row["iteration"] < self._iteration:
            problems.add(
                f"row {number}: iteration: is {row['iteration']} after {self._iteration}; "
                "rows must be in the order of their iterations"
            )
        self._iteration = max(self._iteration, row["iteration"])
        begun, iteration = self._episodes.setdefault(episode, (number, row["iteration"]))
        if iteration != row["iteration"]:
            problems.add(
                f"row {number}: episode_id: {shown(episode)} is in iteration {iteration} at row {begun}"
            )
        task, role = self._groups.setdefault(group, (row["task_id"], row["role"]))
        if (task, role) != (row["task_id"], row["role"]):
            problems.add(
                f"row {number}: group_id: {shown(group)} has task {shown(task)} and role {role} before; "
                "rewards are compared within one task and role"
            )
        if row.get("parent_trajectory_id") is not None:
            self._parents.append((number, row["parent_trajectory_id"], episode))
        reason = row["finish_reason"]
        if reason in NOT_SCORED and row.get("parent_trajectory_id") is not None:
            self._not_scored.append((number, row["parent_trajectory_id"], reason))
        elif reason not in NOT_SCORED and (row.get("text") is not None or reason == _ILL_FORMED):
            self._texts[name] = number
        if row["revision_index"] == 0:
            self._begun.add(episode)
        else:
            self._revised.setdefault(episode, number)

    def finish(self, problems: Problems) -> None:
        """Add a problem for each link to a missing row, and for each text that counts as scored although the
        attempt that it led to was not."""
        for number, parent, reason in self._not_scored:
            if parent in self._texts:
                problems.add(
                    f"row {self._texts[parent]}: finish_reason: must be {reason}, as in row {number}: a text "
                    "has the reward of the attempt that it led to, and that attempt was not scored"
                )
        for number, parent, episode in self._parents:
            if parent not in self._rows:
                problems.add(f"row {number}: parent_trajectory_id: no row has the id {shown(parent)}")
            elif self._rows[parent][1] != episode:
                problems.add(f"row {number}: parent_trajectory_id: {shown(parent)} is of another episode")
        for episode, number in self._revised.items():
            if episode not in self._begun:
                problems.add(f"row {number}: episode_id: {shown(episode)} has no row with revision_index 0")
