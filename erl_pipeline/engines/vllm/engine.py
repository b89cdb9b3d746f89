"""The vLLM engine: requests from any thread, answered by servers over HTTP."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from erl_pipeline.config.generation import VllmEngineConfig
from erl_pipeline.engines.interface import Generation, GenerationRequest, Interrupted
from erl_pipeline.engines.vllm.adapters import (
    ADAPTER_ENVIRONMENT,
    AdapterShape,
    ServedAdapter,
    adapter_arguments,
)
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.probe import Probe
from erl_pipeline.engines.vllm.server import ManagedServer, OnProgress
from erl_pipeline.engines.vllm.server_pool import Fleet, Member
from erl_pipeline.engines.vllm.serving_copy import write_serving_copy
from erl_pipeline.engines.vllm.weight_sync import Handover, ServedPolicy
from storage.errors import ConfigError, EngineError

_STOP_POLL_SECONDS = 0.2
Result = TypeVar("Result")


class VllmEngine:
    """Samples from one policy version at a time; a context manager that ends its server with the block.

    The server, where it is our own, starts with the first policy that is served. Requests run in an
    event loop on a thread of this engine, so that its methods can be called from any thread.

    Args:
        config: what to start, or which servers to use.
        folder: for the server's log (`server.log`) and copies of checkpoints; readable by the servers.
        stop_token_ids: a turn ends after one of these.
        environment: variables in which the keys of `config.servers` stand, such as `os.environ`.
        stop: ends what is waited for, a server's start too, with `Interrupted`.
        on_progress: called while our own server starts.
        adapters: where policies are LoRA adapters of one base, what these are like.
    """

    def __init__(
        self,
        config: VllmEngineConfig,
        folder: Path,
        stop_token_ids: frozenset[int],
        environment: Mapping[str, str],
        stop: threading.Event | None = None,
        on_progress: OnProgress | None = None,
        adapters: AdapterShape | None = None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._stop_token_ids = stop_token_ids
        self._stop = stop or threading.Event()
        self._on_progress = on_progress
        self._adapters = adapters
        self._weights: Path | None = None
        self._keys = [_key(environment, address.api_key_variable) for address in config.servers]
        self._server: ManagedServer | None = None
        self._fleet: Fleet | None = None
        self._policy_version: str | None = None
        self._vocabulary_size = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-requests", daemon=True)

    def __enter__(self) -> VllmEngine:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._policy_version = None
        # First the server: a restart that is under way on another thread ends with it.
        if self._server is not None:
            self._server.stop()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def policy_version(self) -> str:
        """The version that is served and proven; raises `EngineError` before the first."""
        if self._policy_version is None:
            raise EngineError("the vLLM engine serves no policy")
        return self._policy_version

    def serve(
        self, checkpoint_folder: Path, policy_version: str, probe: Probe, adapter: ServedAdapter | None = None
    ) -> list[Handover]:
        """Hand the checkpoint over to the servers; `probe` is the trainer's model's (`make_probe`).

        Where policies are adapters, the checkpoint is their base, the same at each call.

        Returns how each server took it. Raises `EngineError` when a server cannot be shown to sample
        from this policy; none is served then.
        """
        if (adapter is None) != (self._adapters is None):
            raise ValueError("an engine serves adapters where it was told their shape, and nowhere else")
        self._policy_version = None
        if adapter is None or self._weights is None:
            self._weights = self._write_copy(checkpoint_folder, "base" if adapter else policy_version)
        policy = ServedPolicy(policy_version, self._weights, probe, self._config.dtype, adapter)
        try:
            handovers = self.run(self._serve(policy))
        except ServerFailure as failure:
            log = "" if self._server is None else f"\n{self._server.last_words()}"
            raise EngineError(
                f"policy {policy_version} could not be handed over: {failure}{log}"
            ) from failure
        for older in (self._folder / "serving").glob("*"):
            if older.name != ("base" if adapter else policy_version):
                shutil.rmtree(older)
        self._vocabulary_size = probe.hot_logprobs.shape[1]
        self._policy_version = policy_version
        return handovers

    def _write_copy(self, checkpoint_folder: Path, name: str) -> Path:
        copy = self._folder / "serving" / name
        if copy.exists():
            shutil.rmtree(copy)
        return write_serving_copy(checkpoint_folder, copy)

    def rest(self) -> None:
        """Give the memory of our own server back, as the configuration says; `serve` takes it again."""
        if self._fleet is None or not (self._config.sleep or self._config.lifecycle == "per_stage"):
            return
        self._policy_version = None
        # Weights that are not replaced are kept, in host memory.
        level: Literal[1, 2] = 2 if self._adapters is None else 1
        self.run(self._fleet.rest(level if self._config.sleep else None))

    def reset_prefix_cache(self) -> None:
        """Make the servers forget earlier prompts; nothing may be in flight."""
        self.run(self._serving_fleet([]).reset_prefix_caches())

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the event loop of this engine to its end.

        Raises `Interrupted`, and cancels it, when the run is asked to stop.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not wait([future], _STOP_POLL_SECONDS).done:
            if self._stop.is_set():
                future.cancel()
                raise Interrupted
        return future.result()

    async def sample(self, request: GenerationRequest) -> Generation:
        """Sample one turn; only within `run`. Raises `EngineError` when servers failed too often."""
        return await self._serving_fleet([request]).generate(request)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer every request, in order, at most `max_in_flight` at a time."""
        return self.run(self._generate_all(self._serving_fleet(requests), requests))

    def _serving_fleet(self, requests: Sequence[GenerationRequest]) -> Fleet:
        """The fleet, once it serves a policy and the requests can do it no harm."""
        if self._fleet is None or self._policy_version is None:
            raise EngineError("the vLLM engine serves no policy")
        # Such a token ends the server's engine process.
        highest = max((max(request.prompt_token_ids) for request in requests), default=0)
        if highest >= self._vocabulary_size:
            raise EngineError(
                f"a prompt holds token id {highest}, but policy {self._policy_version} has "
                f"{self._vocabulary_size} tokens"
            )
        return self._fleet

    async def _generate_all(self, fleet: Fleet, requests: Sequence[GenerationRequest]) -> list[Generation]:
        room = asyncio.Semaphore(self._config.max_in_flight)

        async def one(request: GenerationRequest) -> Generation:
            async with room:
                return await fleet.generate(request)

        tasks = [asyncio.create_task(one(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _serve(self, policy: ServedPolicy) -> list[Handover]:
        if self._fleet is None:
            self._fleet = await Fleet(
                self._members(policy), self._config.max_failures, self._config.startup_seconds
            ).__aenter__()
        return await self._fleet.serve(policy)

    async def _close(self) -> None:
        unfinished = asyncio.all_tasks() - {asyncio.current_task()}
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        if self._fleet is not None:
            await self._fleet.__aexit__(None, None, None)
        await asyncio.get_running_loop().shutdown_default_executor()

    def _members(self, policy: ServedPolicy) -> list[Member]:
        seconds = self._config.request_seconds
        if self._config.servers:
            return [
                Member(VllmClient(address.url.rstrip("/"), key, self._stop_token_ids, seconds))
                for address, key in zip(self._config.servers, self._keys, strict=True)
            ]
        self._server = ManagedServer(
            policy.folder,
            self._folder / "server.log",
            arguments=server_arguments(self._config, self._adapters),
            environment={**self._config.environment, **(ADAPTER_ENVIRONMENT if policy.adapter else {})},
            executable=self._config.executable or sys.executable,
            startup_seconds=self._config.startup_seconds,
            on_progress=self._on_progress,
        )
        client = VllmClient(self._server.url, self._server.api_key, self._stop_token_ids, seconds)
        return [Member(client, self._server)]


def server_arguments(config: VllmEngineConfig, adapters: AdapterShape | None = None) -> list[str]:
    """The part of a server's command line that follows from the settings."""
    arguments = [
        f"--dtype={config.dtype}",
        f"--max-num-seqs={config.max_in_flight}",
    ]
    if config.max_context is not None:
        arguments.append(f"--max-model-len={config.max_context}")
    if not config.chunked_prefill:
        arguments.append("--no-enable-chunked-prefill")
    if config.sleep:
        arguments.append("--enable-sleep-mode")
    if config.enforce_eager:
        arguments.append("--enforce-eager")
    if adapters is not None:
        arguments += adapter_arguments(adapters)
    return [*arguments, *config.arguments]


def _key(environment: Mapping[str, str], variable: str | None) -> str | None:
    if variable is None:
        return None
    if variable not in environment:
        raise ConfigError(
            f"engine.servers: the environment variable {variable} (api_key_variable) is not set"
        )
    return environment[variable]
