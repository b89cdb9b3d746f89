"""Perfect attempts, in every format of the game."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erl_pipeline.environments.grid_games.tasks import BoardTask, split_of
from erl_pipeline.environments.sokoban import ENVIRONMENT
from erl_pipeline.environments.sokoban.board import SokobanBoard, parse_board, solution_length
from erl_pipeline.environments.sokoban.game import SokobanSymbols, game_of
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tasks import TASKS, gold_answer, solution
from storage.errors import ConfigError, InputError
from tests.erl_pipeline.environments.sokoban.games import ACTIONS, opened, settings, task

ROW = ["#####", "#@$.#", "#####"]


def write_tasks(path: Path, *boards: tuple[list[str], int]) -> Path:
    lines = [
        json.dumps({"task_id": f"task-{number}", "board": board, "max_steps": max_steps})
        for number, (board, max_steps) in enumerate(boards)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_task_carries_its_board_and_its_world() -> None:
    task = TASKS.training_tasks(SokobanConfig(training_boards=1, rows=(6, 6)), seed=0)[0]
    assert (task.task_id, task.task_type) == ("sokoban-training-0-00000", "sokoban-6x6")
    assert task.payload["actions"] == {"p": "up", "q": "left", "r": "down", "s": "right"}
    assert "".join(task.payload["symbols"].values()) == "AaBbCDE"
    assert task.payload["max_steps"] == 8
    assert json.loads(json.dumps(task.payload)) == task.payload


def test_the_same_board_is_the_same_problem_in_any_world_and_however_its_floor_is_written(
    tmp_path: Path,
) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", (["@$.", "---"], 8), (["@$.", "   "], 6))
    config = SokobanConfig(format="prose", actions="per_task")
    first, second = TASKS.tasks_from_file(config, 0, path)
    assert ENVIRONMENT.splits.task_key(first.payload) == ENVIRONMENT.splits.task_key(second.payload)
    assert isinstance(ENVIRONMENT.splits.task_key({}), str)


def test_held_out_boards_avoid_the_boards_of_a_task_file(tmp_path: Path) -> None:
    generated = TASKS.held_out_tasks(SokobanConfig(), 0, 3)
    path = write_tasks(tmp_path / "tasks.jsonl", (list(generated[0].payload["board"]), 8))
    config = SokobanConfig(task_file=str(path))
    assert [task.payload["board"] for task in TASKS.training_tasks(config, 0)] == [
        generated[0].payload["board"]
    ]
    assert [task.payload["board"] for task in TASKS.held_out_tasks(config, 0, 2)] == [
        task.payload["board"] for task in generated[1:]
    ]
    assert ENVIRONMENT.dependencies.files(config) == {"task_file": path}


def test_there_are_test_tasks_where_they_are_asked_for() -> None:
    assert ENVIRONMENT.splits.test_tasks(SokobanConfig(), 0) == []
    tasks = ENVIRONMENT.splits.test_tasks(SokobanConfig(test_boards=2), 0)
    assert [task.task_id for task in tasks] == ["sokoban-test-0-00000", "sokoban-test-0-00001"]


@pytest.mark.parametrize(
    ("board", "max_steps", "message"),
    [
        ([*ROW, "#" * 5, "#" * 5, "#" * 5, "#" * 5], 8, r"the board is 7x5, but .* boards of at most 6x6"),
        (["@$."], 8, "needs a board with walls all around"),
        (["######", "#@$. #", "# $. #", "######"], 8, r"the board has 2 boxes, but .*: \[1, 1\] shows 1"),
        (ROW, 9, "max_steps is 9, but .* no more than environment.max_steps: 8"),
    ],
)
def test_compact_refuses_what_its_prompts_do_not_hold(
    tmp_path: Path, board: list[str], max_steps: int, message: str
) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", (ROW, 8), (board, max_steps))
    with pytest.raises(InputError, match=f"tasks.jsonl, task task-1: .*{message}"):
        TASKS.tasks_from_file(SokobanConfig(rows=(5, 6)), 0, path)


def test_prose_takes_boards_of_any_size_with_their_own_step_limit(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", (["@$."], 2), (["@$. ", " $. "], 20))
    tasks = TASKS.tasks_from_file(SokobanConfig(format="prose", actions="named"), 0, path)
    assert [(task.task_type, task.payload["max_steps"]) for task in tasks] == [
        ("sokoban-1x3", 2),
        ("sokoban-2x4", 20),
    ]


def test_what_of_the_files_is_left_out_is_counted_and_named(tmp_path: Path) -> None:
    levels = tmp_path / "levels.txt"
    levels.write_text("; 0\n@$.\n\n; 1\n@$    .\n\n; 2\n@ $.\n")
    held = write_tasks(tmp_path / "held.jsonl", (["@", "$", "."], 8))
    config = SokobanConfig(
        format="prose", solution_length=(1, 3), max_steps=3, task_file=str(levels), held_out_file=str(held)
    )
    assert [task.task_id for task in TASKS.training_tasks(config, 0)] == ["levels-2"]
    assert ENVIRONMENT.splits.left_out(config) == [
        f"1 of 3 levels of task file {levels} are left out: they need more than environment.max_steps: 3 "
        "moves (levels-1)",
        f"1 of 2 boards of task file {levels} are left out: each is a board of {held} turned or mirrored "
        "(levels-0); environment.twins: any_split would keep them",
    ]


SMALL = SokobanConfig(rows=(5, 6))


def test_boards_keep_to_the_ranges() -> None:
    config = SokobanConfig(
        format="prose", rows=(5, 6), columns=(5, 7), boxes=(1, 2), inner_walls=(1, 2), solution_length=(3, 7)
    )
    boards = TASKS.generate(config, "training", 100)
    assert len(set(boards)) == 100
    assert {board.height for board in boards} == {5, 6}
    assert {board.width for board in boards} == {5, 6, 7}
    assert {len(board.start.boxes) for board in boards} == {1, 2}
    borders = [2 * board.width + 2 * board.height - 4 for board in boards]
    walls = [board.letters.count("#") for board in boards]
    assert {count - border for count, border in zip(walls, borders, strict=True)} == {1, 2}
    assert {solution_length(board) for board in boards} == {3, 4, 5, 6, 7}
    assert all(board.has_border and parse_board(board.rows) == board for board in boards)


def test_the_same_seed_gives_the_same_boards_and_fewer_are_the_beginning() -> None:
    assert TASKS.generate(SMALL, "training", 20) == TASKS.generate(SMALL, "training", 50)[:20]
    other = SMALL.model_copy(update={"board_seed": 1})
    assert TASKS.generate(SMALL, "training", 20) != TASKS.generate(other, "training", 20)
    rows = ("######", "#.   #", "#    #", "#@$  #", "#    #", "######")
    assert TASKS.generate(SMALL, "training", 1)[0].rows == rows


def test_training_held_out_and_test_boards_never_meet_whatever_the_seeds() -> None:
    split = SMALL.model_copy(update={"test_boards": 60})
    training = TASKS.generate(split, "training", 300)
    test = TASKS.generate(split.model_copy(update={"board_seed": 1}), "test", 60)
    held_out = TASKS.generate(split.model_copy(update={"board_seed": 2}), "held_out", 60)
    assert len({*training, *test, *held_out}) == 420
    assert {split_of(board, split) for board in test} == {"test"}


def test_too_few_boards_are_an_error_and_no_endless_loop() -> None:
    """There are only two boards with one row of three cells, mirror images of each other."""
    config = SokobanConfig(rows=(3, 3), columns=(5, 5), solution_length=(1, 1), twins="any_split")
    first = TASKS.generate(config, "training", 1)[0]
    assert first.rows[1] in ("#@$.#", "#.$@#")
    with pytest.raises(ConfigError, match=r"only \d different training boards were found, 3 are asked"):
        TASKS.generate(config, "training", 3)


GOOD = '{"task_id": "one", "board": ["@$.", "---"], "max_steps": 8}'


def write(folder: Path, *lines: str, name: str = "boards.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_tasks_come_in_the_order_of_the_file_and_a_dash_is_floor(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "", '{"task_id": "two", "board": ["+ $ ", " *  ", "    "], "max_steps": 20}')
    assert TASKS.read_file(path, max_steps=4).tasks == [
        BoardTask("one", SokobanBoard(("@$.", "   ")), 8),
        BoardTask("two", SokobanBoard(("+ $ ", " *  ", "    ")), 20),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
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
        (GOOD, "task_id 'one' is already on line 1"),
    ],
)
def test_a_bad_line_is_named_with_its_fault(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, GOOD, line)
    with pytest.raises(InputError, match=f"boards.jsonl, line 2: {message}"):
        TASKS.read_file(path, max_steps=8)


def test_levels_have_names_and_the_step_limit_of_the_settings(tmp_path: Path) -> None:
    path = write(tmp_path, "; 0", "@$.", "", "; 1", "######", "# .$@#", "######", name="easy.txt")
    assert TASKS.read_file(path, max_steps=30).tasks == [
        BoardTask("easy-0", SokobanBoard(("@$.",)), 30),
        BoardTask("easy-1", SokobanBoard(("######", "# .$@#", "######")), 30),
    ]


def test_the_last_level_needs_no_line_end_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "easy.txt"
    path.write_bytes(b"; 0\r\n@$.\r\n\r\n; 1\r\n.$@")
    assert [task.board.rows for task in TASKS.read_file(path, max_steps=8).tasks] == [("@$.",), (".$@",)]


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
        TASKS.read_file(write(tmp_path, *lines, name="easy.txt"), max_steps=3)


def test_levels_that_need_more_moves_than_are_allowed_are_no_tasks_and_are_named(tmp_path: Path) -> None:
    # Level 1 needs four moves; level 2 two, a step and a push.
    path = write(tmp_path, "; 0", "@$.", "", "; 1", "@$   .", "", "; 2", "#.$ @", "#    ", name="easy.txt")
    file = TASKS.read_file(path, max_steps=2)
    assert [task.task_id for task in file.tasks] == ["easy-0", "easy-2"]
    assert file.too_long == ["easy-1"]
    with pytest.raises(InputError, match=r"no task: each .* needs more than environment.max_steps: 3"):
        TASKS.read_file(write(tmp_path, "; 0", "@$   .", name="easy.txt"), max_steps=3)


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
        tasks = TASKS.read_file(path, max_steps=8).tasks
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
    tasks = TASKS.read_file(real_file("sokoban_train.jsonl"), max_steps=100).tasks
    assert len(tasks) == 2000
    assert {task.max_steps for task in tasks} == {8}
    assert {task.board.size_name for task in tasks} == {"6x6", "7x7", "8x8"}
    lengths = [solution_length(task.board, 8) for task in tasks]
    assert (min(filter(None, lengths)), max(filter(None, lengths)), lengths.count(None)) == (1, 8, 0)


def test_the_levels_of_boxoban_are_read() -> None:
    tasks = TASKS.read_file(real_file("boxoban_medium_train_000.txt"), max_steps=120).tasks
    assert len(tasks) == 1000
    assert {(task.board.size_name, len(task.board.start.boxes)) for task in tasks} == {("10x10", 4)}
    assert tasks[1].board.rows[1] == "# .@######"


def test_every_kind_of_cell_has_a_symbol() -> None:
    board = SokobanBoard(("#@$.* ", "#     "))
    symbols = SokobanSymbols(*"AaBbCDE")
    assert "".join(symbols.of_cell(board, board.start, cell) for cell in range(6)) == "EABCbD"
    on_goal = SokobanBoard(("+$",))
    assert symbols.of_cell(on_goal, on_goal.start, 0) == "a"


AROUND = (".$ ", "@  ")


def test_the_way_goes_around_the_box() -> None:
    assert solution(SokobanBoard(AROUND), most=4) == ["right", "right", "up", "left"]


def test_there_is_none_in_too_few_moves_or_too_few_states_or_at_all() -> None:
    assert solution(SokobanBoard(AROUND), most=3) is None
    assert solution(SokobanBoard(AROUND), most=4, most_states=2) is None
    assert solution(SokobanBoard(("$@.",)), most=100) is None


def test_four_boxes_are_solved() -> None:
    """The board is like Boxoban's: it has inner walls, and boxes that are in each other's way."""
    board = SokobanBoard(("########", "#.  #  #", "# $$   #", "#.$ #$ #", "# .  . #", "#   @  #", "########"))
    way = solution(board, most=100)
    assert way is not None
    game = opened(board.rows, 100, format="prose", action_mode="plan")
    words = {direction: word for word, direction in ACTIONS.items()}
    assert game.step(f"[{' '.join(words[direction] for direction in way)}]").reward == 1.0


def test_it_is_said_as_the_game_reads_it() -> None:
    """In the world of `games` q moves right; one push to the right solves the board."""
    assert gold_answer(settings(), task()) == ["right q"]
    assert gold_answer(settings(format="prose"), task()) == ["[q]"]
    assert gold_answer(settings(format="prose", action_mode="plan"), task()) == ["[q]"]


@pytest.mark.parametrize("mode", ["step", "plan"])
@pytest.mark.parametrize("actions", ["hidden_world", "per_task"])
@pytest.mark.parametrize("form", ["prose", "compact"])
def test_it_solves_boards_in_hidden_words(form: str, actions: str, mode: str) -> None:
    config = SokobanConfig.model_validate(
        {"format": form, "actions": actions, "action_mode": mode, "training_boards": 8}
    )
    for each in TASKS.held_out_tasks(config, 3, 8):
        game = game_of(config, each)
        game.reset()
        turns = gold_answer(config, each)
        assert turns is not None
        moved = [game.step(turn) for turn in turns]
        assert (moved[-1].reward, moved[-1].done) == (1.0, True)
