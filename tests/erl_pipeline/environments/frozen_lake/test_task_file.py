from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.task_file import BoardTask, read_task_file
from storage.errors import InputError

GOOD = '{"task_id": "one", "board": ["SF", "HG"], "max_steps": 8}'


def write(folder: Path, *lines: str) -> Path:
    path = folder / "boards.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_tasks_come_in_the_order_of_the_file_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "", '{"task_id": "two", "board": ["GS"], "max_steps": 1}')
    assert read_task_file(path) == [
        BoardTask("one", Board(("SF", "HG")), 8),
        BoardTask("two", Board(("GS",)), 1),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: .* at column 2"),
        ("[]", "task_id, board, max_steps missing"),
        ('{"task_id": "two", "max_steps": 8}', "board missing; needed: an object with"),
        ('{"task_id": "", "board": ["SG"], "max_steps": 8}', "task_id: ''; allowed is"),
        ('{"task_id": "two", "board": "SG", "max_steps": 8}', "board: allowed is a list of rows"),
        ('{"task_id": "two", "board": [1], "max_steps": 8}', "board: allowed is a list of rows"),
        ('{"task_id": "two", "board": ["SF", "G"], "max_steps": 8}', "row 2 has 1 cells, row 1 has 2"),
        ('{"task_id": "two", "board": ["SHG"], "max_steps": 8}', "the goal cannot be reached"),
        (
            '{"task_id": "two", "board": ["SG"], "max_steps": 0}',
            "max_steps: 0; allowed are whole numbers from 1",
        ),
        ('{"task_id": "two", "board": ["SG"], "max_steps": true}', "max_steps: True; allowed are"),
        (GOOD, "task_id 'one' is already on line 1"),
    ],
)
def test_a_bad_line_is_named_with_its_fault(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, GOOD, line)
    with pytest.raises(InputError, match=f"boards.jsonl, line 2: {message}"):
        read_task_file(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.jsonl cannot be read: No such file"):
        read_task_file(tmp_path / "none.jsonl")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no task"):
        read_task_file(write(tmp_path, ""))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "boards.jsonl"
    path.write_bytes(b'{"task_id": "\xff"}')
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 13\)"):
        read_task_file(path)


@given(
    line=st.one_of(
        st.text(),
        st.from_regex(r'\{"task_id": "a", "board": \["[SFHG]{2,4}"(, "[SFHGx]{2,4}")?\], "max_steps": 8\}'),
    )
)
def test_any_line_is_a_task_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, line: str) -> None:
    path = tmp_path_factory.mktemp("tasks") / "boards.jsonl"
    path.write_text(line, encoding="utf-8", errors="surrogateescape", newline="")
    try:
        tasks = read_task_file(path)
    except InputError as error:
        named = str(path) in str(error)
    else:
        named = all(task.board.moves_to_goal[task.board.start] is not None for task in tasks)
    assert named
