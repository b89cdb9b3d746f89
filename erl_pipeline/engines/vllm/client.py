"""Talking to one vLLM server: token ids in, token ids and their log-probabilities out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import aiohttp

from erl_pipeline.engines.interface import Generation, GenerationRequest, OutputHead
from erl_pipeline.engines.vllm.progress import ProgressDeadlines, tokens_by_copy
from storage.errors import EngineError

Memory = Literal["weights", "kv_cache"]
"""What a server that sleeps has given up, in vLLM's words."""


@dataclass(frozen=True)
class ProbeAnswer:
    """What a copy of a model says of a sequence, in nats: the log-probabilities, at temperature 1, of each
    token but the first, and that of the token which it drew after them, at the temperature of the draw."""

    logprobs: list[float]
    drawn_token: int
    drawn_logprob: float


@dataclass(frozen=True)
class WeightsInMemory:
    """Where a server of our own finds all weights of a policy: in the `*.safetensors` of a folder of this
    machine's memory, which lack the output head where it is tied to the embedding."""

    folder: Path
    head: OutputHead


_COPY_HEADER = "X-data-parallel-rank"
_IDLE_SECONDS = 2.0
"""After which an idle connection is not used again. vLLM's server closes one after five seconds; a request
that is sent at that moment would look like the death of the server."""
_SECONDS_BETWEEN_HEALTH = 2.0
_NOT_A_NUMBER = "Out of range float values are not JSON compliant"
"""Error text of Python's `json` for nan and infinities; the answer of a server that computed them has it."""


class ServerFailure(Exception):
    """A server died, hung or answered with an error of its own; another one may answer."""


class UndefinedLogprobs(EngineError):
    """The weights of a server give log-probabilities that are not numbers, which JSON cannot hold."""


class VllmClient:
    """Requests to one server, as an asynchronous context manager.

    Args:
        url: such as `http://127.0.0.1:8000`.
        api_key: sent as bearer token; None sends none.
        stop_token_ids: generation ends after one of these; nothing else ends it before its limit.
        progress_seconds: a request to generate or score fails when the server reads and samples no token of
            any request for so long; another call has so long to be answered.
        copies: copies of the model that the server keeps (`--data-parallel-size`).
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        stop_token_ids: frozenset[int],
        progress_seconds: float,
        copies: int = 1,
    ) -> None:
        self.url = url
        self.copies = copies
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._stop_token_ids = sorted(stop_token_ids)
        self._progress = ProgressDeadlines(progress_seconds, copies)
        self._following: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self.adapter: str | None = None
        """Name of the LoRA adapter that answers requests; None is the model without one."""

    async def __aenter__(self) -> VllmClient:
        # The number of requests in flight is limited by who sends them, not by the connection pool.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=self._headers, timeout=aiohttp.ClientTimeout(total=None)
        )
        self._following = asyncio.create_task(self._follow_progress())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._session is not None
        assert self._following is not None
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following
        await self._session.close()

    async def context_length(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        models = await self._object("GET", "/v1/models")
        return int(models["data"][0]["max_model_len"])

    async def look_at_progress(self) -> None:
        """Move the deadlines of requests if the server has moved. Raises `EngineError` when it does not count
        its tokens."""
        tokens = tokens_by_copy(await self._call("GET", "/metrics"))
        if not tokens or (self.copies > 1 and not tokens.keys() >= set(range(self.copies))):
            raise EngineError(
                f"{self.url}/metrics counts tokens of {len(tokens)} of {self.copies} copies of the model: "
                "a server that hangs would not be found; start it without --disable-log-stats"
            )
        self._progress.see(tokens)

    async def _follow_progress(self) -> None:
        while True:
            await asyncio.sleep(self._progress.seconds_between_looks)
            if self._progress.any_waiting:
                # A server that cannot be looked at shows no progress, and its requests' deadlines stay.
                with suppress(ServerFailure, EngineError):
                    await self.look_at_progress()

    async def generate(
        self, request: GenerationRequest, policy_version: str, context_length: int, copy: int = 0
    ) -> Generation:
        """Sample one turn from one of the copies.

        An answer that reaches `context_length` ends as `length`; where the prompt alone fills it the
        answer is empty. Raises `ServerFailure`, also when the weights that sampled are labelled with
        another version than `policy_version`, and `EngineError` when the server refuses the request.
        """
        if len(request.prompt_token_ids) >= context_length:
            return Generation((), (), "length")
        sampling = {
            "max_tokens": min(request.max_new_tokens, context_length - len(request.prompt_token_ids)),
            "temperature": request.temperature,
            "seed": request.seed,
            "stop_token_ids": self._stop_token_ids,
            "ignore_eos": True,
            "logprobs": 0,
        }
        choice = (await self._infer(request.prompt_token_ids, sampling, copy))["choices"][0]
        finish_reason = _finish_reason(choice["finish_reason"])
        served = {span["version"] for span in choice["weight_versions"]}
        if served != {policy_version}:
            raise ServerFailure(f"{self.url} sampled from policy {sorted(served)}, not from {policy_version}")
        return Generation(
            token_ids=tuple(choice["token_ids"]),
            logprobs=tuple(entry["logprob"] for entry in choice["logprobs"]["content"]),
            finish_reason=finish_reason,
        )

    async def score(self, token_ids: Sequence[int], copy: int = 0, *, base: bool = False) -> list[float]:
        """Log-probabilities in nats, temperature 1, of each token but the first given those before it.

        One of the copies computes them. `base` asks the model without its adapter. Raises
        `UndefinedLogprobs` when one is no number.
        """
        # A request for scores must sample too; that token is thrown away.
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        return _prompt_logprobs(token_ids, await self._infer(token_ids, sampling, copy, base))

    async def probe(
        self, token_ids: Sequence[int], temperature: float, seed: int, copy: int = 0
    ) -> ProbeAnswer:
        """`score`, and one token that is drawn after `token_ids` at a temperature, in one request."""
        sampling = {
            "max_tokens": 1,
            "temperature": temperature,
            "seed": seed,
            "logprobs": 0,
            "prompt_logprobs": 0,
        }
        answer = await self._infer(token_ids, sampling, copy)
        choice = answer["choices"][0]
        return ProbeAnswer(
            logprobs=_prompt_logprobs(token_ids, answer),
            drawn_token=int(choice["token_ids"][0]),
            drawn_logprob=float(choice["logprobs"]["content"][0]["logprob"]),
        )

    async def reload_weights(self, checkpoint_folder: Path) -> None:
        """Read the weights of `checkpoint_folder` in place of those in use; no request may be in flight."""
        # All weights become 0 first, so that the proof notices a weight that was not read. This does not
        # reach layers that the CPU build has packed; for those, `write_serving_copy` refuses a folder that
        # lacks a weight.
        await self._call("POST", "/weight_checker", {"action": "reset"})
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint_folder)}}
        await self._call("POST", "/collective_rpc", call)
        await self.reset_prefix_cache()

    async def transfer_weights(self, weights: WeightsInMemory) -> None:
        """Take weights from memory in place of those in use, through vLLM's interface for a weight transfer
        engine; no request may be in flight.

        For a server that has `erl_pipeline.engines.vllm.in_server`. Raises `ServerFailure` when one is
        missing; the server's weights are then undefined.
        """
        update = {"folder": str(weights.folder), "head": weights.head.name, "tied_to": weights.head.tied_to}
        await self._call("POST", "/start_weight_update")
        await self._call("POST", "/update_weights", {"update_info": update})
        await self._call("POST", "/finish_weight_update")
        await self.reset_prefix_cache()

    async def reset_prefix_cache(self) -> None:
        """Forget the keys and values of earlier prompts; no request may be in flight."""
        # Else a cache outside the GPU (`--kv-offloading-size`) would keep those of the weights before. The
        # proof would not notice: a request for the log-probabilities of its prompt reads no cache.
        reset = await self._object("POST", "/reset_prefix_cache?reset_external=true")
        if not reset["success"]:
            raise ServerFailure(f"{self.url} could not reset its prefix cache; are requests in flight?")

    async def adapters(self) -> list[str]:
        """Names of the LoRA adapters that are loaded."""
        models = await self._object("GET", "/v1/models")
        return [model["id"] for model in models["data"] if model["parent"] is not None]

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter under a name that no other has.

        Raises `EngineError` when the server does not take adapters while it runs.
        """
        await self._call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        """Drop a LoRA adapter; no request may use it."""
        await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def sleep(self, level: Literal[1, 2]) -> None:
        """Free GPU memory: drop the prefix cache, and move the weights to host memory (1) or drop them (2).

        Requests wait until `wake_up`. After level 2 the weights are undefined until they are read again.
        """
        await self._call("POST", f"/sleep?level={level}")

    async def wake_up(self, memory: Memory) -> None:
        """Allocate a part of the GPU memory again. When both parts are there, requests are answered."""
        await self._call("POST", f"/wake_up?tags={memory}")

    async def sleeping(self) -> bool:
        """Whether the server sleeps, so that requests wait."""
        return bool((await self._object("GET", "/is_sleeping"))["is_sleeping"])

    async def label_weights(self, policy_version: str) -> None:
        """Set the version that every answer names from now on."""
        await self._call("POST", "/update_weight_version", {"new_version": policy_version})

    async def weights_label(self) -> str:
        """The version that the answers name; `default` until one was set."""
        return str((await self._object("GET", "/weight_info"))["weight_version"])

    async def _infer(
        self, token_ids: Sequence[int], sampling: dict[str, Any], copy: int, base: bool = False
    ) -> Any:
        """The adapter's answer; the base model's where there is no adapter or `base` is wanted."""
        body = {"token_ids": list(token_ids), "sampling_params": {**sampling, "detokenize": False}}
        named = body if base or self.adapter is None else {**body, "model": self.adapter}
        # A server of several copies otherwise gives each request to whichever has less to do.
        headers = {_COPY_HEADER: str(copy)} if self.copies > 1 else {}
        try:
            async with self._progress.of_request(copy):
                return await self._exchange("POST", "/inference/v1/generate", named, headers)
        except TimeoutError as error:
            raise ServerFailure(
                f"{self.url} read and sampled no token for {self._progress.seconds:g} s (progress_seconds)"
            ) from error

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            async with asyncio.timeout(self._progress.seconds):
                return await self._exchange_in_health(method, path, body)
        except TimeoutError as error:
            raise ServerFailure(
                f"{self.url}{path} did not answer within {self._progress.seconds:g} s (progress_seconds)"
            ) from error

    async def _exchange_in_health(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        """As `_exchange`, but fails soon after the server has lost the process that computes."""
        # vLLM never answers a call that reached that process as it died, and does not end before it has
        # answered. Meanwhile its health is bad, or it takes no connections.
        answer = asyncio.create_task(self._exchange(method, path, body))
        asked = asyncio.create_task(self._ask_for_health())
        try:
            await asyncio.wait([answer, asked], return_when=asyncio.FIRST_COMPLETED)
            return await (answer if answer.done() else asked)
        finally:
            answer.cancel()
            asked.cancel()

    async def _ask_for_health(self) -> NoReturn:
        """Raises `ServerFailure` when it is bad."""
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_HEALTH)
            with suppress(EngineError):
                await self._exchange("GET", "/health")

    async def _object(self, method: str, path: str) -> dict[str, Any]:
        """An answer that is a JSON object. Raises `EngineError` where it is none."""
        answer = await self._call(method, path)
        if not isinstance(answer, dict):
            raise EngineError(
                f"{self.url}{path} answers no JSON object, so that no vLLM server seems to be there: "
                f"{str(answer)[:500]}"
            )
        return answer

    async def _exchange(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """The answer, however long it takes: what its JSON holds, or its text."""
        assert self._session is not None, "use the client as an asynchronous context manager"
        try:
            async with self._session.request(method, self.url + path, json=body, headers=headers) as answer:
                text = await answer.text()
                if answer.status >= 500:
                    raise ServerFailure(f"{self.url}{path} answered {answer.status}: {text[:500]}")
                if answer.status == 404 and body is not None and "model" in body:
                    # Somebody else's server that was restarted has lost its adapters.
                    raise ServerFailure(f"{self.url} has no adapter {body['model']}: {text[:500]}")
                if answer.status == 400 and _NOT_A_NUMBER in text:
                    raise UndefinedLogprobs(f"{self.url}{path} computed values that are not numbers")
                if answer.status >= 400:
                    raise EngineError(f"{self.url}{path} refused the request ({answer.status}): {text[:500]}")
                return json.loads(text) if text and answer.content_type == "application/json" else text
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise ServerFailure(f"{self.url}{path}: {type(error).__name__} {error}") from error


def _prompt_logprobs(token_ids: Sequence[int], answer: dict[str, Any]) -> list[float]:
    positions = answer["prompt_logprobs"]
    return [
        float(position[str(token)]["logprob"])
        for token, position in zip(token_ids[1:], positions[1:], strict=True)
    ]


def _finish_reason(reported: str) -> Literal["stop", "length"]:
    if reported == "stop":
        return "stop"
    if reported == "length":
        return "length"
    # `abort` and `error`: what was sampled before is not a turn.
    raise ServerFailure(f"generation ended with {reported!r}")
