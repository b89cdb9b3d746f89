"""Import of trajectories: reading a file from an unknown source, and checking each of its rows."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import InputError, store_errors
from storage.tables.row_links import SHOWN_PROBLEMS, Problems, Row, RowLinkChecks, row_problems, shown
from storage.tables.trajectories import NO_METRICS, TRAJECTORY_SCHEMA, Trajectory
from storage.texts import StorableTexts, counted

FORMATS = (".parquet", ".jsonl")

_BATCH_ROWS = 1024
_TEXTS, _JSON = ("feedback", "text", "messages", "task_payload"), ("messages", "task_payload")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # in JSON; also where it is one half of a pair
# What pyarrow raises for malformed files.
_UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError)


class MalformedTrajectories(InputError):
    """A file of trajectories cannot be read, or has rows that violate the schema."""


def check_trajectories(path: Path) -> int:
    """Check every row of a file against the trajectory schema; returns the number of rows.

    Columns are those of `TRAJECTORY_SCHEMA`, in a Parquet file or in JSON lines. Rows are in the order of
    their iterations (from 1); within the file ids are unique, parents are rows of the same episode, an
    episode begins with revision 0, and a group has one task and role. Halves of characters are allowed in
    what was said, which `read_checked` replaces, but not in ids.

    Raises MalformedTrajectories for a file that cannot be read, has no rows or has a wrong row; its message
    gives row and field of at most `SHOWN_PROBLEMS` problems.
    """
    problems, links = Problems(), RowLinkChecks()
    rows = 0
    for number, row in _numbered_rows(path, problems):
        rows += 1
        if row is None:
            continue
        row = _storable(row, StorableTexts())
        wrong = list(row_problems(row))
        for field_name, what in wrong:
            problems.add(f"row {number}: {field_name}: {what}")
        if not wrong:
            links.take(number, row, problems)
    links.finish(problems)
    if not rows and not problems.count:
        problems.add("it holds no rows")
    if problems.count:
        count = counted(problems.count, "problem")
        more = problems.count - len(problems.shown)
        lines = [f"{path}: {count}", *problems.shown, *([f"and {more:,} more"] if more else [])]
        raise MalformedTrajectories("\n  ".join(lines))
    return rows


def read_checked(path: Path) -> Iterator[tuple[Trajectory, int]]:
    """The trajectories of a file that `check_trajectories` passed, in order, each with the number of its
    texts in which halves of characters were replaced."""
    for _, row in _numbered_rows(path, Problems()):
        assert row is not None
        texts = StorableTexts()
        row = _storable(row, texts)
        columns = {column.name: _stored(row.get(column.name), column.type) for column in TRAJECTORY_SCHEMA}
        yield Trajectory(**{**columns, "metrics": columns["metrics"] or NO_METRICS}), texts.replaced


def _storable(row: Row, texts: StorableTexts) -> Row:
    """The row with storable texts. What is no JSON, or nested too deeply, stays as it is."""
    said = {name: texts.text(row[name]) for name in _TEXTS if isinstance(row.get(name), str)}
    for name in _JSON:
        if name in said and _SURROGATE.search(said[name]):
            with suppress(ValueError, RecursionError):
                value = texts.value(json.loads(said[name]))
                said[name] = json.dumps(value, sort_keys=name == "task_payload", ensure_ascii=False)
    return {**row, **said}


def _stored(value: Any, kind: pa.DataType) -> Any:
    """A checked value as `Trajectory` holds it: lists become tuples, numbers in float columns floats."""
    if isinstance(value, list):
        return tuple(_stored(each, kind.value_type) for each in value)
    return float(value) if pa.types.is_floating(kind) else value


def _numbered_rows(path: Path, problems: Problems) -> Iterator[tuple[int, Row | None]]:
    """Rows with their numbers, from 1; None for a row that is malformed, which is added to the problems."""
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
                problems.add(f"row {number}: is {shown(row)}; it must be an object, column -> value")
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
    """Problems with column names: missing, unknown or repeated."""
    given, known = Counter(names), TRAJECTORY_SCHEMA.names
    found = [f"{name}: is there more than once" for name in sorted(n for n in given if given[n] > 1)]
    for column in TRAJECTORY_SCHEMA:
        if column.name not in given and not column.nullable:
            found.append(f"{column.name}: is missing")
    for place, name in enumerate(name for name in names if name not in known):
        # Only of those that may be shown: a search takes long.
        close = difflib.get_close_matches(name, known, n=1) if place < SHOWN_PROBLEMS else []
        hint = f"; did you mean {close[0]}?" if close else ""
        found.append(f"{shown(name)}: is no column of trajectories{hint}")
    return found
