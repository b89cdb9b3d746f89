from __future__ import annotations

import pytest

from erl_pipeline.environments.sokoban.board import parse_board
from erl_pipeline.environments.sokoban.generation import generate_boards, split_of
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.solving import solution_length
from storage.errors import ConfigError

SMALL = SokobanConfig(rows=(5, 6))


def test_boards_keep_to_the_ranges() -> None:
    config = SokobanConfig(
        format="prose", rows=(5, 6), columns=(5, 7), boxes=(1, 2), inner_walls=(1, 2), solution_length=(3, 7)
    )
    boards = generate_boards(config, "training", 100)
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
    assert generate_boards(SMALL, "training", 20) == generate_boards(SMALL, "training", 50)[:20]
    other = SMALL.model_copy(update={"board_seed": 1})
    assert generate_boards(SMALL, "training", 20) != generate_boards(other, "training", 20)
    rows = ("######", "#.   #", "#    #", "#@$  #", "#    #", "######")
    assert generate_boards(SMALL, "training", 1)[0].rows == rows


def test_training_held_out_and_test_boards_never_meet_whatever_the_seeds() -> None:
    split = SMALL.model_copy(update={"test_boards": 60})
    training = generate_boards(split, "training", 300)
    test = generate_boards(split.model_copy(update={"board_seed": 1}), "test", 60)
    held_out = generate_boards(split.model_copy(update={"board_seed": 2}), "held_out", 60)
    assert len({*training, *test, *held_out}) == 420
    assert {split_of(board, split) for board in test} == {"test"}


def test_without_a_test_split_its_boards_are_training_boards_and_held_out_ones_stay() -> None:
    split = SMALL.model_copy(update={"test_boards": 1})
    assert split_of(generate_boards(split, "test", 1)[0], SMALL) == "training"
    assert generate_boards(split, "held_out", 20) == generate_boards(SMALL, "held_out", 20)


def test_excluded_boards_are_left_out() -> None:
    first, second = generate_boards(SMALL, "held_out", 2)
    assert generate_boards(SMALL, "held_out", 1, excluded={first}) == [second]


def test_too_few_boards_are_an_error_and_no_endless_loop() -> None:
    """There are only two boards with one row of three cells, mirror images of each other."""
    config = SokobanConfig(rows=(3, 3), columns=(5, 5), solution_length=(1, 1), twins="any_split")
    first = generate_boards(config, "training", 1)[0]
    assert first.rows[1] in ("#@$.#", "#.$@#")
    with pytest.raises(ConfigError, match=r"only \d different training boards were found, 3 are asked"):
        generate_boards(config, "training", 3)


def test_no_held_out_or_test_board_is_a_training_board_turned_or_mirrored() -> None:
    found: dict[str, list[int]] = {}
    for twins in ("one_split", "any_split"):
        config = SMALL.model_copy(update={"test_boards": 30, "twins": twins})
        shapes = {board.shape for board in generate_boards(config, "training", 600)}
        splits = (generate_boards(config, "held_out", 30), generate_boards(config, "test", 30))
        found[twins] = [sum(board.shape in shapes for board in boards) for boards in splits]
    assert found["one_split"] == [0, 0]
    assert min(found["any_split"]) > 15
