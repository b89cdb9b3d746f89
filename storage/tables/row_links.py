"""Checks of the links between the rows of a file of trajectories."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from storage.tables.scored import NOT_SCORED
from storage.tables.trajectories import NO_METRICS, TRAJECTORY_SCHEMA, contradictions
from storage.texts import StorableTexts, read_json

_FLOAT32_MAX = 3.4028235e38
_RANGES = {pa.int8(): 2**7, pa.int32(): 2**31, pa.int64(): 2**63}
_NOT_NEGATIVE = ("revision_index", "sample_index")
_NOT_EMPTY = ("trajectory_id", "episode_id", "group_id", "task_id")

Row = dict[str, Any]


def row_problems(row: Row) -> Iterator[tuple[str, str]]:
    """The problems of a row, as (field, problem). Meanings are checked only if all types are right."""
    wrong = [
        (column.name, problem)
        for column in TRAJECTORY_SCHEMA
        if (problem := _value_problem(row.get(column.name), column)) is not None
    ]
    yield from wrong or _meaning_problems(row)


def _value_problem(value: Any, column: pa.Field) -> str | None:
    if value is None:
        return None if column.nullable else "is null; a value is needed"
    if pa.types.is_list(column.type):
        if not isinstance(value, list):
            return f"is {shown(value)}; allowed is a list"
        element = column.type.value_type
        for index, each in enumerate(value):
            problem = _scalar_problem(each, element)
            if problem is not None:
                return f"value {index} {problem}"
        return None
    return _scalar_problem(value, column.type)


def _scalar_problem(value: Any, kind: pa.DataType) -> str | None:
    if pa.types.is_integer(kind):
        if type(value) is not int:
            return f"is {shown(value)}; allowed is a whole number"
        bound = _RANGES[kind]
        return None if -bound <= value < bound else f"is {shown(value)}; it does not fit in {kind}"
    if pa.types.is_floating(kind):
        if type(value) not in (int, float):
            return f"is {shown(value)}; allowed is a number"
        finite = math.isfinite(value) if type(value) is float else True
        return None if finite and abs(value) <= _FLOAT32_MAX else f"is {shown(value)}; it must be finite"
    if pa.types.is_boolean(kind):
        return None if type(value) is bool else f"is {shown(value)}; allowed is true or false"
    if type(value) is not str:
        return f"is {shown(value)}; allowed is text"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a character, which is no text"
    return None


def _meaning_problems(row: Row) -> Iterator[tuple[str, str]]:
    yield from contradictions({**row, "metrics": row["metrics"] or NO_METRICS})
    if row["response_token_ids"] and not row["prompt_token_ids"]:
        yield "prompt_token_ids", "is empty; the first response token needs a predecessor"
    if row["temperature"] <= 0:
        yield "temperature", f"is {row['temperature']}; tokens that are trained were sampled, at more than 0"
    if row["iteration"] < 1:
        yield "iteration", f"is {row['iteration']}; iterations are counted from 1"
    for name in _NOT_NEGATIVE:
        if row[name] < 0:
            yield name, f"is {row[name]}; it is counted from 0"
    for name in _NOT_EMPTY:
        if not row[name]:
            yield name, "is empty"
    if not _is_dialogue(row["messages"]):
        yield "messages", 'must be JSON: a list of objects with "role" and "content", both text'
    if not isinstance(_parsed(row["task_payload"], json.loads), dict):
        yield "task_payload", "must be a JSON object"


def _is_dialogue(text: str) -> bool:
    # Messages are searched, by a reader that takes no other JSON.
    messages = _parsed(text, read_json)
    return isinstance(messages, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
        for each in messages
    )


def _parsed(text: str, read: Callable[[str], Any]) -> Any:
    try:
        return StorableTexts().value(read(text))
    except (ValueError, RecursionError):
        return None


def shown(value: Any) -> str:
    """A value as a message shows it: at most 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


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


class RowLinkChecks:
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
