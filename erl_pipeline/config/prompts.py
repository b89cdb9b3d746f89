"""Prompts of attempts and reflections as templates in settings, for language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo, field_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.feedback import ATTEMPT_EXAMPLE
from erl_pipeline.config.templates import check_template

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
    `trace`, `feedback` and `reward` are those of the failed attempt."""

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
    """System message of an attempt that is shown how the one before it failed (`show_failed_attempt`).
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
