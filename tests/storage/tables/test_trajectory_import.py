from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.errors import InputError
from storage.tables.trajectories import TRAJECTORY_SCHEMA
from storage.tables.trajectory_import import check_trajectories, read_checked

ROW = {
    "trajectory_id": "t1",
    "episode_id": "e1",
    "parent_trajectory_id": None,
    "iteration": 1,
    "task_id": "maze-1",
    "task_type": "maze",
    "environment": "maze",
    "role": "first_attempt",
    "revision_index": 0,
    "sample_index": 0,
    "group_id": "g1",
    "subgroup": None,
    "prompt_token_ids": [5, 6],
    "response_token_ids": [7, 8, 9],
    "response_mask": [1, 0, 1],
    "behaviour_logprobs": [-0.5, 0, -1.25],
    "temperature": 1,
    "policy_version": "their policy",
    "tokenizer_digest": "",
    "reward": 0,
    "success": False,
    "finish_reason": "stop",
    "truncated": False,
    "feedback": "fell",
    "messages": '[{"role": "user", "content": "go"}, {"role": "assistant", "content": "left"}]',
    "metrics": "",
    "text": None,
    "memory_version": "",
    "memory_entry_ids": [],
    "seed": 0,
    "task_payload": "{}",
}


def json_lines(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def problems(path: Path) -> list[str]:
    """The reported problems of a file, line by line."""
    with pytest.raises(InputError) as caught:
        check_trajectories(path)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_rows_of_both_formats_become_trajectories(tmp_path: Path) -> None:
    second = ROW | {"trajectory_id": "t2", "role": "second_attempt", "group_id": "g2", "reward": 1}
    second["parent_trajectory_id"] = "t1"
    lines = json_lines(tmp_path, ROW, second)
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([ROW, second]), table)  # with its own int64 lists and null columns

    assert check_trajectories(lines) == check_trajectories(table) == 2
    assert list(read_checked(lines)) == list(read_checked(table))
    (first, _), (retry, _) = read_checked(lines)
    assert (first.behaviour_logprobs, first.reward, first.temperature) == ((-0.5, 0.0, -1.25), 0.0, 1.0)
    assert (retry.parent_trajectory_id, retry.memory_entry_ids) == ("t1", ())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward": "high"}, 'row 1: reward: is "high"; allowed is a number'),
        ({"reward": float("nan")}, "row 1: reward: is NaN; it must be finite"),
        ({"reward": 1e39}, "row 1: reward: is 1e+39; it must be finite"),
        ({"success": 1}, "row 1: success: is 1; allowed is true or false"),
        ({"seed": 2**63}, "row 1: seed: is 9223372036854775808; it does not fit in int64"),
        ({"iteration": True}, "row 1: iteration: is true; allowed is a whole number"),
        ({"iteration": 0}, "row 1: iteration: is 0; iterations are counted from 1"),
        ({"task_id": None}, "row 1: task_id: is null; a value is needed"),
        ({"task_id": "\ud800"}, "row 1: task_id: holds half of a character, which is no text"),
        ({"prompt_token_ids": 5}, "row 1: prompt_token_ids: is 5; allowed is a list"),
        ({"prompt_token_ids": []}, "row 1: prompt_token_ids: is empty; the first response token needs"),
        ({"prompt_token_ids": [5, -1]}, "row 1: prompt_token_ids: has a negative token id"),
        (
            {"response_token_ids": [7, 8.5, 9]},
            "row 1: response_token_ids: value 1 is 8.5; allowed is a whole",
        ),
        ({"response_mask": [1, 0]}, "row 1: response_mask: has 2 values and response_token_ids 3"),
        ({"response_mask": [1, 2, 1]}, "row 1: response_mask: value 1 is 2; allowed are 0 and 1"),
        ({"behaviour_logprobs": [-0.5, 0.0, 0.3]}, "row 1: behaviour_logprobs: value 2 is 0.3; a log-prob"),
        ({"behaviour_logprobs": [-0.5, 0.0, None]}, "row 1: behaviour_logprobs: value 2 is null; allowed is"),
        ({"role": ""}, "row 1: role: is empty"),
        ({"metrics": '{"steps": "4"}'}, "row 1: metrics: must be a JSON object, name -> finite number"),
        ({"temperature": 0.0}, "row 1: temperature: is 0.0; tokens that are trained were sampled"),
        ({"messages": '[{"role": "user"}]'}, "row 1: messages: must be JSON: a list of objects"),
        ({"task_payload": "board"}, "row 1: task_payload: must be a JSON object"),
        ({"parent_trajectory_id": "t0"}, 'row 1: parent_trajectory_id: no row has the id "t0"'),
        ({"revision_index": 1}, 'row 1: episode_id: "e1" has no row with revision_index 0'),
        ({"colour": 1}, 'row 1: "colour": is no column of trajectories'),
        ({"rewrad": 1}, 'row 1: "rewrad": is no column of trajectories; did you mean reward?'),
    ],
)
def test_what_is_wrong_is_said_with_row_and_field(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    [problem] = problems(json_lines(tmp_path, ROW | change))
    assert problem.startswith(said)


def test_a_text_is_scored_as_little_as_the_attempt_that_it_led_to(tmp_path: Path) -> None:
    text = ROW | {"trajectory_id": "t2", "role": "reflection", "group_id": "g2", "parent_trajectory_id": "t1"}
    failed = text | {"trajectory_id": "t3", "role": "second_attempt", "group_id": "g3"}
    failed |= {"parent_trajectory_id": "t2", "finish_reason": "environment_error"}
    for said in ({"text": "look left"}, {"finish_reason": "ill_formed"}):
        [problem] = problems(json_lines(tmp_path, ROW, text | said, failed))
        assert problem.startswith("row 2: finish_reason: must be environment_error, as in row 3")
    same = text | {"text": "look left", "finish_reason": "environment_error"}
    assert check_trajectories(json_lines(tmp_path, ROW, same, failed)) == 3


def test_rows_must_agree_with_each_other(tmp_path: Path) -> None:
    rows = [
        ROW | {"iteration": 2},
        ROW | {"iteration": 1, "episode_id": "e2"},
        ROW | {"trajectory_id": "t3", "iteration": 3, "group_id": "g3"},
        ROW | {"trajectory_id": "t4", "iteration": 3, "episode_id": "e4", "task_id": "maze-2"},
        ROW
        | {"trajectory_id": "t5", "iteration": 3, "episode_id": "e4", "group_id": "g5"}
        | {"parent_trajectory_id": "t3"},
    ]
    assert problems(json_lines(tmp_path, *rows)) == [
        'row 2: trajectory_id: "t1" is the id of row 1 too',
        "row 2: iteration: is 1 after 2; rows must be in the order of their iterations",
        'row 3: episode_id: "e1" is in iteration 2 at row 1',
        'row 4: group_id: "g1" has task "maze-1" and role first_attempt before; rewards are compared within '
        "one task and role",
        'row 5: parent_trajectory_id: "t3" is of another episode',
    ]


def test_ten_problems_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    rows = [ROW | {"trajectory_id": f"t{i}", "reward": None} for i in range(25)]
    path = json_lines(tmp_path, *rows)
    shown = problems(path)
    assert len(shown) == 11
    assert shown[-1] == "and 15 more"
    with pytest.raises(InputError, match="25 problems"):
        check_trajectories(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", b"", "it holds no rows"),
        ("rows.jsonl", b"{]\n", "row 1: is not JSON"),
        ("rows.jsonl", b"\xff\xfe\n", "row 1: is not JSON"),
        ("rows.jsonl", b"[" * 100_000 + b"\n", "row 1: is not JSON"),
        ("rows.jsonl", b"3\n", "row 1: is 3; it must be an object"),
        ("rows.jsonl", b"9" * 5_000 + b"\n", "row 1: is not JSON"),
        ("rows.parquet", b"PAR1 and no more", "cannot be read as Parquet after row 0"),
    ],
)
def test_files_that_are_none(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert problems(path)[0].startswith(said)


@pytest.mark.parametrize("name", ["rows.csv", "absent.jsonl", "folder.parquet"])
def test_what_cannot_be_a_file_of_rows_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(InputError, match=name):
        check_trajectories(tmp_path / name)


def test_a_row_of_thousands_of_unknown_columns_is_refused_at_once(tmp_path: Path) -> None:
    path = json_lines(tmp_path, ROW | {f"k{number}": 0 for number in range(20_000)})
    began = time.process_time()
    with pytest.raises(InputError, match="20,000 problems") as caught:
        check_trajectories(path)
    assert time.process_time() - began < 2.0
    assert str(caught.value).splitlines()[1].strip() == 'row 1: "k0": is no column of trajectories'
    assert str(caught.value).splitlines()[-1].strip() == "and 19,990 more"


def test_missing_columns_of_a_parquet_file_are_named_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([ROW] * 50).drop_columns(["reward", "seed"]), path)
    assert problems(path) == ["reward: is missing", "seed: is missing"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["{}", "[]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
CHANGES = st.dictionaries(st.sampled_from(TRAJECTORY_SCHEMA.names), VALUES, min_size=1, max_size=4)
QUIET = settings(deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])


def accepted_or_refused(path: Path) -> None:
    """Whatever a file contains, it is read to its end or refused with a message; accepted rows can be
    stored."""
    try:
        check_trajectories(path)
    except InputError:
        return
    for row, _ in read_checked(path):
        row.validate()


@QUIET
@given(changes=st.lists(CHANGES, min_size=1, max_size=3), dropped=st.sampled_from(TRAJECTORY_SCHEMA.names))
def test_malformed_json_lines_give_messages(
    changes: list[dict[str, Any]], dropped: str, tmp_path: Path
) -> None:
    rows = [ROW | {"trajectory_id": f"t{i}"} | change for i, change in enumerate(changes)]
    rows[0] = {name: value for name, value in rows[0].items() if name != dropped or len(changes) > 1}
    accepted_or_refused(json_lines(tmp_path, *rows))


@QUIET
@given(text=st.binary(max_size=300))
def test_arbitrary_bytes_give_messages(text: bytes, tmp_path: Path) -> None:
    for name in ("rows.jsonl", "rows.parquet"):
        (tmp_path / name).write_bytes(text)
        accepted_or_refused(tmp_path / name)


@QUIET
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_damaged_parquet_gives_messages(place: float, bit: int, cut: bool, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([ROW | {"trajectory_id": f"t{i}"} for i in range(3)]), path)
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    content[at] ^= 1 << bit
    path.write_bytes(bytes(content[:at] if cut else content))
    accepted_or_refused(path)


def test_halves_of_characters_in_what_was_said_are_replaced_and_counted(tmp_path: Path) -> None:
    said = {
        **ROW,
        "feedback": "fell \ud83d",
        "messages": r'[{"role": "user", "content": "g \ud800"}, {"role": "tool", "content": "\ud83d\ude00"}]',
        "task_payload": r'{"\udfff": [1]}',
    }
    path = json_lines(tmp_path, said, ROW | {"trajectory_id": "t2"})
    assert check_trajectories(path) == 2
    (row, replaced), (_, none) = read_checked(path)
    assert (replaced, none) == (3, 0)
    assert row.feedback == "fell \ufffd"
    assert [each["content"] for each in json.loads(row.messages)] == ["g \ufffd", "\U0001f600"]
    assert json.loads(row.task_payload) == {"\ufffd": [1]}


@pytest.mark.parametrize("value", ["NaN", "1e999", "9" * 40, "[" * 100 + "]" * 100])
def test_messages_that_a_search_could_not_read_are_refused(value: str, tmp_path: Path) -> None:
    messages = f'[{{"role": "user", "content": "go", "more": {value}}}]'
    (problem,) = problems(json_lines(tmp_path, ROW | {"messages": messages}))
    assert problem.startswith("row 1: messages: must be JSON")
