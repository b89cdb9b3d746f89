"""Prompts as Jinja templates in settings, checked when these are read, and the feedback that reflections are
written on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field, ValidationInfo, field_validator, model_validator

from erl_pipeline.config.base import Settings, checked_address
from erl_pipeline.config.rollouts import LEAST_TEMPERATURE

_JINJA = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


def check_template(key: str, template: str, examples: Mapping[str, Any]) -> str:
    """Check a template by rendering it, and return it. `examples` has a value for each variable that it may
    use.

    Raises `ValueError`, which begins with the key, if the template cannot be read or rendered, or uses
    another variable.
    """
    known = f"known variables: {', '.join(sorted(examples)) or 'none'}"
    try:
        unknown = sorted(meta.find_undeclared_variables(_JINJA.parse(template)) - set(examples))
    except TemplateError as error:
        raise ValueError(f"{key}: the template cannot be read: {_said(error)}; {known}") from error
    if unknown:
        raise ValueError(f"{key}: the template uses the unknown variable {unknown[0]!r}; {known}")
    try:
        render(template, examples)
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{key}: the template cannot be rendered: {_said(error)}; {known}") from error
    return template


def _said(error: Exception) -> str:
    return str(error).rstrip(".")


def render(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template. Raises what Jinja raises, which is rare for a template that was checked."""
    return _compiled(template).render(values)


@lru_cache(maxsize=64)
def _compiled(template: str) -> Template:
    return _JINJA.from_string(template)


OWN_POLICY = "policy"
"""The name of the model if the judge is the policy that is trained."""

ATTEMPT_EXAMPLE: Mapping[str, Any] = {
    "instructions": "Act.",
    "observation": "A door.",
    "trace": "Step 1",
    "feedback": "It failed.",
    "reward": 0.0,
}
"""The variables of templates about an attempt, with examples."""


class RulesFeedback(Settings):
    """The environment's own feedback on the attempt, by its rules."""

    type: Literal["rules"] = "rules"


class JudgeFeedback(Settings):
    """Feedback that a language model writes. It is asked about failed attempts that are tried again; if it
    gives no answer, the feedback of the rules is used."""

    type: Literal["judge"]
    model: str = Field(default=OWN_POLICY, min_length=1)
    """`policy`: the policy that is trained, on the run's engine. Any other name: a model of the server at
    `url`."""
    url: str | None = None
    """A server with OpenAI's chat-completions API, such as `http://gpu-1:8000`. Its answers cannot be
    repeated, so rollouts with it are marked `approximate`."""
    api_key_variable: str | None = None
    """Environment variable that holds the server's key; null if it needs no key."""
    system: str = (
        "You look at an attempt at a task that did not succeed. Say in at most three sentences what went "
        "wrong and where. Say only what the record shows, and do not give the solution away."
    )
    """System message. Variables: none."""
    template: str = (
        "The task was told as follows.\n{{ instructions }}\n{{ observation }}\n\nThe attempt:\n{{ trace }}"
        '\n\nReward: {{ "%g" | format(reward) }}\nThe rules say: {{ feedback }}'
    )
    """User message, a Jinja template. `feedback`: what the environment's rules say. Variables: instructions,
    observation, trace, feedback, reward."""
    temperature: float = Field(default=0.3, ge=LEAST_TEMPERATURE, le=2.0)
    """Temperature of the answer; greedy evaluations use 0."""
    max_new_tokens: int = Field(default=200, ge=1)
    """The most tokens of the answer."""
    request_seconds: float = Field(default=60.0, gt=0.0)
    """Deadline for one answer of the server."""
    max_in_flight: int = Field(default=16, ge=1)
    """The most requests that the server gets at the same time."""

    @field_validator("system", "template")
    @classmethod
    def _can_be_rendered(cls, template: str, info: ValidationInfo) -> str:
        assert info.field_name is not None
        return check_template(
            info.field_name, template, ATTEMPT_EXAMPLE if info.field_name == "template" else {}
        )

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        return None if url is None else checked_address(url).removesuffix("/v1")

    @model_validator(mode="after")
    def _possible_together(self) -> JudgeFeedback:
        if self.url is None and self.model != OWN_POLICY:
            raise ValueError(
                f"model: {self.model} is a model of a server; give its url, or use model: {OWN_POLICY}"
            )
        if self.url is not None and self.model == OWN_POLICY:
            raise ValueError(f"url: {self.url}: name the model that the server has, by `model`")
        if self.url is None and self.api_key_variable is not None:
            raise ValueError("api_key_variable: it is for a server; give its url")
        return self


FeedbackConfig = Annotated[RulesFeedback | JudgeFeedback, Field(discriminator="type")]

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
