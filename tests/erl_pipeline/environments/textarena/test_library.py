from __future__ import annotations

import random
import sys

import pytest

from erl_pipeline.environments.tasks import require_version
from erl_pipeline.environments.textarena import library
from erl_pipeline.environments.textarena.library import Ending, Game, Said
from storage.errors import ConfigError


def test_equal_seeds_give_equal_games_and_the_global_generator_is_left_alone() -> None:
    game = Game("Mastermind-v0")
    random.seed(5)
    before = random.getstate()
    told = game.begin(1)
    assert told.rules.startswith("You are playing Mastermind.\n")
    assert told.text == ""
    first = game.state_digest()
    game.begin(2)
    assert game.state_digest() != first
    game.begin(1)
    assert game.state_digest() == first
    assert random.getstate() == before


def test_what_a_game_draws_in_play_depends_on_no_other_game() -> None:
    # Minesweeper lays its mines at the first move.
    def shown(disturbed: bool) -> str:
        one, other = Game("Minesweeper-v0-small"), Game("Minesweeper-v0-small")
        one.begin(1)
        if disturbed:
            other.begin(2)
            other.move("[0 0]")
            random.random()
        return one.move("[2 2]")[0].text

    assert shown(disturbed=True) == shown(disturbed=False)


def test_a_second_move_that_is_refused_ends_the_game() -> None:
    game = Game("Mastermind-v0")
    game.begin(1)
    said, over = game.move("hello")
    assert not over
    assert "You attempted an invalid move." in said.text
    said, over = game.move("[" + "9" * 1_000_000 + "]")
    assert over
    ending = game.ending()
    assert isinstance(said, Said)
    assert ending.refusal is not None
    assert "square brackets" in ending.refusal
    assert ending == Ending(0.0, ending.refusal)


def test_a_game_of_2048_without_moves_left_is_not_won_whatever_its_score() -> None:
    game = Game("2048-v0-super-easy")
    game.begin(7)
    stream, over = random.Random(7), False
    while not over:
        _, over = game.move(stream.choice(["[up]", "[down]", "[left]", "[right]"]))
    # The tile that is wanted is 128, but the library gives the full score.
    rewards, info = game._env.close()
    assert (rewards[0], info[0]["reason"]) == (1.0, "No moves left. Max tile 64 - final score 580.")
    assert game.ending() == Ending(0.99, None)


def test_a_missing_extra_and_another_version_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(library, "VERSION", "0.0.1")
        with pytest.raises(ConfigError, match=r"textarena 0\.7\.4 is installed"):
            Game("Mastermind-v0")
    require_version.cache_clear()
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match=r"pip install 'erl-pipeline\[textarena\]'"):
        Game("Mastermind-v0")
