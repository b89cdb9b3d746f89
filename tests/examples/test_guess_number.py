"""The code of the environment: rules, texts that are true and give nothing away, tasks, demonstrations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest
from guess_number import ENVIRONMENT
from guess_number.game import GuessNumberConfig
from guess_number.tiny import CompactPrompts

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.interface import Task, Transition
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.policies.tiny.model import to_words
from storage.errors import InputError

COMPACT = GuessNumberConfig(max_guesses=3)
PROSE = GuessNumberConfig(max_guesses=3, format="prose")
TASK = Task("t", "guess_number-10", "guess_number", {"low": 5, "high": 14, "number": 11})


def play(
    settings: GuessNumberConfig, *texts: str, number: int = 11
) -> tuple[tuple[str, ...], list[Transition]]:
    """All texts of an attempt, with trace and feedback last, and its transitions."""

    async def attempt() -> tuple[tuple[str, ...], list[Transition]]:
        task = replace(TASK, payload={**TASK.payload, "number": number})
        environment = ENVIRONMENT.open(settings, task)
        opening = await environment.reset()
        turns = [await environment.step(AssistantTurn(text)) for text in texts]
        answers = [message["content"] for turn in turns for message in turn.messages]
        ended = environment.trace(), await environment.feedback()
        return (environment.instructions, opening, *answers, *ended), turns

    return asyncio.run(attempt())


def test_guesses_are_answered_until_the_number_is_found() -> None:
    said, turns = play(COMPACT, "8", "13", "11")
    assert said == ("", "5 14", "higher", "lower", "found", "8 higher 13 lower 11 found", "found")
    assert [(turn.reward, turn.done) for turn in turns] == [(0.0, False), (0.0, False), (1.0, True)]


def test_a_guess_that_cannot_be_right_and_a_text_without_number_are_wasted() -> None:
    said, turns = play(COMPACT, "8", "7", "8 9")
    assert [turn.metrics["wasted_guesses"] for turn in turns] == [0.0, 1.0, 1.0]
    assert sum(turn.metrics["guesses"] for turn in turns) == 3.0
    assert said[-2:] == ("8 higher 7 higher . bad", "lost")
    assert turns[-1].done


def test_in_prose_the_last_number_in_brackets_counts() -> None:
    said, _ = play(PROSE, "Not [9], but [ 12 ].", "12", "[-3]")
    assert said[1].splitlines()[0] == "The number is between 5 and 14, both included."
    assert said[2:5] == (
        "The number is lower. 2 guesses left.",
        "Your answer held no number in square brackets. 1 guess left.",
        "The number is higher. 0 guesses left.",
    )
    assert said[5].splitlines()[2] == "Guess 2: no number. Your answer held no number in square brackets."
    assert said[6] == "The number was not found in 3 guesses."


@pytest.mark.parametrize(
    ("settings", "guesses"), [(COMPACT, ("8", "13", "-")), (PROSE, ("[8]", "[13]", "-"))]
)
def test_nothing_that_is_said_depends_on_what_the_answers_leave_open(
    settings: GuessNumberConfig, guesses: tuple[str, ...]
) -> None:
    said = {play(settings, *guesses, number=number)[0] for number in (9, 10, 11, 12)}
    assert len(said) == 1


def ranges_of(tasks: Sequence[Task]) -> set[tuple[int, int]]:
    """The ranges of some tasks."""
    return {(task.payload["low"], task.payload["high"]) for task in tasks}


def test_held_out_tasks_have_ranges_that_no_training_task_has() -> None:
    training = ENVIRONMENT.training_tasks(COMPACT, 0)
    held_out = ENVIRONMENT.held_out_tasks(COMPACT, 0, 200)
    assert not ranges_of(training) & ranges_of(held_out)
    # Widths of 10 to 15 among 24 numbers give 15 + 14 + ... + 10 ranges, a quarter of which is held out.
    assert (len(ranges_of(training)), len(ranges_of(held_out))) == (56, 19)
    assert len({task.task_id for task in (*training, *held_out)}) == len(training) + 200
    assert ENVIRONMENT.held_out_tasks(COMPACT, 1, 20) == held_out[:20]
    with pytest.raises(InputError, match="9999 held-out tasks are asked for, but there are"):
        ENVIRONMENT.held_out_tasks(COMPACT, 0, 9999)


def test_demonstrations_are_in_the_words_of_the_policy_and_fit_its_context() -> None:
    parts = ENVIRONMENT.tiny.require(COMPACT)
    held_out = ranges_of(ENVIRONMENT.held_out_tasks(COMPACT, 0, 200))
    shown = [
        conversation
        for episode in islice(parts.demonstrations(random.Random(0), ColdStartConfig()), 300)
        for conversation in episode
    ]
    for conversation in shown:
        words, _ = to_words(conversation)
        assert {word for word in words if not word.startswith("<")} <= set(parts.words)
        assert len(words) <= parts.context_length
        assert (int(words[2]), int(words[3])) not in held_out
    reflections = [each for each in shown if each[0]["content"].endswith("reflect")]
    assert 0 < len(reflections) < len(shown)
    prompts = CompactPrompts(COMPACT.largest)
    assert all(prompts.read_reflection(each[-1]["content"]) for each in reflections)


def test_notes_fill_the_slots_the_latest_first() -> None:
    prompts = CompactPrompts(24)
    assert prompts.attempt("", "5 14", ["9 12", "? 11"])[0]["content"] == "5 14 notes 9 11"
    assert prompts.read_reflection("9 12 13") is None
    assert prompts.read_reflection("9 25") is None


@pytest.mark.parametrize("width", [(1, 5), (8, 7), (10, 25), (24, 24)])
def test_impossible_ranges_are_refused(width: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="width"):
        GuessNumberConfig(width=width)
