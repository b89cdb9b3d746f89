"""Prompts of fixed width for the tiny policy.

A reflection is four slots, one for each direction (up, right, down, left): the action word that moves
there, or `?`. First and second attempts differ in the slots alone, so every word keeps its position. Prompts
that show the failed attempt have it after the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport

UNKNOWN = "?"
SLOTS = 4
FIELD_WORDS = ("notes", "trace", "memory", "reflect")


class CompactPrompts:
    """`action_words` are the words that a reflection may put in a slot."""

    def __init__(self, action_words: Sequence[str]) -> None:
        self._allowed = {UNKNOWN, *action_words}

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        return [user_message(f"{observation} notes {_merged(reversed(notes))}")]

    def retry(self, instructions: str, report: AttemptReport, notes: Sequence[str]) -> list[Message]:
        """The attempt prompt, then the failed attempt: board and slots keep their positions."""
        slots = _merged(reversed(notes))
        return [user_message(f"{report.observation} notes {slots} trace {report.trace} {report.feedback}")]

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        fields = (
            f"{report.observation} trace {report.trace} {report.feedback} memory {_merged(memory)} reflect"
        )
        return [user_message(fields)]

    def read_reflection(self, text: str) -> str | None:
        """Four slots; None for any other text."""
        words = text.split()
        return " ".join(words) if len(words) == SLOTS and self._allowed.issuperset(words) else None


def _merged(reflections: Iterable[str]) -> str:
    """One line of slots, each from the first reflection that knows it: preferred reflections come first."""
    slots = [UNKNOWN] * SLOTS
    for reflection in reflections:
        slots = [new if old == UNKNOWN else old for old, new in zip(slots, reflection.split(), strict=True)]
    return " ".join(slots)
