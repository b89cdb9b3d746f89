"""Trajectories from elsewhere: reading a file that nothing is known of, and checking every row of it."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import InputError
from storage.filesystem import store_errors
from storage.tables.trajectories import LOGPROB_TOLERANCE, TRAJECTORY_SCHEMA, Role, Trajectory

IMPORTED = "imported"
"""Key in the settings of a run that holds imported trajectories; such a run has no other settings."""

IMPORT_STAGE = "import_trajectories"
"""Stage of the artifacts that hold them. What their rows name of another store need not be in this one."""

FORMATS = (".parquet", ".jsonl")
SHOWN_PROBLEMS = 10

_BATCH_ROWS = 1024
_FLOAT32_MAX = 3.4028235e38
_RANGES = {pa.int8(): 2**7, pa.int32(): 2**31, pa.int64(): 2**63}
_NOT_NEGATIVE = ("attempt_index", "revision_index", "sample_index")
_NOT_EMPTY = ("trajectory_id", "episode_id", "group_id", "task_id")
# What pyarrow raises for bytes that are not what they should be.
_UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError)

Row = dict[str, Any]


@dataclass
class Problems:
    """What is wrong with a file: the first few in words, and how many there are."""

    shown: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, problem: str) -> None:
        self.count += 1
        if len(self.shown) < SHOWN_PROBLEMS:
            self.shown.append(problem)


def check_trajectories(path: Path) -> int:
    """Check every row of a file against the trajectory schema; the number of rows.

    Columns are those of `TRAJECTORY_SCHEMA`, in a Parquet file or in JSON lines. Rows are in the order of
    their iterations (from 1); within the file ids are unique, parents are rows of the same episode,
    retries and reflections have the first attempt of their episode, and a group has one task and role.

    Raises InputError, with row and field of at most `SHOWN_PROBLEMS` problems, for a file that cannot be
    read, has no rows or has a row that is wrong.
    """
    problems, links = Problems(), _Links()
    rows = 0
    for number, row in _numbered_rows(path, problems):
        rows += 1
        if row is None:
            continue
        wrong = list(_row_problems(row))
        for field_name, what in wrong:
            problems.add(f"row {number}: {field_name}: {what}")
        if not wrong:
            links.take(number, row, problems)
    links.finish(problems)
    if not rows and not problems.count:
        problems.add("it holds no rows")
    if problems.count:
        count = "1 problem" if problems.count == 1 else f"{problems.count:,} problems"
        more = problems.count - len(problems.shown)
        lines = [f"{path}: {count}", *problems.shown, *([f"and {more:,} more"] if more else [])]
        raise InputError("\n  ".join(lines))
    return rows


def read_checked(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file that `check_trajectories` passed, in order."""
    for _, row in _numbered_rows(path, Problems()):
        assert row is not None
        yield Trajectory(
            **{column.name: _stored(row.get(column.name), column.type) for column in TRAJECTORY_SCHEMA}
        )


def _stored(value: Any, kind: pa.DataType) -> Any:
    """A checked value as trajectories hold it: lists as tuples, and a 1 as 1.0 where floats go."""
    if isinstance(value, list):
        return tuple(_stored(each, kind.value_type) for each in value)
    return float(value) if pa.types.is_floating(kind) else value


def _numbered_rows(path: Path, problems: Problems) -> Iterator[tuple[int, Row | None]]:
    """Rows with their number, from 1; None for one that is no row, which is a problem."""
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: allowed are files that end in {' or '.join(FORMATS)}")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with store_errors("read", path):
        yield from _parquet_rows(path, problems) if path.suffix == ".parquet" else _json_rows(path, problems)


def _json_rows(path: Path, problems: Problems) -> Iterator[tuple[int, Row | None]]:
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                problems.add(f"row {number}: is not JSON: {error}")
                yield number, None
                continue
            if not isinstance(row, dict):
                problems.add(f"row {number}: is {_shown(row)}; it must be an object, column -> value")
                yield number, None
                continue
            names = _name_problems(row.keys())
            for problem in names:
                problems.add(f"row {number}: {problem}")
            yield number, None if names else row


def _parquet_rows(path: Path, problems: Problems) -> Iterator[tuple[int, Row | None]]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = _name_problems(file.schema_arrow.names)
            for problem in names:
                problems.add(problem)
            if names:
                return
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except _UNREADABLE as error:
        problems.add(f"cannot be read as Parquet after row {number}: {' '.join(str(error).split())[:300]}")


def _name_problems(names: Any) -> list[str]:
    """Columns that are missing or unknown."""
    given = list(names)
    found = [f"{name}: is there more than once" for name in sorted({n for n in given if given.count(n) > 1})]
    for column in TRAJECTORY_SCHEMA:
        if column.name not in given and not column.nullable:
            found.append(f"{column.name}: is missing")
    for name in given:
        if name not in TRAJECTORY_SCHEMA.names:
            close = difflib.get_close_matches(name, TRAJECTORY_SCHEMA.names, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            found.append(f"{_shown(name)}: is no column of trajectories{hint}")
    return found


def _row_problems(row: Row) -> Iterator[tuple[str, str]]:
    """Field and problem. What a column means is looked at only where all types are right."""
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
            return f"is {_shown(value)}; allowed is a list"
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
            return f"is {_shown(value)}; allowed is a whole number"
        bound = _RANGES[kind]
        return None if -bound <= value < bound else f"is {_shown(value)}; it does not fit in {kind}"
    if pa.types.is_floating(kind):
        if type(value) not in (int, float):
            return f"is {_shown(value)}; allowed is a number"
        finite = math.isfinite(value) if type(value) is float else True
        return None if finite and abs(value) <= _FLOAT32_MAX else f"is {_shown(value)}; it must be finite"
    if pa.types.is_boolean(kind):
        return None if type(value) is bool else f"is {_shown(value)}; allowed is true or false"
    if type(value) is not str:
        return f"is {_shown(value)}; allowed is text"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a character, which is no text"
    return None


def _meaning_problems(row: Row) -> Iterator[tuple[str, str]]:
    tokens = len(row["response_token_ids"])
    for name in ("response_mask", "behaviour_logprobs"):
        if len(row[name]) != tokens:
            yield name, f"has {len(row[name])} values and response_token_ids {tokens}; they must be as many"
    for index, bit in enumerate(row["response_mask"]):
        if bit not in (0, 1):
            yield "response_mask", f"value {index} is {bit}; allowed are 0 and 1"
            break
    for index, logprob in enumerate(row["behaviour_logprobs"]):
        if logprob > LOGPROB_TOLERANCE:
            yield "behaviour_logprobs", f"value {index} is {logprob}; a log-probability is at most 0"
            break
    if not row["prompt_token_ids"]:
        yield "prompt_token_ids", "is empty; the first response token needs a predecessor"
    for name in ("prompt_token_ids", "response_token_ids"):
        if any(token < 0 for token in row[name]):
            yield name, "has a negative token id"
    if row["role"] not in get_args(Role):
        yield "role", f"is {_shown(row['role'])}; allowed: {', '.join(get_args(Role))}"
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
    if not isinstance(_parsed(row["task_payload"]), dict):
        yield "task_payload", "must be a JSON object"


def _is_dialogue(text: str) -> bool:
    messages = _parsed(text)
    return isinstance(messages, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
        for each in messages
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _Links:
    """What rows say of each other."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, str]] = {}
        self._parents: list[tuple[int, str, str]] = []
        self._episodes: dict[str, tuple[int, int]] = {}
        self._groups: dict[str, tuple[str, str]] = {}
        self._first_attempts: set[str] = set()
        self._retries: dict[str, int] = {}
        self._iteration = 1

    def take(self, number: int, row: Mapping[str, Any], problems: Problems) -> None:
        """Remember a row, and say where it contradicts those before it."""
        name, episode, group = row["trajectory_id"], row["episode_id"], row["group_id"]
        first, _ = self._rows.setdefault(name, (number, episode))
        if first != number:
            problems.add(f"row {number}: trajectory_id: {_shown(name)} is the id of row {first} too")
        if row["iteration"] < self._iteration:
            problems.add(
                f"row {number}: iteration: is {row['iteration']} after {self._iteration}; "
                "rows must be in the order of their iterations"
            )
        self._iteration = max(self._iteration, row["iteration"])
        begun, iteration = self._episodes.setdefault(episode, (number, row["iteration"]))
        if iteration != row["iteration"]:
            problems.add(
                f"row {number}: episode_id: {_shown(episode)} is in iteration {iteration} at row {begun}"
            )
        task, role = self._groups.setdefault(group, (row["task_id"], row["role"]))
        if (task, role) != (row["task_id"], row["role"]):
            problems.add(
                f"row {number}: group_id: {_shown(group)} has task {_shown(task)} and role {role} before; "
                "rewards are compared within one task and role"
            )
        if row.get("parent_trajectory_id") is not None:
            self._parents.append((number, row["parent_trajectory_id"], episode))
        if row["role"] == "first_attempt":
            self._first_attempts.add(episode)
        elif row["role"] in ("reflection", "second_attempt"):
            self._retries.setdefault(episode, number)

    def finish(self, problems: Problems) -> None:
        """Say which links lead nowhere."""
        for number, parent, episode in self._parents:
            if parent not in self._rows:
                problems.add(f"row {number}: parent_trajectory_id: no row has the id {_shown(parent)}")
            elif self._rows[parent][1] != episode:
                problems.add(f"row {number}: parent_trajectory_id: {_shown(parent)} is of another episode")
        for episode, number in self._retries.items():
            if episode not in self._first_attempts:
                problems.add(
                    f"row {number}: episode_id: {_shown(episode)} has no row with role first_attempt"
                )


def _shown(value: Any) -> str:
    """A value in a message, cut short."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
