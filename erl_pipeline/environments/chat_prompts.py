"""Prompts for language models, made of templates in settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erl_pipeline.config.prompts import PromptTemplates, render
from erl_pipeline.environments.messages import Message, opening
from erl_pipeline.environments.prompt_format import AttemptReport


class ChatPrompts:
    """Prompts made of the templates."""

    def __init__(self, templates: PromptTemplates) -> None:
        self._templates = templates

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        if not notes:
            return opening(instructions, observation)
        values = {"instructions": instructions, "observation": observation, "notes": list(notes)}
        return opening(render(self._templates.second_attempt, values), observation)

    def retry(self, instructions: str, report: AttemptReport, notes: Sequence[str]) -> list[Message]:
        values = {**report_values(instructions, report), "notes": list(notes)}
        return opening(render(self._templates.retry, values), report.observation)

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        values = {**report_values(instructions, report), "memory": list(memory)}
        return opening(
            render(self._templates.reflection_system, {}), render(self._templates.reflection, values)
        )

    def read_reflection(self, text: str) -> str | None:
        """The whole answer; None when it says nothing."""
        stripped = text.strip()
        return stripped if any(character.isalpha() for character in stripped) else None


def report_values(instructions: str, report: AttemptReport) -> dict[str, Any]:
    """The variables of templates about a finished attempt."""
    return {
        "instructions": instructions,
        "observation": report.observation,
        "trace": report.trace,
        "feedback": report.feedback,
        "reward": report.reward,
    }
