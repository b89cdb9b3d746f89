from __future__ import annotations

import random
from itertools import islice

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.grid_games.boards import Direction
from erl_pipeline.environments.grid_games.game import Action, Step
from erl_pipeline.environments.grid_games.tiny import DemonstratedEpisode
from erl_pipeline.environments.sokoban import ENVIRONMENT
from erl_pipeline.environments.sokoban.board import SokobanBoard, State
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tasks import TASKS
from erl_pipeline.environments.sokoban.tiny import TINY, SokobanPlayer, planning_questions, shortest_solution
from erl_pipeline.policies.tiny.model import to_words
from storage.errors import ConfigError

WORDS = ("p", "q", "r", "s")
TRUTH: dict[Direction, str] = {"up": "p", "right": "q", "down": "r", "left": "s"}


def player(
    board: SokobanBoard, notes: dict[Direction, str], random_intent: float = 0.0, seed: int = 0
) -> SokobanPlayer:
    return SokobanPlayer(random.Random(seed), board, WORDS, notes, random_intent)


def test_with_full_notes_it_carries_the_shortest_solution_out() -> None:
    """It moves to the other side of the box, and pushes once."""
    walker = player(SokobanBoard((".$ ", "@  ")), TRUTH)
    assert walker.plan(max_steps=6) == "right q right q up p left s"
    assert walker.plan(max_steps=2) == "right q right q"
    assert walker.move() == "right q"


def test_it_keeps_to_what_it_has_seen() -> None:
    """The word that moved left is never used for right again."""
    board = SokobanBoard((" @$.",))
    for seed in range(20):
        walker = player(board, {}, seed=seed)
        walker.learn(Step(Action("s", "right"), "left", board.start, State(0, (2,))))
        aim, word = walker.move().split()
        assert aim == "right"
        assert word != "s"


def test_what_a_move_ran_against_says_which_directions_it_can_have_been() -> None:
    """Above is a wall, to the left a box with a wall behind it: each outcome leaves only one meaning of the
    word."""
    board = SokobanBoard(("#######", "#$@ $.#", "#     #", "#    .#", "#######"))
    for seed in range(10):
        walker = player(board, {}, seed=seed)
        walker.learn(Step(Action("p", "right"), "wall", board.start, board.start))
        walker.learn(Step(Action("s", "right"), "box_wall", board.start, board.start))
        walker.learn(Step(Action("q", "right"), "right", board.start, State(10, board.start.boxes)))
        walker.learn(Step(Action("s", "right"), "left", board.start, State(9, board.start.boxes)))
        said = walker.plan(max_steps=20).split()
        assert len(said) > 2
        assert set(zip(said[::2], said[1::2], strict=True)) <= set(TRUTH.items())


def test_a_turn_without_action_teaches_nothing() -> None:
    walker = player(SokobanBoard(("@$.",)), TRUTH)
    walker.learn(Step(None, "bad", State(0, (1,)), State(0, (1,))))
    assert walker.move() == "right q"


def test_of_the_worlds_that_are_left_it_believes_what_agrees_with_most_notes() -> None:
    """The notes have right and left swapped. Once `s` has moved left, those for up and down still hold."""
    notes: dict[Direction, str] = {"up": "p", "right": "s", "down": "r", "left": "q"}
    for seed in range(20):
        walker = player(SokobanBoard(("  @ $.",)), notes, seed=seed)
        assert walker.move() == "right s"
        walker.learn(Step(Action("s", "right"), "left", State(2, (4,)), State(1, (4,))))
        assert walker.move() == "right q"


def test_without_a_solution_it_goes_anywhere() -> None:
    walker = player(SokobanBoard(("   ", " $@", " . ")), TRUTH)
    walker.learn(Step(Action("s", "left"), "left", State(5, (4,)), State(4, (3,))))
    assert {walker.move().split()[0] for _ in range(100)} == {"up", "right", "down", "left"}


def test_random_intent_aims_in_all_directions() -> None:
    walker = player(SokobanBoard(("@$.",)), TRUTH, random_intent=1.0)
    assert {walker.move() for _ in range(100)} == {"up p", "right q", "down r", "left s"}


CONFIG = SokobanConfig(rows=(5, 6), solution_length=(3, 6))
NOTES = 2 + 16 + 3 + 1  # <bos> <user>, 16 cells, "start" with two places, "notes"
STATE = State(3, (5,))


def episodes(count: int, **settings: float) -> list[DemonstratedEpisode]:
    boards = TASKS.generate(CONFIG, "training", 100)
    stream = random.Random(0)
    config = ColdStartConfig.model_validate({"reflections_per_failure": 2, **settings})
    return [TINY.demonstrate(stream, CONFIG, config, boards) for _ in range(count)]


def test_failed_attempts_are_followed_by_two_reflections() -> None:
    shown = episodes(200)
    assert {len(episode.conversations) for episode in shown} == {1, 3}
    for episode in shown:
        for reflection in episode.reflections:
            # <bos> <user>, 16 cells, 3 words of places, "trace", 8 steps of 5 words, then how it ended.
            assert to_words(reflection)[0][2 + 16 + 3 + 1 + 40] in {"stuck", "lost"}


def test_a_demonstrated_retry_is_told_of_the_failed_attempt() -> None:
    told = set()
    for episode in episodes(200, retries=1.0):
        if episode.retry is None:
            continue
        reflection, retry = to_words(episode.reflections[0])[0], to_words(episode.retry)[0]
        # After the slots: "trace", 8 steps of 5 words, and the ending, as in the reflection's prompt.
        assert retry[NOTES + 4 : NOTES + 46] == reflection[NOTES - 1 : NOTES + 41]
        slots = retry[NOTES : NOTES + 4]
        assert slots in (["?"] * 4, reflection[-5:-1])
        told.add(slots == ["?"] * 4)
    assert told == {True, False}


SMALL = SokobanConfig(rows=(5, 6), training_boards=50)


def test_no_word_is_twice() -> None:
    words = TINY.vocabulary(SMALL)
    assert len(words) == len(set(words))
    assert {"A", "p", "up", "c15", "notes", "?", ".", "start", "box_wall", "bad", "stuck"} <= set(words)
    assert "c16" not in words  # four rows of four cells within the border


def test_a_word_with_two_meanings_is_refused() -> None:
    with pytest.raises(ConfigError, match="'stuck' has another meaning"):
        TINY.vocabulary(SokobanConfig(action_words=("p", "q", "r", "stuck")))
    with pytest.raises(ConfigError, match="'a' has another meaning"):
        TINY.vocabulary(SokobanConfig(action_words=("a", "q", "r", "s")))


def test_the_context_holds_the_longest_attempt() -> None:
    # 16 cells, "start" and 2 places; 4 slots; <bos> <user> notes <assistant>; 8 turns of 8 words; 6 spare
    # words a turn.
    assert TINY.context_length(SMALL) == 16 + 3 + 4 + 4 + 8 * 8 + 8 * 6
    # A failed attempt in the prompt of the next: 8 steps of 5 words, "trace" and the ending.
    assert ENVIRONMENT.tiny.require(SMALL).retry_tokens == 8 * 5 + 2


@pytest.mark.parametrize(
    "changes",
    [{}, {"boxes": (2, 2), "inner_walls": (1, 1)}, {"action_mode": "plan"}, {"permute_symbols": True}],
)
def test_demonstrations_speak_in_the_words_fit_and_follow_from_the_seed(changes: dict[str, object]) -> None:
    settings = SokobanConfig.model_validate({"rows": (5, 6), "training_boards": 20, **changes})
    parts = ENVIRONMENT.tiny.require(settings)
    cold_start = ColdStartConfig(retries=1.0)
    first, again = (list(islice(parts.demonstrations(random.Random(3), cold_start), 30)) for _ in range(2))
    assert first == again
    prompts = ENVIRONMENT.prompts(settings)
    assert prompts is not None
    for conversation in (shown for episode in first for shown in episode):
        words, _ = to_words(conversation)
        assert {word for word in words if not word.startswith("<")} <= set(parts.words)
        assert len(words) <= parts.context_length + parts.retry_tokens
        if conversation[0]["content"].endswith("reflect"):
            assert prompts.read_reflection(conversation[-1]["content"])


def test_what_is_hidden_is_no_part_of_the_cold_start() -> None:
    settings = SMALL.model_copy(
        update={"world_seed": 3, "task_file": "boards.jsonl", "instructions": "Other words."}
    )
    assert ENVIRONMENT.tiny.shown(settings) == SMALL


STRAIGHT = SokobanBoard(("######", "#@ $.#", "######"))  # right, right: nothing else is as good
CORNER = SokobanBoard(("#####", "#@  #", "# $ #", "#  .#", "#####"))
SETTINGS = SokobanConfig(rows=(3, 5), columns=(5, 6), inner_walls=(0, 0))


def test_of_a_solution_the_moves_are_known_that_are_best_alone() -> None:
    assert list(shortest_solution(random.Random(0), STRAIGHT)) == [("right", True), ("right", True)]
    # The box has to go right and down: the two ways to begin are as good, and then each has one way to go on.
    ways = {tuple(shortest_solution(random.Random(seed), CORNER)) for seed in range(20)}
    assert ways == {
        (("right", False), ("down", True), ("left", True), ("down", True), ("right", True)),
        (("down", False), ("right", True), ("up", True), ("right", True), ("down", True)),
    }


def test_each_question_asks_for_the_aim_after_the_moves_before_it_with_true_notes() -> None:
    first, second = planning_questions(random.Random(1), SETTINGS, [STRAIGHT])
    assert first.places == second.places == (0,)
    opening, *turns = second.demonstration
    notes = opening["content"].split("notes ")[1].split()  # up, right, down, left
    assert sorted(notes) == ["p", "q", "r", "s"]
    assert [turn["content"] for turn in turns] == [
        f"right {notes[1]}",
        "right c1 c2",
        f"right {notes[1]}",
    ]
    assert list(first.demonstration) == list(second.demonstration[:2])


def test_a_plan_is_one_turn_that_is_asked_for_at_its_aims() -> None:
    plan = SETTINGS.model_copy(update={"action_mode": "plan"})
    (question,) = planning_questions(random.Random(1), plan, [STRAIGHT])
    assert question.places == (0, 2)
    assert question.demonstration[1]["content"].split()[::2] == ["right", "right"]
