from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest

from erl_pipeline.environments.interface import Task, Transition
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.textarena import ENVIRONMENT
from erl_pipeline.environments.textarena.environment import TextArenaConfig, TextArenaEnvironment
from erl_pipeline.environments.textarena.library import games
from storage.errors import ConfigError


def first_task(**settings: object) -> tuple[TextArenaConfig, Task]:
    chosen = TextArenaConfig.model_validate({"training_tasks": 1, **settings})
    return chosen, ENVIRONMENT.training_tasks(chosen, 0)[0]


def play(
    settings: TextArenaConfig, task: Task, moves: Sequence[str]
) -> tuple[TextArenaEnvironment, list[Transition], str]:
    """Play the moves of one attempt; returns the environment, the transitions and the feedback."""

    async def attempt() -> tuple[TextArenaEnvironment, list[Transition], str]:
        environment = TextArenaEnvironment(settings, task)
        await environment.reset()
        made = [await environment.step(AssistantTurn(move)) for move in moves]
        return environment, made, await environment.feedback()

    return asyncio.run(attempt())


def secret(environment: TextArenaEnvironment) -> list[int]:
    code: list[int] = environment._game._env.state.game_state["secret_code"]
    return code


def test_a_game_that_is_won() -> None:
    settings, task = first_task()
    code = secret(TextArenaEnvironment(settings, task))
    wrong = [code[1], code[0], code[2], code[3]]
    guesses = [f"I try [{' '.join(map(str, guess))}]" for guess in (wrong, code)]
    environment, (first, last), feedback = play(settings, task, guesses)
    # Two digits are in their places, and two are not.
    assert [message["content"] for message in first.messages] == [
        f"Submitted [{' '.join(map(str, wrong))}]. Feedback: 2 black peg(s), 2 white peg(s)."
    ]
    assert (first.reward, first.done, last.reward, last.done) == (0.0, False, 1.0, True)
    assert last.messages == []
    assert feedback == "The game was won in 2 turns."
    assert environment.instructions.startswith("You are playing Mastermind.")
    assert environment.trace().startswith("The game begins. Make your move.\nMove: I try [")


def test_an_attempt_ends_after_its_turns_and_is_told_the_last_hint() -> None:
    settings, task = first_task(max_turns=1, reward="score")
    _, (only,), feedback = play(settings, task, ["[1 2 3 4]"])
    assert (only.reward, only.done) == (0.0, True)
    assert feedback.startswith("The game was not over after 1 turn, which were all there are. ")
    assert "Submitted [1 2 3 4]. Feedback: " in feedback


def test_the_closing_words_of_a_game_are_not_shown() -> None:
    # "... Final completion: 40.0%" and the grid would give away how far it was.
    settings, task = first_task(game="LightsOut-v0", max_turns=3)
    environment, made, feedback = play(settings, task, ["[0 0]", "[0 0]", "[0 0]"])
    assert [each.done for each in made] == [False, False, True]
    assert made[-1].reward == 0.0
    assert "You used all 3 moves" in environment._game._env.state.game_info[0]["reason"]
    assert "You used all" not in feedback + environment.trace()
    assert feedback.startswith("The game ended after 3 turns and was not won.")


TOLD = "An attempt has at most {}. A move that the game refuses takes one of them."


@pytest.mark.parametrize(
    ("game", "max_turns", "told", "turns"),
    [
        ("Mastermind-v0", 6, "You have 6 turns to guess the code.", "6 turns"),
        ("Mastermind-v0-hard", 1, "You have 1 turns to guess the code.", "1 turn"),
        ("Mastermind-v0", 90, "You have 20 turns to guess the code.", "20 turns"),
        ("GuessTheNumber-v0", 8, "within 8 turns.", "8 turns"),
        ("GuessTheNumber-v0", 20, "within 10 turns.", "10 turns"),
        ("LightsOut-v0", 8, "You have up to 8 moves", "8 turns"),
        ("Minesweeper-v0", 8, "", "8 turns"),
    ],
)
def test_the_prompt_tells_the_turns_that_there_are(game: str, max_turns: int, told: str, turns: str) -> None:
    settings, task = first_task(game=game, max_turns=max_turns)
    environment = TextArenaEnvironment(settings, task)
    assert told in environment.instructions
    assert environment.instructions.endswith(TOLD.format(turns))


def test_no_qualified_game_tells_other_turns() -> None:
    for game in sorted(games().qualified):
        turns = 4_095 if game.startswith(("2048", "Sudoku")) else 3
        settings, task = first_task(game=game, max_turns=turns)
        environment = TextArenaEnvironment(settings, task)
        told = f"{environment.instructions} {asyncio.run(environment.reset())}"
        numbers = re.findall(r"(\d+)\s(?:turns?|time steps|moves|guesses|attempts|tries)\b", told)
        assert set(numbers) <= {str(turns)}, game


def test_a_game_that_tells_ten_turns_ends_after_ten() -> None:
    settings, task = first_task(game="GuessTheNumber-v0-hardcore")
    number = TextArenaEnvironment(settings, task)._game._env.game_number
    wrong = [guess for guess in range(1, 50) if guess != number][:10]
    _, made, feedback = play(settings, task, [f"[{guess}]" for guess in wrong])
    assert [each.done for each in made] == [False] * 9 + [True]
    assert feedback.startswith("The game was not over after 10 turns, which were all there are.")
    # The library itself would take an eleventh guess.


def test_reset_begins_the_same_game_again() -> None:
    settings, task = first_task(game="FrozenLake-v0")

    async def twice() -> tuple[str, str]:
        environment = TextArenaEnvironment(settings, task)
        first = await environment.reset()
        await environment.step(AssistantTurn("[right]"))
        return first, await environment.reset()

    first, second = asyncio.run(twice())
    assert first == second
    assert "\n" in first


def test_a_game_that_begins_otherwise_than_its_task_says_is_an_error() -> None:
    settings, task = first_task()
    other = Task(task.task_id, task.task_type, task.environment, {**task.payload, "start": "0"})
    with pytest.raises(RuntimeError, match="does not begin as it did when the task was made"):
        TextArenaEnvironment(settings, other)


def test_splits_have_no_beginning_in_common() -> None:
    settings = TextArenaConfig(training_tasks=20, test_tasks=8)
    training, held_out, test = (
        ENVIRONMENT.training_tasks(settings, 0),
        ENVIRONMENT.held_out_tasks(settings, 1, 8),
        ENVIRONMENT.splits.test_tasks(settings, 0),
    )
    keys = {ENVIRONMENT.splits.task_key(task.payload) for task in [*training, *held_out, *test]}
    assert len(keys) == 36
    assert ENVIRONMENT.held_out_tasks(settings, 0, 3) == held_out[:3]
    assert training[0].task_type == "textarena-Mastermind-v0"


@pytest.mark.parametrize(
    ("game", "max_turns", "least"),
    [("Sudoku-v0", 19, 20), ("2048-v0", 510, 511), ("2048-v0-ultra-easy", 6, 7)],
)
def test_a_game_that_cannot_be_won_in_its_turns_is_refused(game: str, max_turns: int, least: int) -> None:
    assert first_task(game=game, max_turns=least)
    said = rf"max_turns: {max_turns}; 100 beginnings of {game} in a row take {least} turns or more to be won"
    with pytest.raises(ConfigError, match=said):
        first_task(game=game, max_turns=max_turns)


def test_a_board_with_more_empty_cells_than_turns_is_no_task() -> None:
    def empty_cells(max_turns: int) -> list[int]:
        settings = TextArenaConfig(game="Sudoku-v0-medium", max_turns=max_turns, training_tasks=8)
        tasks = ENVIRONMENT.training_tasks(settings, 0)
        return [
            sum(row.count(0) for row in TextArenaEnvironment(settings, task)._game._env.game_board)
            for task in tasks
        ]

    assert max(empty_cells(41)) == 41
    assert max(empty_cells(39)) == 39


def test_a_game_with_too_few_beginnings_says_so() -> None:
    # One of twenty numbers is to be guessed: no more than twenty beginnings.
    settings = TextArenaConfig(game="GuessTheNumber-v0", training_tasks=20)
    with pytest.raises(ConfigError, match=r"20 tasks of GuessTheNumber-v0 .* only \d+ different"):
        ENVIRONMENT.training_tasks(settings, 0)


def test_a_board_that_is_drawn_solved_is_no_task() -> None:
    # One of the seeds gives a board of LightsOut without a light, and the library divides by their number.
    settings = TextArenaConfig(game="LightsOut-v0", task_seed=7)
    tasks = ENVIRONMENT.held_out_tasks(settings, 0, 128)
    assert len({ENVIRONMENT.splits.task_key(task.payload) for task in tasks}) == 128


@pytest.mark.parametrize(
    ("game", "problem"),
    [
        ("Wordle-v0", "needs word lists that nltk downloads"),
        ("TowerOfHanoi-v0", "all seeds give the same game"),
        ("FifteenPuzzle-v0", "half of all such boards cannot be solved"),
        ("Bandit-v0", "nobody can win it"),
        ("Crosswords-v0-hardcore", "in the order of a set"),
        ("LogicPuzzle-v0", "20 puzzles share 4 solutions"),
        ("Chess", "no game of this name for one player"),
    ],
)
def test_games_that_cannot_be_trained_on_are_refused_with_the_reason(game: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TextArenaConfig(game=game)
