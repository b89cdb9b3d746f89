"""The prompt of a first attempt at any environment that has no format of its own."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.messages import Message, opening


class PlainPrompts:
    """Instructions as the system message, the first observation as the user's."""

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        """The opening of a first attempt. Raises `ValueError` for notes, for which there is no form."""
        if notes:
            raise ValueError("plain prompts have no form for notes")
        return opening(instructions, observation)
