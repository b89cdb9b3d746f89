from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.tables.parquet import arrow_table
from storage.tables.trajectories import (
    TRAJECTORIES,
    TRAJECTORY_SCHEMA,
    Trajectory,
    read_trajectories,
    scan_trajectories,
    trajectory_id,
    validate_rows,
    write_trajectories,
)

text = st.text(st.characters(codec="utf-8"), max_size=20)
int32 = st.integers(0, 2**31 - 1)
tokens = st.lists(int32, max_size=8).map(tuple)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    response = draw(tokens)
    length = len(response)
    logprobs = st.lists(
        st.floats(max_value=0, allow_infinity=False, width=32), min_size=length, max_size=length
    )
    mask = st.lists(st.sampled_from([0, 1]), min_size=length, max_size=length)
    return Trajectory(
        trajectory_id=draw(text),
        episode_id=draw(text),
        parent_trajectory_id=draw(st.none() | text),
        iteration=draw(int32),
        task_id=draw(text),
        task_type=draw(text),
        environment=draw(text),
        role=draw(st.sampled_from(["first_attempt", "reflection", "search"])),
        revision_index=draw(int32),
        sample_index=draw(int32),
        group_id=draw(text),
        subgroup=draw(st.none() | text),
        prompt_token_ids=draw(tokens),
        response_token_ids=response,
        response_mask=tuple(draw(mask)),
        behaviour_logprobs=tuple(draw(logprobs)),
        temperature=draw(st.floats(0, 4, width=32)),
        policy_version=draw(text),
        tokenizer_digest=draw(text),
        reward=draw(st.floats(allow_nan=False, allow_infinity=False, width=32)),
        success=draw(st.booleans()),
        finish_reason=draw(text),
        truncated=draw(st.booleans()),
        feedback=draw(text),
        messages=draw(text),
        memory_version=draw(text),
        memory_entry_ids=tuple(draw(st.lists(text, max_size=3))),
        seed=draw(st.integers(0, 2**63 - 1)),
        task_payload=draw(text),
        text=draw(st.none() | text),
        metrics=draw(st.sampled_from(["{}", '{"steps": 4, "score": 0.5}'])),
        turn_rewards=draw(st.none() | st.lists(st.floats(-9, 9, width=32), max_size=3).map(tuple)),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(trajectories(), max_size=5))
def test_any_valid_trajectory_survives_its_file_and_gives_the_same_bytes(rows: list[Trajectory]) -> None:
    with TemporaryDirectory() as folder:
        one, two = Path(folder) / "one.parquet", Path(folder) / "two.parquet"
        assert write_trajectories(one, rows) == len(rows)
        assert read_trajectories([one]) == rows
        write_trajectories(two, iter(rows))
        assert one.read_bytes() == two.read_bytes()


def test_the_schema_has_the_fields_of_the_dataclass() -> None:
    assert TRAJECTORY_SCHEMA.names == [field.name for field in fields(Trajectory)]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"response_mask": (1, 0)}, "response_mask has 2 values and response_token_ids 3"),
        ({"behaviour_logprobs": (0.0,)}, "behaviour_logprobs has 1 values and response_token_ids 3"),
        ({"response_mask": (1, 2, 1)}, "value 1 is 2; allowed are 0 and 1"),
        (
            {"behaviour_logprobs": (-1.0, 0.5, -1.0)},
            "behaviour_logprobs value 1 is 0.5; a log-probability is at most 0",
        ),
        ({"behaviour_logprobs": (-1.0, float("nan"), -1.0)}, "behaviour_logprobs value 1 is nan"),
        ({"prompt_token_ids": (1, -1)}, "negative token id"),
        ({"role": ""}, "role is empty"),
        ({"metrics": '{"steps": NaN}'}, "metrics must be a JSON object"),
        ({"reward": float("inf")}, "reward is inf; it must be finite"),
        ({"turn_rewards": (0.0, float("inf"))}, "turn_rewards has a value that is not finite"),
    ],
)
def test_a_contradictory_trajectory_is_refused_by_name(
    trajectory: Trajectory, changes: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"trajectory first: .*{fault}"):
        write_trajectories(tmp_path / "rows.parquet", [replace(trajectory, **changes)])
    # Also where its columns are looked at, among those of others.
    rows = [replace(trajectory, trajectory_id="none"), replace(trajectory, **changes)]
    with pytest.raises(ValueError, match=f"trajectory first: .*{fault}"):
        validate_rows(rows, arrow_table(list(map(vars, rows)), TRAJECTORIES))


def test_rounding_above_zero_is_no_fault(trajectory: Trajectory) -> None:
    row = replace(trajectory, behaviour_logprobs=(1e-6, 0.0, -1.0))
    row.validate()
    validate_rows([row], arrow_table([vars(row)], TRAJECTORIES))


def test_rows_are_not_looked_at_where_their_columns_show_no_fault(trajectory: Trajectory) -> None:
    rows = [replace(trajectory, turn_rewards=None), replace(trajectory, turn_rewards=None)]
    left = iter(rows)
    validate_rows(left, arrow_table(list(map(vars, rows)), TRAJECTORIES))
    assert list(left) == rows
    validate_rows([], arrow_table([], TRAJECTORIES))


def test_floats_are_stored_in_32_bits(trajectory: Trajectory, tmp_path: Path) -> None:
    write_trajectories(tmp_path / "rows.parquet", [replace(trajectory, reward=0.1)])
    assert read_trajectories([tmp_path / "rows.parquet"])[0].reward == float(np.float32(0.1)) != 0.1


def test_files_are_read_in_the_order_given(trajectory: Trajectory, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.parquet" for name in "ba"]
    for number, path in enumerate(paths):
        write_trajectories(path, [replace(trajectory, iteration=number, trajectory_id=path.stem)])
    assert [row.trajectory_id for row in read_trajectories(paths)] == ["b", "a"]
    scan = scan_trajectories(paths).select("trajectory_id", "response_mask")
    assert scan.collect().rows() == [("b", [1, 0, 1]), ("a", [1, 0, 1])]


def test_the_id_follows_from_what_the_trajectory_is() -> None:
    expected = hashlib.sha256(b'["artifact","task",2,"reflection",1]').hexdigest()[:32]
    assert trajectory_id("artifact", "task", 2, "reflection", 1) == expected
