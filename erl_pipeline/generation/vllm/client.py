"""Talking to one vLLM server: token ids in, token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import aiohttp

from erl_pipeline.generation.engine import Generation, GenerationRequest
from storage.errors import EngineError


class ServerFailure(Exception):
    """A server died, hung or answered with an error of its own; another one may answer."""


class VllmClient:
    """Requests to one server, as an asynchronous context manager.

    Args:
        url: such as `http://127.0.0.1:8000`.
        api_key: sent as bearer token; None sends none.
        stop_token_ids: generation ends after one of these; nothing else ends it before its limit.
        request_seconds: deadline of one request, its waiting in the server's queue included.
    """

    def __init__(
        self, url: str, api_key: str | None, stop_token_ids: frozenset[int], request_seconds: float
    ) -> None:
        self.url = url
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._stop_token_ids = sorted(stop_token_ids)
        self._timeout = aiohttp.ClientTimeout(total=request_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> VllmClient:
        # The number of requests in flight is limited by who sends them, not by the connection pool.
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=self._headers, timeout=self._timeout
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        models = await self._call("GET", "/v1/models")
        return int(models["data"][0]["max_model_len"])

    async def generate(
        self, request: GenerationRequest, policy_version: str, context_length: int
    ) -> Generation:
        """Sample one turn.

        An answer that reaches `context_length` ends as `length`; where the prompt alone fills it the
        answer is empty. Raises `ServerFailure`, also when the weights that sampled are labelled with
        another version than `policy_version`, and `EngineError` when the server refuses the request.
        """
        if len(request.prompt_token_ids) >= context_length:
            return Generation((), (), "length")
        body = {
            "token_ids": request.prompt_token_ids,
            "sampling_params": {
                "max_tokens": min(request.max_new_tokens, context_length - len(request.prompt_token_ids)),
                "temperature": request.temperature,
                "seed": request.seed,
                "stop_token_ids": self._stop_token_ids,
                "ignore_eos": True,
                "logprobs": 0,
                "detokenize": False,
            },
        }
        choice = (await self._call("POST", "/inference/v1/generate", body))["choices"][0]
        finish_reason = _finish_reason(choice["finish_reason"])
        served = {span["version"] for span in choice["weight_versions"]}
        if served != {policy_version}:
            raise ServerFailure(f"{self.url} sampled from policy {sorted(served)}, not from {policy_version}")
        return Generation(
            token_ids=tuple(choice["token_ids"]),
            logprobs=tuple(entry["logprob"] for entry in choice["logprobs"]["content"]),
            finish_reason=finish_reason,
        )

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities in nats, temperature 1, of each token but the first given those before it."""
        body = {
            "token_ids": list(token_ids),
            # Scoring cannot go without sampling; that token is thrown away.
            "sampling_params": {
                "max_tokens": 1,
                "temperature": 0.0,
                "prompt_logprobs": 0,
                "detokenize": False,
            },
        }
        positions = (await self._call("POST", "/inference/v1/generate", body))["prompt_logprobs"]
        return [
            float(position[str(token)]["logprob"])
            for token, position in zip(token_ids[1:], positions[1:], strict=True)
        ]

    async def reload_weights(self, checkpoint_folder: Path) -> None:
        """Read the weights of `checkpoint_folder` in place of those in use; no request may be in flight."""
        # First all weights become 0, so that one that is not read anew cannot pass for the new one. Layers
        # that the CPU build has packed escape this; `write_serving_copy` sees to it that all are there.
        await self._call("POST", "/weight_checker", {"action": "reset"})
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint_folder)}}
        await self._call("POST", "/collective_rpc", call)
        reset = await self._call("POST", "/reset_prefix_cache")
        if not reset["success"]:
            raise ServerFailure(f"{self.url} could not reset its prefix cache; are requests in flight?")

    async def label_weights(self, policy_version: str) -> None:
        """Set the version that every answer names from now on."""
        await self._call("POST", "/update_weight_version", {"new_version": policy_version})

    async def weights_label(self) -> str:
        """The version that the answers name; `default` until one was set."""
        return str((await self._call("GET", "/weight_info"))["weight_version"])

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        assert self._session is not None, "use the client as an asynchronous context manager"
        try:
            async with self._session.request(method, self.url + path, json=body) as answer:
                text = await answer.text()
                if answer.status >= 500:
                    raise ServerFailure(f"{self.url}{path} answered {answer.status}: {text[:500]}")
                if answer.status >= 400:
                    raise EngineError(f"{self.url}{path} refused the request ({answer.status}): {text[:500]}")
                return await answer.json() if text else None
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise ServerFailure(f"{self.url}{path}: {type(error).__name__} {error}") from error


def _finish_reason(reported: str) -> Literal["stop", "length"]:
    if reported == "stop":
        return "stop"
    if reported == "length":
        return "length"
    # `abort` and `error`: what was sampled before is not a turn.
    raise ServerFailure(f"generation ended with {reported!r}")
