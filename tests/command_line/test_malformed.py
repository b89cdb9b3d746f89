"""Generated malformed configurations, task files and Parquet: a message and status 2, no traceback, no hang.

ERL_TEST_MALFORMED sets the number of each kind; `make reliability` tests 2,000 in all.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from storage.errors import InputError
from storage.tables.trajectories import TRAJECTORIES, Trajectory, write_trajectories
from tests.command_line.invoke import SMALL, Result, invoke

EXAMPLES = int(os.environ.get("ERL_TEST_MALFORMED", "60"))
GENERATED = settings(
    max_examples=EXAMPLES,
    deadline=timedelta(seconds=20),  # a hang
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TASK = {"task_id": "one", "board": ["SF", "HG"], "max_steps": 2}


def check(result: Result) -> None:
    """Check that the input was accepted, or refused like a user's mistake; anything else has already
    raised."""
    assert result.status in (0, 2)
    if result.status == 2:
        assert result.errors.startswith(("error: ", "Usage: ")), result.errors
        assert len(result.errors) < 10_000
        assert "Traceback" not in result.errors


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Some bytes, a few of which are changed, removed, inserted or cut off."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(found) - 1)))
        kind = draw(st.sampled_from(["change", "remove", "insert", "cut"]))
        if kind == "change" and found:
            found[place] = draw(st.integers(0, 255))
        elif kind == "remove":
            del found[place : place + draw(st.integers(1, 8))]
        elif kind == "insert":
            found[place:place] = draw(st.binary(min_size=1, max_size=8))
        elif kind == "cut":
            del found[place:]
    return bytes(found)


def damaged_text(text: str) -> st.SearchStrategy[bytes]:
    """The same of a text."""
    return damaged(text.encode())


@st.composite
def replaced_settings(draw: st.DrawFn) -> bytes:
    """The small configuration with some settings replaced by arbitrary values."""
    import yaml

    config = yaml.safe_load(SMALL)
    for _ in range(draw(st.integers(1, 3))):
        section = draw(
            st.sampled_from([None, *(key for key, value in config.items() if isinstance(value, dict))])
        )
        target = config if section is None or not isinstance(config[section], dict) else config[section]
        target[draw(st.sampled_from([*target, "unknown"]))] = draw(JSON)
    return str(yaml.safe_dump(config)).encode()


@st.composite
def task_lines(draw: st.DrawFn) -> bytes:
    """A task with some fields replaced by arbitrary values, whose text may then be damaged."""
    task: dict[str, Any] = dict(TASK)
    for _ in range(draw(st.integers(1, 2))):
        task[draw(st.sampled_from([*TASK, "unknown"]))] = draw(
            JSON | st.lists(st.text("SFHG", max_size=4), max_size=4)
        )
    content = json.dumps(task).encode()
    return draw(st.just(content) | damaged(content)) + b"\n"


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@GENERATED
@given(content=damaged_text(SMALL) | replaced_settings())
def test_any_configuration_is_accepted_or_refused_with_a_message(tmp_path: Path, content: bytes) -> None:
    check(invoke("config", "check", put(tmp_path, "config.yaml", content)))


@GENERATED
@given(content=task_lines())
def test_any_task_file_is_accepted_or_refused_with_a_message(tmp_path: Path, content: bytes) -> None:
    # A file with one good task is accepted; with a second task of the same id it is refused.
    file = put(tmp_path, "tasks.jsonl", content + b"\n" + content)
    assert ENVIRONMENT.splits.from_file is not None
    with pytest.raises(InputError) as refused:
        ENVIRONMENT.splits.from_file(FrozenLakeConfig(), 0, file)
    assert len(str(refused.value)) < 10_000


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("parquet") / "good.parquet"
    write_trajectories(path, [_trajectory(), replace(_trajectory(), trajectory_id="second")])
    return path.read_bytes()


def _trajectory() -> Trajectory:
    from tests.storage.conftest import FIRST

    return FIRST


def import_file(content: bytes) -> Result:
    folder = Path(tempfile.mkdtemp())
    try:
        path = put(folder, "file.parquet", content)
        return invoke("import", "trajectories", path, "--name", "imported", "--store", folder / "store")
    finally:
        shutil.rmtree(folder)


def test_the_parquet_file_that_is_damaged_below_is_a_good_one(parquet: bytes) -> None:
    result = import_file(parquet)
    assert result.status == 0, result.errors


@GENERATED
@given(data=st.data())
def test_any_damaged_parquet_file_is_accepted_or_refused_with_a_message(
    parquet: bytes, data: st.DataObject
) -> None:
    check(import_file(data.draw(damaged(parquet))))


COLUMN_TYPES: Sequence[Callable[[Any], pa.Array]] = [
    lambda _: pa.array([1, 2]),
    lambda _: pa.array(["", "x"]),
    lambda _: pa.array([None, None]),
    lambda _: pa.array([float("nan"), float("inf")]),
    lambda _: pa.array([[1], []]),
    lambda _: pa.array([[None], [-1, 2]]),
    lambda _: pa.array([b"\xff", b""]),
    lambda _: pa.array([{"a": 1}, None]),
    lambda column: column.take([1, 1]),
]


@GENERATED
@given(data=st.data())
def test_parquet_with_any_other_columns_is_accepted_or_refused_with_a_message(data: st.DataObject) -> None:
    rows = [asdict(_trajectory()), asdict(replace(_trajectory(), trajectory_id="second"))]
    schema = TRAJECTORIES.schema
    columns = {field.name: pa.array([row[field.name] for row in rows], field.type) for field in schema}
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*columns, "unknown"]))
        if data.draw(st.booleans()):
            columns.pop(name, None)
        else:
            columns[name] = data.draw(st.sampled_from(COLUMN_TYPES))(columns.get(name, pa.array([1, 2])))
    table = pa.table(columns)
    if data.draw(st.booleans()):
        table = table.replace_schema_metadata(TRAJECTORIES.arrow_schema.metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    check(import_file(sink.getvalue().to_pybytes()))
