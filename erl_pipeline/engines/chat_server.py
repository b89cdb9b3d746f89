"""A chat model that somebody else serves: texts in, a text out, by the chat completions of OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import httpx

from erl_pipeline.environments.messages import Message
from storage.errors import ConfigError

_SHOWN_ANSWER = 200  # characters of a server's answer that an error message quotes


@dataclass(frozen=True)
class ChatAnswer:
    """What the model said. `cut_off`: whether it ended at the limit of new tokens."""

    text: str
    cut_off: bool


class ChatFailure(Exception):
    """No answer came: `error` (the server refused, or its answer was no chat completion) or `timeout`."""

    def __init__(self, kind: Literal["error", "timeout"], text: str) -> None:
        super().__init__(text)
        self.kind: Literal["error", "timeout"] = kind


class ChatServer:
    """Asks one model of one server; an asynchronous context manager, to be used in one event loop.

    Args:
        url: such as `http://gpu-1:8000`; questions go to its `/v1/chat/completions`.
        model: the name under which the server knows it.
        api_key: sent as bearer token; None sends none.
        request_seconds: deadline of one answer.
        max_in_flight: most questions that the server has at the same time; others wait here.
    """

    def __init__(
        self, url: str, model: str, api_key: str | None, request_seconds: float, max_in_flight: int
    ) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._seconds = request_seconds
        self._max_in_flight = max_in_flight

    async def __aenter__(self) -> ChatServer:
        self._places = asyncio.Semaphore(self._max_in_flight)
        # `ask` has a deadline for the whole answer, however slowly it arrives.
        self._client = httpx.AsyncClient(headers=self._headers, timeout=None)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def ask(
        self, messages: Sequence[Message], temperature: float, max_new_tokens: int, seed: int
    ) -> ChatAnswer:
        """The model's next message. `seed` is for servers that use one. Raises `ChatFailure`."""
        question = {
            "model": self._model,
            "messages": [{"role": each["role"], "content": each["content"]} for each in messages],
            "temperature": temperature,
            "max_tokens": max_new_tokens,
            # Servers take signed 64-bit numbers; some only 32 bits.
            "seed": seed % 2**31,
        }
        async with self._places:
            try:
                async with asyncio.timeout(self._seconds):
                    answer = await self._client.post(self._url, json=question)
            except TimeoutError as error:
                raise ChatFailure("timeout", f"no answer within {self._seconds:g} seconds") from error
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise ChatFailure("error", said) from error
        return _read(answer)


def _read(answer: httpx.Response) -> ChatAnswer:
    if answer.is_error:
        raise ChatFailure("error", f"HTTP {answer.status_code}: {answer.text[:_SHOWN_ANSWER]}")
    try:
        choice = answer.json()["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ChatFailure("error", f"no chat completion: {answer.text[:_SHOWN_ANSWER]}") from error
    if not isinstance(text, str):
        raise ChatFailure("error", f"the message has no text: {answer.text[:_SHOWN_ANSWER]}")
    return ChatAnswer(text.strip(), reason == "length")


def key_of(environment: Mapping[str, str], variable: str | None, setting: str) -> str | None:
    """The key in an environment variable; None for no variable. Raises ConfigError, which names the setting,
    where the variable is not set."""
    if variable is None:
        return None
    if variable not in environment:
        raise ConfigError(f"{setting}: the environment variable {variable} is not set")
    return environment[variable]
