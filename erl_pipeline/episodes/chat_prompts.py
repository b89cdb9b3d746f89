"""Prose prompts for language models, for any text environment."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.base import AttemptReport
from erl_pipeline.episodes.prompts import Message

_REFLECT = (
    "You look back on an attempt at a task and write notes for the next attempt. Say what went wrong, what "
    "can be inferred about the rules, and what to do differently. The next attempt sees your notes, but not "
    "this attempt. Write the notes only, in at most five sentences."
)


class ChatPrompts:
    """Instructions as the system message, observations as user messages."""

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        if not notes:
            return _opening(instructions, observation)
        listed = "\n".join(f"- {note}" for note in notes)
        return _opening(
            f"{instructions}\n\nNotes from earlier attempts (they may be wrong):\n{listed}", observation
        )

    def retry(self, instructions: str, report: AttemptReport) -> list[Message]:
        earlier = f"An earlier attempt at this task went as follows.\n{report.trace}\n{report.feedback}"
        return _opening(f"{instructions}\n\n{earlier}", report.observation)

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        parts = [f"The task was told as follows.\n{instructions}"]
        if memory:
            listed = "\n".join(f"- {text}" for text in memory)
            parts.append(f"Notes that helped with similar tasks (they may be wrong here):\n{listed}")
        parts.append(f"The attempt:\n{report.trace}")
        parts.append(f"Reward: {report.reward:g}\nFeedback: {report.feedback}")
        return _opening(_REFLECT, "\n\n".join(parts))

    def read_reflection(self, text: str) -> str | None:
        """The whole answer; None when it says nothing."""
        stripped = text.strip()
        return stripped if any(character.isalpha() for character in stripped) else None


def _opening(system: str, user: str) -> list[Message]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]
