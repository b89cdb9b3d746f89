from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest

from erl_pipeline.config.policy import DemonstrationsWarmStart
from erl_pipeline.environments.demonstrations import Demonstration
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.game import FrozenLakeBoard, FrozenLakeSymbols
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.warm_start import Situation, aimed_way, shown_words
from erl_pipeline.environments.grid_games.boards import Direction
from erl_pipeline.environments.grid_games.game import Action, Step
from erl_pipeline.environments.grid_games.hidden_words import World
from erl_pipeline.environments.grid_games.tasks import split_of
from storage.errors import ConfigError
from tests.erl_pipeline.environments.frozen_lake.test_game import SHORT

WORLD = World(
    {"river": "up", "apple": "right", "cloud": "down", "stone": "left"}, FrozenLakeSymbols("P", ".", "X", "G")
)
SHOWN = FrozenLakeConfig.model_validate({**SHORT.model_dump(), "training_boards": 200})


def demonstrations(count: int, settings: FrozenLakeConfig = SHOWN, **shares: float) -> list[Demonstration]:
    warm_start = DemonstrationsWarmStart.model_validate({"type": "demonstrations", **shares})
    stream = ENVIRONMENT.require_warm_start(settings).demonstrations(random.Random(0), warm_start)
    return list(islice(stream, count))


def only(kind: str, **shares: float) -> dict[str, Any]:
    """Demonstrations of one kind."""
    kinds = dict.fromkeys(("first_attempts", "noted_attempts", "reflections"), 0)
    return {**kinds, kind: 1, **shares}


def board_of(grid: str) -> FrozenLakeBoard:
    """The board that a prompt shows."""
    letters = str.maketrans({"P": "S", ".": "F", "X": "H", "G": "G"})
    return FrozenLakeBoard(tuple(row.replace(" ", "").translate(letters) for row in grid.splitlines()))


def words_of(text: str) -> dict[str, str]:
    """Direction -> word, from notes or a reflection."""
    return dict(part.split(": ") for part in text.split(", ")) if text else {}


def played(shown: Demonstration) -> Iterator[tuple[Direction, str]]:
    """Each direction in an answer's plan, with the word that the answer has for it."""
    answer = shown[-1]["content"]
    return zip(aimed_way(answer), answer.partition("[")[2].strip(" ]").split(), strict=True)


def test_the_kinds_come_as_often_as_their_parts_say() -> None:
    """Of 1,000 demonstrations about 300 are first attempts, 400 have notes and 300 are reflections, within a
    random deviation of about 15."""
    kinds = {"first": 0, "noted": 0, "reflection": 0}
    for shown in demonstrations(1000):
        system = shown[0]["content"]
        kind = "noted" if "Notes" in system else "first" if "Actions" in system else "reflection"
        kinds[kind] += 1
    assert kinds["first"] == pytest.approx(300, abs=45)
    assert kinds["noted"] == pytest.approx(400, abs=45)
    assert kinds["reflection"] == pytest.approx(300, abs=45)


def test_every_attempt_aims_for_a_shortest_way_on_a_training_board() -> None:
    for shown in demonstrations(200, **only("first_attempts")):
        board = board_of(shown[1]["content"])
        assert split_of(board, SHOWN) == "training"
        cell = board.start
        way = [aim for aim, _ in played(shown)]
        for aim in way:
            cell = board.neighbour(cell, aim)
        assert (cell, len(way)) == (board.goal, board.moves_to_goal[board.start])


def test_without_notes_every_word_comes_as_often_for_a_direction() -> None:
    """Of 1,600 answers about 400 say river first; each world has its own permutation of the words."""
    first = [next(played(shown))[1] for shown in demonstrations(1600, **only("first_attempts"))]
    for word in SHORT.action_words:
        assert first.count(word) == pytest.approx(400, abs=70)


def test_true_notes_are_followed_and_swapped_ones_are_not() -> None:
    def contradictions(**shares: float) -> int:
        shown = demonstrations(300, **only("noted_attempts", **shares))
        notes = [words_of(each[0]["content"].partition("Notes: ")[2]) for each in shown]
        return sum(
            any(aim in told and told[aim] != word for aim, word in played(each))
            for each, told in zip(shown, notes, strict=True)
        )

    assert contradictions(swapped_notes=0.0) == 0
    assert contradictions(swapped_notes=1.0) > 100


def test_a_reflection_says_what_the_attempt_showed_and_what_it_does_not_refute() -> None:
    remembered = 0
    for shown in demonstrations(300, **only("reflections", swapped_notes=0.5)):
        _, *lines = shown[1]["content"].split("\n")
        memory = words_of(lines.pop(0).removeprefix("Notes: ")) if lines[0].startswith("Notes") else {}
        moves = [line.removesuffix(" into X").split(": ") for line in lines if "no effect" not in line]
        seen = {direction: word for word, direction in moves}
        assert seen
        kept = {direction: word for direction, word in memory.items() if word not in seen.values()}
        assert words_of(shown[-1]["content"]) == {**kept, **seen}
        remembered += bool(memory)
    assert remembered == pytest.approx(150, abs=35)


def test_moves_into_the_edge_show_nothing() -> None:
    steps = [
        Step(Action("river"), "bump", 0, 0),
        Step(Action("apple"), "right", 0, 1),
        Step(None, "bad", 1, 1),
        Step(Action("cloud"), "fell", 1, 4),
    ]
    assert shown_words(steps, WORLD) == {"right": "apple", "down": "cloud"}


def test_where_no_attempt_can_show_a_word_no_reflection_is_demonstrated() -> None:
    """On one row of two cells, all moves except the one to the goal run against the edge."""
    strip = {"rows": (1, 1), "columns": (2, 2), "holes": (0, 0), "path_length": (1, 1), "training_boards": 1}
    settings = FrozenLakeConfig.model_validate({**SHORT.model_dump(), **strip})
    with pytest.raises(ConfigError, match=r"policy\.warm_start\.reflections: on these boards no attempt"):
        demonstrations(1, settings, **only("reflections"))


def test_the_stream_depends_on_the_seed_alone() -> None:
    assert demonstrations(20) == demonstrations(20)


def test_other_formats_have_no_demonstrations() -> None:
    with pytest.raises(ValueError, match=r"environment frozen_lake has them only with format: short"):
        ENVIRONMENT.require_warm_start(FrozenLakeConfig(format="prose"))


def test_another_world_or_task_file_is_the_same_warm_start() -> None:
    assert ENVIRONMENT.warm_start is not None
    other = SHORT.model_copy(update={"world_seed": 5, "task_file": "boards.jsonl"})
    assert ENVIRONMENT.warm_start.shown(other) == SHORT


def test_examined_answers_are_scored_by_hand() -> None:
    """FrozenLakeBoard: player in row 2, column 1; goal in row 1, column 2; a hole between."""
    from erl_pipeline.environments.frozen_lake.warm_start import attempt_scores, reflection_scores

    situation = Situation(FrozenLakeBoard(("FGF", "SHF", "FFF")), WORLD, SHORT)
    scores = partial(attempt_scores, situation, "noted")
    assert scores("P21 G12: up right [ river apple ]") == {
        "noted_success": 1.0,
        "noted_plan": 1.0,
        "noted_words": 1.0,
    }
    # A plan into the hole with the right words, and a right plan with one wrong word.
    assert list(scores("P21 G12: right up [ apple river ]").values()) == [0.0, 0.0, 1.0]
    assert list(scores("P21 G12: up right [ river cloud ]").values()) == [0.0, 1.0, 0.0]
    assert list(scores("I do not know.").values()) == [0.0, 0.0, 0.0]
    assert attempt_scores(situation, "first", "[river apple]") == {"first_success": 1.0}
    assert reflection_scores("up: river", " up: river ") == {"reflection_exact": 1.0}
    assert reflection_scores("up: river", "up: river, left: stone") == {"reflection_exact": 0.0}


def test_questions_are_about_held_out_boards_three_for_each() -> None:
    warm_start = DemonstrationsWarmStart(type="demonstrations", examined=10)
    asked = ENVIRONMENT.require_warm_start(SHOWN).questions(random.Random(0), warm_start)
    assert len(asked) == 30
    for first, noted in zip(asked[::3], asked[1::3], strict=True):
        board = board_of(first.prompt[1]["content"])
        assert split_of(board, SHOWN) == "held_out"
        assert noted.prompt[1] == first.prompt[1]
        assert len(words_of(noted.prompt[0]["content"].partition("Notes: ")[2])) == 4
