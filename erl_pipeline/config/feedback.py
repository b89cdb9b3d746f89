"""Settings of the feedback on an attempt that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.templates import check_template

OWN_POLICY = "policy"
"""The name by which a judge is the policy that is trained."""

ATTEMPT_EXAMPLE: Mapping[str, Any] = {
    "instructions": "Act.",
    "observation": "A door.",
    "trace": "Step 1",
    "feedback": "It failed.",
    "reward": 0.0,
}
"""The variables of templates about an attempt, with examples."""


class RulesFeedback(Settings):
    """What the environment says of the attempt, by its rules."""

    type: Literal["rules"] = "rules"


class JudgeFeedback(Settings):
    """What a language model says of the attempt. It is asked about attempts that failed and are tried again;
    where it gives no answer, the feedback of rules stays."""

    type: Literal["judge"]
    model: str = Field(default=OWN_POLICY, min_length=1)
    """`policy`: the policy that is trained, on the run's engine. Any other name: a model of the server at
    `url`."""
    url: str | None = None
    """A server with the chat completions of OpenAI's API, such as `http://gpu-1:8000`. Its answers cannot be
    repeated, so that rollouts with it are marked `approximate`."""
    api_key_variable: str | None = None
    """Environment variable that holds the key of the server; none when it asks for no key."""
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
    temperature: float = Field(default=0.3, gt=0.0, le=2.0)
    """Temperature of the answer; greedy evaluations take 0."""
    max_new_tokens: int = Field(default=200, ge=1)
    """Most tokens of the answer."""
    request_seconds: float = Field(default=60.0, gt=0.0)
    """Deadline of one answer of the server."""
    max_in_flight: int = Field(default=16, ge=1)
    """Most questions that the server has at the same time."""

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
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url}: allowed are addresses such as http://gpu-1:8000")
        if parts.username is not None or parts.password is not None or parts.query:
            raise ValueError(
                "it holds a name, a password or a query, and settings are stored; put the key into an "
                "environment variable and name that in api_key_variable"
            )
        return url.rstrip("/").removesuffix("/v1")

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
