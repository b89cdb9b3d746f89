"""What a client may ask of a policy that serves: a chat completion, with names of its episode and user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from erl_pipeline.config.rollouts import LEAST_TEMPERATURE
from erl_pipeline.episodes.gateway.api import ChatRequest, RequestRefused, Strict, validated
from erl_pipeline.episodes.gateway.chat_api import CHAT
from storage.serving.users import user_task_type

USER_TASK_TYPE = user_task_type("")
"""Task types that begin so are those of memory entries that reach one user only."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""It may stand in a header, so it has no control characters."""

_NEUTRAL = {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Values at which these fields change nothing. Any other would cut or distort the distribution."""


class _Metadata(Strict):
    model_config = ConfigDict(extra="ignore")

    episode_id: Name | None = None
    user: Name | None = None
    task_type: Name | None = None


class _Asked(Strict):
    """What counts here of a request beside what the gateway reads, which knows all other fields."""

    model_config = ConfigDict(extra="ignore")

    messages: list[dict[str, Any]]
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    seed: int | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    user: Name | None = None
    metadata: _Metadata | None = None
    store: bool | None = None


class Unavailable(RequestRefused):
    """A call that may be answered later: after `seconds`. `is_noted`: that it will come again."""

    def __init__(self, message: str, code: str, status: int, seconds: float = 1.0) -> None:
        super().__init__(message, code=code, status=status)
        self.seconds = seconds
        self.is_noted = False


@dataclass(frozen=True)
class ServedRequest:
    """A call. `messages` are those of the body, as the client wrote them; `chat` has them as they are read.

    `temperature` and `seed` are None where the client leaves them to the server. `is_stored`: whether the
    call may be logged.
    """

    chat: ChatRequest
    messages: tuple[Mapping[str, Any], ...]
    temperature: float | None
    seed: int | None
    episode_id: str | None
    user: str
    task_type: str
    is_stored: bool


def read_call(body: bytes) -> ServedRequest:
    """The call in a body. Raises `RequestRefused` naming the field for whatever it cannot hold."""
    chat = CHAT.read(body)
    asked = validated(_Asked, body)
    for name, neutral in _NEUTRAL.items():
        if getattr(asked, name) not in (None, neutral):
            raise RequestRefused(
                f"{name}: only {neutral:g} is supported: the policy learns from the whole distribution",
                name,
                "unsupported_parameter",
            )
    if asked.temperature is not None and 0 < asked.temperature < LEAST_TEMPERATURE:
        what = f"temperature: allowed are 0, and {LEAST_TEMPERATURE:g} to 2"
        raise RequestRefused(what, "temperature")
    metadata = asked.metadata or _Metadata()
    task_type = metadata.task_type or ""
    if task_type.startswith(USER_TASK_TYPE):
        what = f"metadata.task_type: it may not begin with {USER_TASK_TYPE}"
        raise RequestRefused(what, "metadata.task_type")
    return ServedRequest(
        chat=chat,
        messages=tuple(asked.messages),
        temperature=asked.temperature,
        seed=asked.seed,
        episode_id=metadata.episode_id,
        user=metadata.user or asked.user or "",
        task_type=task_type,
        is_stored=asked.store is not False,
    )


class FeedbackRequest(Strict):
    """What somebody says about a call, or about a whole episode."""

    call_id: Name | None = None
    episode_id: Name | None = None
    metric: Name
    value: Annotated[float, Field(strict=True, allow_inf_nan=False)] | str
    source: Annotated[str, StringConstraints(max_length=256)] = ""
    idempotency_key: Name | None = None
