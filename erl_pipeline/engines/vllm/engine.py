"""The vLLM engine: requests from any thread, answered by servers over HTTP. A worker keeps it from stage to
stage."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from erl_pipeline.engines import interface
from erl_pipeline.engines.vllm.client import ServerFailure
from erl_pipeline.engines.vllm.model_servers import ModelServers
from erl_pipeline.engines.vllm.open_files import allow_open_files
from erl_pipeline.engines.vllm.own_folder import own_folder
from erl_pipeline.engines.vllm.server import ManagedServer, OnProgress
from erl_pipeline.engines.vllm.settings import ServerAddress, VllmEngineConfig
from erl_pipeline.engines.vllm.weight_sync import WeightSync
from erl_pipeline.policies.checkpoints import LoadedPolicies
from storage.artifacts.late_files import LateFiles
from storage.errors import ConfigError, EngineError, Interrupted

_STOP_POLL_SECONDS = 0.2
Result = TypeVar("Result")


class VllmEngine:
    """Samples from one checkpoint of each model at a time; a context manager that ends its servers.

    A server of our own starts with the first checkpoint of its model. Requests run in an event loop on a
    thread of this engine, so that its methods can be called from any thread.

    Args:
        config: what to start, or which servers to use.
        folder: for the servers' logs and copies of checkpoints, by model; readable by the servers. While
            another engine has it, such as that of a second server of the run, a folder beside it is used.
        environment: variables that hold the keys of servers that are not our own, such as `os.environ`.
        stop: when it is set, whatever is waited for ends with `Interrupted`, a server's start too.
        on_progress: called while a server of our own starts.
        warn: called when `config.server_list` cannot be used any more, when a server is left out, and when
            one could not take weights from memory.
    """

    def __init__(
        self,
        config: VllmEngineConfig,
        folder: Path,
        environment: Mapping[str, str],
        stop: threading.Event | None = None,
        on_progress: OnProgress | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._held = ExitStack()
        self._stop = stop or threading.Event()
        self._stage_stop = threading.Event()
        self._on_progress = on_progress
        self._warn = warn
        self._environment = environment
        for address in config.servers:
            self._key_of(address)
        self._models: dict[str, ModelServers] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-requests", daemon=True)

    def __enter__(self) -> VllmEngine:
        allow_open_files(self._config.max_in_flight)
        self._folder = self._held.enter_context(own_folder(self._folder))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        # First the servers: a restart that is under way on another thread ends with its server.
        for model in self._models.values():
            for server in model.servers:
                server.stop()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._held.close()

    def serve(self, model: str, checkpoint: interface.ServedCheckpoint) -> list[WeightSync]:
        """Give the checkpoint to the servers of `model`, and wait until one has proven that it serves it. The
        others get requests from their own proofs on; `all_serving` waits for them.

        Returns how each that has proven it came to serve the checkpoint.

        Raises:
            EngineError: a server cannot be shown to sample from this policy; none is served then.
            ConfigError: servers that are not our own serve another model already, the list of them cannot be
                used, or the key of one is not known.
        """
        servers = self._servers_for(model)
        policy = servers.prepare(checkpoint)
        try:
            syncs = self.run(servers.serve(checkpoint, policy))
        except ServerFailure as failure:
            log = servers.failure_log()
            raise EngineError(
                f"policy {checkpoint.checkpoint_id} did not reach the server: {failure}"
                + (f"\n{log}" if log else "")
            ) from failure
        servers.finish(checkpoint)
        return syncs

    def served(self, model: str = interface.POLICY) -> str:
        """The id of the checkpoint of which a server has proven that it serves it; empty if none has, or if
        all servers have failed too often since."""
        return self._models[model].served_id if model in self._models else ""

    def all_serving(self, model: str = interface.POLICY) -> list[WeightSync]:
        """Wait until every server of a model has proven that it serves what `serve` was given; returns how
        each came to it. Raises EngineError as `serve`."""
        return self.run(self._serving(model).pool().all_serving())

    def servers(self, model: str = interface.POLICY) -> Sequence[ManagedServer]:
        """Our own servers of a model; none before its first checkpoint, or where they are not our own."""
        return self._models[model].servers if model in self._models else ()

    def offload(self) -> None:
        """Free the memory of our own servers, as the configuration says; `serve` allocates it again."""
        if self._config.sleep or self._config.lifecycle == "per_stage":
            for model in self._models.values():
                self.run(model.offload())

    def reset_prefix_cache(self, model: str = interface.POLICY) -> None:
        """Make the servers of a model forget earlier prompts; nothing may be in flight."""
        self.run(self._serving(model).pool().reset_prefix_caches())

    @contextmanager
    def stopped_by(self, stop: threading.Event) -> Iterator[None]:
        """Inside this context `stop` too ends whatever is waited for. The engine is kept for longer than a
        stage, which may take too long."""
        self._stage_stop = stop
        try:
            yield
        finally:
            self._stage_stop = threading.Event()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` to its end in the event loop of this engine.

        Raises `Interrupted`, and cancels it, when the run, or the stage (`stopped_by`), is asked to stop.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not wait([future], _STOP_POLL_SECONDS).done:
            if self._stop.is_set() or self._stage_stop.is_set():
                future.cancel()
                raise Interrupted
        return future.result()

    async def sample(self, request: interface.GenerationRequest) -> interface.Generation:
        """Sample one turn; only within `run`. Raises `EngineError` when servers failed too often."""
        return await self._serving(request.model).pool([request]).generate(request)

    def generate(self, requests: Sequence[interface.GenerationRequest]) -> list[interface.Generation]:
        """Answer every request, in order, at most `max_in_flight` at a time."""
        for request in requests:
            self._serving(request.model).pool([request])
        return self.run(self._generate_all(requests))

    async def _generate_all(
        self, requests: Sequence[interface.GenerationRequest]
    ) -> list[interface.Generation]:
        room = asyncio.Semaphore(self._config.max_in_flight)

        async def one(request: interface.GenerationRequest) -> interface.Generation:
            async with room:
                return await self.sample(request)

        tasks = [asyncio.create_task(one(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _serving(self, model: str) -> ModelServers:
        if model not in self._models:
            raise EngineError(f"the vLLM engine serves no model {model}")
        return self._models[model]

    def _servers_for(self, model: str) -> ModelServers:
        """The servers of this model; those of a new model start with its first checkpoint."""
        if model not in self._models:
            if self._config.others_servers is not None and self._models:
                raise ConfigError(
                    f"engine.{self._config.others_servers}: its servers serve the model "
                    f"{next(iter(self._models))}, and this run samples from {model} too; leave it out, so "
                    "that each model gets a server of its own"
                )
            self._models[model] = ModelServers(
                model,
                self._config,
                self._key_of,
                self._environment.get("CUDA_VISIBLE_DEVICES"),
                len(self._models),
                self._folder / model,
                self._on_progress,
                self._warn,
            )
        return self._models[model]

    async def _close(self) -> None:
        unfinished = asyncio.all_tasks() - {asyncio.current_task()}
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        for model in self._models.values():
            await model.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    def _key_of(self, address: ServerAddress) -> str | None:
        variable = address.api_key_variable
        if variable is not None and variable not in self._environment:
            raise ConfigError(
                f"engine.{self._config.others_servers}: the environment variable {variable} "
                f"(api_key_variable of {address.url}) is not set"
            )
        return None if variable is None else self._environment[variable]


def open_served(
    settings: VllmEngineConfig, model: interface.SampledModel, call: interface.EngineCall
) -> interface.OpenedEngine:
    """The worker's engine, verified to sample from this checkpoint."""
    worker, news = call.worker, call.news
    started = batch_invariant(settings) if worker.deterministic and _has_gpu() else settings
    engine = interface.keep_engine(
        worker,
        lambda: VllmEngine(
            started,
            worker.scratch / "vllm",
            os.environ,
            worker.stop,
            lambda seconds, line: news.waiting("the vLLM server to start", seconds, line),
            news.warn,
        ),
    )
    handed_over = "kept"
    with engine.stopped_by(call.stop):
        if engine.served(model.name) != model.checkpoint_id:
            _make_room(worker.keep("policies", LoadedPolicies), worker.keep("late files", LateFiles))
            handed_over = engine.serve(model.name, model.served())[0].method
        if settings.max_in_flight == 1 and not settings.others_servers:
            # Whether a prefix comes from the cache or is computed may change the last bits.
            engine.reset_prefix_cache(model.name)
    return interface.OpenedEngine(
        engine,
        engine,
        settings.max_in_flight,
        handed_over=handed_over,
        goes_on=True,
        is_serving=lambda: engine.served(model.name) == model.checkpoint_id,
    )


def _make_room(policies: LoadedPolicies, late: LateFiles) -> None:
    """Release what a trainer has left on the GPU, so that a server on the same one finds room. A policy in
    host memory stays for the next training."""
    # torch, which a process that only names this engine need not import.
    from erl_pipeline.policies.hardware import release_cached_memory

    if _has_gpu():
        late.wait()  # The state of an optimizer stays there until it is written.
        policies.forget()
    else:
        policies.forget_trainer()
    release_cached_memory()


def batch_invariant(settings: VllmEngineConfig) -> VllmEngineConfig:
    """The settings, so that servers compute each sequence alike whatever else is in the batch. For GPUs only:
    vLLM's CPU build has no such mode."""
    return settings.model_copy(update={"environment": {**settings.environment, "VLLM_BATCH_INVARIANT": "1"}})


def _has_gpu() -> bool:
    # torch, which a process that only names this engine need not import.
    from erl_pipeline.policies.hardware import training_device

    return training_device().type == "cuda"
