"""Prose prompts of ERL for language models, for any environment: templates in settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationInfo, field_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.feedback import ATTEMPT_EXAMPLE, JudgeFeedback
from erl_pipeline.config.templates import check_template, render
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.episodes.plain_prompts import opening

_TASK: Mapping[str, Any] = {"instructions": "Act.", "observation": "A door."}
_VARIABLES: Mapping[str, Mapping[str, Any]] = {
    "second_attempt": {**_TASK, "notes": ["Open it."]},
    "retry": {**ATTEMPT_EXAMPLE, "notes": ["Open it."]},
    "reflection_system": {},
    "reflection": {**ATTEMPT_EXAMPLE, "memory": ["Open it."]},
}
"""The variables of each template, with examples."""


class PromptTemplates(Settings):
    """Prompts as Jinja templates. `instructions` and `observation` are what the environment says first;
    `trace`, `feedback` and `reward` are of the attempt that failed."""

    second_attempt: str = (
        "{{ instructions }}\n\nNotes from earlier attempts (they may be wrong):"
        "{% for note in notes %}\n- {{ note }}{% endfor %}"
    )
    """System message of an attempt that follows a reflection; the user message is the observation. `notes`:
    reflections, the latest last. Variables: instructions, observation, notes."""
    retry: str = (
        "{{ instructions }}\n\nAn earlier attempt at this task went as follows.\n{{ trace }}\n{{ feedback }}"
        "{% if notes %}\n\nNotes from earlier attempts (they may be wrong):"
        "{% for note in notes %}\n- {{ note }}{% endfor %}{% endif %}"
    )
    """System message of an attempt that is told how the one before it failed (`show_failed_attempt`).
    `notes`: reflections, the latest last; none with `reflection: off`. Variables: instructions, observation,
    trace, feedback, reward, notes."""
    reflection_system: str = (
        "You look back on an attempt at a task and write notes for the next attempt. Say what went wrong, "
        "what can be inferred about the rules, and what to do differently. The next attempt sees your notes, "
        "but not this attempt. Write the notes only, in at most five sentences."
    )
    """System message that asks for a reflection. Variables: none."""
    reflection: str = (
        "The task was told as follows.\n{{ instructions }}"
        "{% if memory %}\n\nNotes that helped with similar tasks (they may be wrong here):"
        "{% for note in memory %}\n- {{ note }}{% endfor %}{% endif %}"
        "\n\nThe attempt:\n{{ trace }}"
        '\n\nReward: {{ "%g" | format(reward) }}\nFeedback: {{ feedback }}'
    )
    """User message that asks for a reflection. `memory`: retrieved reflections, the best first. Variables:
    instructions, observation, trace, feedback, reward, memory."""

    @field_validator("*")
    @classmethod
    def _can_be_rendered(cls, template: str, info: ValidationInfo) -> str:
        assert info.field_name is not None
        return check_template(info.field_name, template, _VARIABLES[info.field_name])


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
        values = {**_values(instructions, report), "notes": list(notes)}
        return opening(render(self._templates.retry, values), report.observation)

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        values = {**_values(instructions, report), "memory": list(memory)}
        return opening(
            render(self._templates.reflection_system, {}), render(self._templates.reflection, values)
        )

    def read_reflection(self, text: str) -> str | None:
        """The whole answer; None when it says nothing."""
        stripped = text.strip()
        return stripped if any(character.isalpha() for character in stripped) else None


def judge_prompt(judge: JudgeFeedback, instructions: str, report: AttemptReport) -> list[Message]:
    """What a judge is asked about an attempt."""
    return opening(render(judge.system, {}), render(judge.template, _values(instructions, report)))


def _values(instructions: str, report: AttemptReport) -> dict[str, Any]:
    return {
        "instructions": instructions,
        "observation": report.observation,
        "trace": report.trace,
        "feedback": report.feedback,
        "reward": report.reward,
    }
