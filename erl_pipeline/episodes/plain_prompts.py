"""The prompt of a first attempt at any environment that has no format of its own."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.messages import Message


class PlainPrompts:
    """Instructions as the system message, the first observation as the user's."""

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        """The opening of a first attempt. Raises `ValueError` for notes, for which there is no form."""
        if notes:
            raise ValueError("plain prompts have no form for notes")
        return opening(instructions, observation)


def opening(system: str, user: str) -> list[Message]:
    """A system message, left out where it would be empty, and a user message."""
    asked: Message = {"role": "user", "content": user}
    return [{"role": "system", "content": system}, asked] if system else [asked]
