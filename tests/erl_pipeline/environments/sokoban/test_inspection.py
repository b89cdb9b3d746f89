"""Perfect attempts, in every format of the game."""

from __future__ import annotations

import pytest

from erl_pipeline.environments.sokoban.board import SokobanBoard
from erl_pipeline.environments.sokoban.game import game_of
from erl_pipeline.environments.sokoban.inspection import gold_answer, solution
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tasks import TASKS
from tests.erl_pipeline.environments.sokoban.games import ACTIONS, opened, settings, task

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
