"""Second attempts that begin at the turn that a reflection names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from erl_pipeline.environments.messages import Message
from erl_pipeline.episodes.attempt import play_attempt
from erl_pipeline.episodes.context import TurnKey
from erl_pipeline.episodes.dialogue import DialogueTurn
from erl_pipeline.methods.erl.episode import ErlPhase
from erl_pipeline.methods.erl.settings import SECOND_ATTEMPT
from tests.erl_pipeline.episodes.script import COMPACT, play, says, scripted

FELL = ["right a", "left c", "down b"]


class Names:
    """The prompts of FrozenLake, whose reflections are read as a given text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return getattr(COMPACT, name)

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        return COMPACT.attempt(instructions, observation, [])

    def read_reflection(self, text: str) -> str:
        return self._text


def second_attempt(text: str, answers: list[str]) -> Any:
    rows, asked = play([*FELL, "? a b ?", *answers], prompts=Names(text), retry_from_named_turn=True)
    return rows[-1], sum(request.phase == ErlPhase.SECOND_ATTEMPT for request in asked)


def test_turns_before_the_named_one_are_played_again_and_not_trained() -> None:
    """right a <end> | <user> right c1 <assistant> | right a <end>: the last turn alone was sampled."""
    row, sampled = second_attempt("In turn 2 I went back.", ["right a"])
    assert (row.reward, sampled) == (1.0, 1)
    assert row.response_mask == (0, 0, 0, 0, 0, 0, 0, 1, 1, 1)
    assert row.behaviour_logprobs == tuple(-0.25 * bit for bit in row.response_mask)
    assert json.loads(row.metrics)["kept_turns"] == 1.0


@pytest.mark.parametrize(
    "text", ["turn 1", "turn 0", "turn 4", "no turn", "nocturn 2", "turn 2" + "0" * 5000]
)
def test_without_a_turn_to_keep_it_begins_at_the_beginning(text: str) -> None:
    row, sampled = second_attempt(text, ["right a", "right a"])
    assert (row.reward, sampled) == (1.0, 2)
    assert "kept_turns" not in row.metrics


def test_where_the_environment_answers_otherwise_nothing_is_kept() -> None:
    remaining = ["right a", "right a"]
    context = scripted(remaining, [])
    place = TurnKey(SECOND_ATTEMPT, ErlPhase.SECOND_ATTEMPT, 1)
    kept = [DialogueTurn(says("right a"), ({"role": "user", "content": "up c9"},))]
    attempt = asyncio.run(
        play_attempt(context, place, lambda told, seen: COMPACT.attempt(told, seen, []), kept)
    )
    assert (attempt.report.reward, remaining) == (1.0, [])
    assert attempt.metrics["not_kept"] == 1.0
    assert "kept_turns" not in attempt.metrics
    assert attempt.dialogue.response_mask[:3] == [1, 1, 1]
