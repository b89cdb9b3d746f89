from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erl_pipeline.environments.sokoban.board import Board
from erl_pipeline.environments.sokoban.solving import solution_length
from erl_pipeline.environments.sokoban.task_file import BoardTask, read_task_file
from storage.errors import InputError

GOOD = '{"task_id": "one", "board": ["@$.", "---"], "max_steps": 8}'


def write(folder: Path, *lines: str, name: str = "boards.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_tasks_come_in_the_order_of_the_file_and_a_dash_is_floor(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "", '{"task_id": "two", "board": ["+ $ ", " *  ", "    "], "max_steps": 20}')
    assert read_task_file(path, max_steps=4).tasks == [
        BoardTask("one", Board(("@$.", "   ")), 8),
        BoardTask("two", Board(("+ $ ", " *  ", "    ")), 20),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: .* at column 2"),
        ("[]", "task_id, board, max_steps missing"),
        ('{"task_id": "two", "max_steps": 8}', "board missing; needed: an object with"),
        ('{"task_id": "", "board": ["@$."], "max_steps": 8}', "task_id: ''; allowed is"),
        ('{"task_id": "two", "board": "@$.", "max_steps": 8}', "board: allowed is a list of rows"),
        ('{"task_id": "two", "board": ["@$.", "#"], "max_steps": 8}', "row 2 has 1 cells, row 1 has 3"),
        ('{"task_id": "two", "board": ["@$.!"], "max_steps": 8}', "row 1, column 4: unknown letter '!'"),
        (
            '{"task_id": "two", "board": ["$@."], "max_steps": 8}',
            "the board cannot be solved: it begins with a deadlock .corner.",
        ),
        (
            '{"task_id": "two", "board": ["@$ ."], "max_steps": 1}',
            "the board needs at least 2 moves, but max_steps is 1",
        ),
        ('{"task_id": "two", "board": ["@$."], "max_steps": 0}', "max_steps: 0; allowed are whole numbers"),
        ('{"task_id": "two", "board": ["@$."], "max_steps": true}', "max_steps: True; allowed are"),
        (GOOD, "task_id 'one' is already on line 1"),
    ],
)
def test_a_bad_line_is_named_with_its_fault(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, GOOD, line)
    with pytest.raises(InputError, match=f"boards.jsonl, line 2: {message}"):
        read_task_file(path, max_steps=8)


def test_levels_have_names_and_the_step_limit_of_the_settings(tmp_path: Path) -> None:
    path = write(tmp_path, "; 0", "@$.", "", "; 1", "######", "# .$@#", "######", name="easy.txt")
    assert read_task_file(path, max_steps=30).tasks == [
        BoardTask("easy-0", Board(("@$.",)), 30),
        BoardTask("easy-1", Board(("######", "# .$@#", "######")), 30),
    ]


def test_the_last_level_needs_no_line_end_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "easy.txt"
    path.write_bytes(b"; 0\r\n@$.\r\n\r\n; 1\r\n.$@")
    assert [task.board.rows for task in read_task_file(path, max_steps=8).tasks] == [("@$.",), (".$@",)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["@$."], "line 1: a row before the first level"),
        (["; 0", "@$.", "", "@$."], "line 4: a row before the first level"),
        (["; 0", "@$.", "", ";", "@$."], "line 4, level '': the level has no name"),
        (["; 0", "; 1", "@$."], "line 1, level '0': the board is empty"),
        (["; 0", "@$.", "; 1", "@$.", "##"], "line 3, level '1': row 2 has 2 cells"),
        (["; 0", "@$.", "; 0", "@$."], "line 3: task_id 'easy-0' is already on line 1"),
    ],
)
def test_a_bad_level_is_named_with_its_fault(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=f"easy.txt, {message}"):
        read_task_file(write(tmp_path, *lines, name="easy.txt"), max_steps=3)


def test_levels_that_need_more_moves_than_are_allowed_are_no_tasks_and_are_named(tmp_path: Path) -> None:
    # Level 1 needs four moves; level 2 two, a step and a push.
    path = write(tmp_path, "; 0", "@$.", "", "; 1", "@$   .", "", "; 2", "#.$ @", "#    ", name="easy.txt")
    file = read_task_file(path, max_steps=2)
    assert [task.task_id for task in file.tasks] == ["easy-0", "easy-2"]
    assert file.too_long == ["easy-1"]
    with pytest.raises(InputError, match=r"no task: each .* needs more than environment.max_steps: 3"):
        read_task_file(write(tmp_path, "; 0", "@$   .", name="easy.txt"), max_steps=3)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.jsonl cannot be read: No such file"):
        read_task_file(tmp_path / "none.jsonl", max_steps=8)
    with pytest.raises(InputError, match="holds no task"):
        read_task_file(write(tmp_path, ""), max_steps=8)
    path = tmp_path / "bytes.txt"
    path.write_bytes(b"; 0\n\xff")
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 4\)"):
        read_task_file(path, max_steps=8)


@given(
    line=st.one_of(
        st.text(),
        st.from_regex(r'\{"task_id": "a", "board": \["[#@$. -]{3,6}"(, "[ .$]{3,6}")?\], "max_steps": 8\}'),
    )
)
def test_any_line_is_a_task_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, line: str) -> None:
    path = tmp_path_factory.mktemp("tasks") / "boards.jsonl"
    path.write_text(line, encoding="utf-8", errors="surrogateescape", newline="")
    try:
        tasks = read_task_file(path, max_steps=8).tasks
    except InputError as error:
        named = str(path) in str(error)
    else:
        named = all(len(task.board.start.boxes) > 1 or solution_length(task.board, 8) for task in tasks)
    assert named


def real_file(name: str) -> Path:
    """A file of `ERL_TEST_DATA`, a folder with task files that are not shipped."""
    folder = os.environ.get("ERL_TEST_DATA")
    if folder is None:
        pytest.skip(f"ERL_TEST_DATA names no folder with {name}")
    return Path(folder) / name


def test_the_boards_of_the_paper_are_read_and_can_be_solved_in_eight_moves() -> None:
    tasks = read_task_file(real_file("sokoban_train.jsonl"), max_steps=100).tasks
    assert len(tasks) == 2000
    assert {task.max_steps for task in tasks} == {8}
    assert {task.board.size_name for task in tasks} == {"6x6", "7x7", "8x8"}
    lengths = [solution_length(task.board, 8) for task in tasks]
    assert (min(filter(None, lengths)), max(filter(None, lengths)), lengths.count(None)) == (1, 8, 0)


def test_the_levels_of_boxoban_are_read() -> None:
    tasks = read_task_file(real_file("boxoban_medium_train_000.txt"), max_steps=120).tasks
    assert len(tasks) == 1000
    assert {(task.board.size_name, len(task.board.start.boxes)) for task in tasks} == {("10x10", 4)}
    assert tasks[1].board.rows[1] == "# .@######"
