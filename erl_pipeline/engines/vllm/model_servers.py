"""The servers of one model: what they serve now, and how they come to serve the next checkpoint."""

import asyncio
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from erl_pipeline.engines.interface import GenerationRequest, ServedAdapter, ServedCheckpoint
from erl_pipeline.engines.vllm import in_server, settings, weight_sync
from erl_pipeline.engines.vllm.client import VllmClient, WeightsInMemory
from erl_pipeline.engines.vllm.replica import Replica
from erl_pipeline.engines.vllm.server import ManagedServer, OnProgress
from erl_pipeline.engines.vllm.server_pool import ServerPool
from erl_pipeline.engines.vllm.serving_copy import ServingCopy
from storage.errors import ConfigError, EngineError

_BASE = "base"
_LOOK_SECONDS = 5.0

_FULL_PRECISION = {"TRITON_F32_DEFAULT": "ieee"}
"""On a GPU vLLM computes attention in float32 by Triton's kernels, whose products else have 10 bits of each
number's fraction (TF32): with them no server passes the proof of a float32 policy."""


class ListedServers:
    """Keeps the servers of a pool those of a file, in which others may add and remove them while a run
    samples. Lives in the event loop of the pool.

    Args:
        make_replica: makes a replica of a server. Raises ConfigError when its key is not known.
        warn: called when the file cannot be used while the run samples; the servers then stay as they are.
    """

    def __init__(
        self,
        path: Path,
        pool: ServerPool,
        make_replica: Callable[[settings.ServerAddress], Replica],
        warn: Callable[[str], None],
    ) -> None:
        self._path = path
        self._pool = pool
        self._make_replica = make_replica
        self._warn = warn
        self._replicas: dict[settings.ServerAddress, Replica] = {}

    async def update(self) -> None:
        """Add and remove servers of the pool, as the file says now.

        Raises ConfigError when the file cannot be used; the pool is then as before.
        """
        listed = await asyncio.to_thread(settings.read_server_list, self._path)
        new = {each: self._make_replica(each) for each in listed if each not in self._replicas}
        for address in set(self._replicas).difference(listed):
            self._pool.dismiss(self._replicas.pop(address))
        for address, replica in new.items():
            self._replicas[address] = replica
            await self._pool.admit(replica)

    async def follow(self) -> None:
        """Update the pool again and again, until this is cancelled."""
        told = ""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.update()
                told = ""
            except ConfigError as error:
                if str(error) != told:
                    told = str(error)
                    self._warn(f"{told}\n  The run goes on with the servers that it has.")


class ModelServers:
    """A pool of servers for one model; all but `prepare` and `finish` run in the engine's event loop.

    Servers of our own, `config.replicas` of them, start with the first checkpoint. Checkpoints are all whole
    models, or all adapters of one base.

    Args:
        key_of: gives the API key of a server that is not our own, None for one that asks for none.
        visible_devices: the variable `CUDA_VISIBLE_DEVICES`; None where it is not set.
        models_before: how many other models have servers of their own already.
        folder: for the servers' logs (`server.log`, `server_2.log`) and copies of checkpoints; readable by
            the servers.
        warn: called when `config.server_list` cannot be used any more, and when a server is left out.
    """

    def __init__(
        self,
        name: str,
        config: settings.VllmEngineConfig,
        key_of: Callable[[settings.ServerAddress], str | None],
        visible_devices: str | None,
        models_before: int,
        folder: Path,
        on_progress: OnProgress | None,
        warn: Callable[[str], None],
    ) -> None:
        self._name = name
        self._config = config
        self._key_of = key_of
        self._visible_devices = visible_devices
        self._models_before = models_before
        self._folder = folder
        self._on_progress = on_progress
        self._warn = warn
        self._listed: ListedServers | None = None
        self._following: asyncio.Task[None] | None = None
        self._pool: ServerPool | None = None
        self._weights: ServingCopy | None = None
        self._adapted = False
        self._served: ServedCheckpoint | None = None
        self.servers: list[ManagedServer] = []
        """Our own; none before the first checkpoint, and where the servers are somebody else's."""

    def prepare(self, checkpoint: ServedCheckpoint) -> weight_sync.ServedPolicy:
        """Forget what is served, and put the checkpoint into a form that servers read.

        Raises EngineError for an adapter after whole models, or the other way round; what is served stays.
        """
        adapted = checkpoint.adapter is not None
        if self._weights is not None and adapted != self._adapted:
            raise EngineError(
                f"model {self._name}: checkpoints are all adapters, or none is; start the program again "
                f"to serve {checkpoint.checkpoint_id}"
            )
        self._served = None
        # The base of adapters stays the same.
        if self._weights is None or not adapted:
            self._weights = self._new_copy(checkpoint)
        self._adapted = adapted
        memory = checkpoint.in_memory if settings.reads_memory(self._config) else None
        return weight_sync.ServedPolicy(
            checkpoint.checkpoint_id,
            self._weights.folder,
            checkpoint.probe,
            self._config.dtype,
            checkpoint.adapter,
            self._weights,
            None if memory is None or adapted else WeightsInMemory(memory, checkpoint.head),
        )

    @property
    def served_id(self) -> str:
        """The id of the checkpoint that is served; empty where none is, or the pool has given up."""
        gave_up = self._pool is not None and self._pool.gave_up
        return "" if self._served is None or gave_up else self._served.checkpoint_id

    async def serve(
        self, checkpoint: ServedCheckpoint, policy: weight_sync.ServedPolicy
    ) -> list[weight_sync.WeightSync]:
        """Give the policy to every server, and return how each that has proven by then that it serves it came
        to it; there is at least one."""
        if self._pool is None:
            self._pool = await self._start_pool(checkpoint, policy)
        if self._listed is not None:
            await self._listed.update()
        return await self._pool.serve(policy)

    def finish(self, checkpoint: ServedCheckpoint) -> None:
        """To be called once the checkpoint is served: allow requests, and delete copies of earlier ones that
        no server reads any more."""
        read = {replica.reads for replica in self._pool.replicas} if self._pool is not None else set()
        for older in (self._folder / "serving").glob("*"):
            # A server that is not served yet may be writing the copy of this one, beside its place.
            if older.name.removeprefix(".") != _copy_name(checkpoint) and older not in read:
                shutil.rmtree(older)
        self._served = checkpoint

    def pool(self, requests: Sequence[GenerationRequest] = ()) -> ServerPool:
        """The pool. Raises EngineError where it serves no checkpoint that has all tokens of the requests."""
        if self._pool is None or self._served is None:
            raise EngineError(f"the vLLM engine serves no checkpoint of model {self._name}")
        vocabulary = self._served.probe.hot_logprobs.shape[1]
        # A token outside the vocabulary would end the server's engine process.
        highest = max((max(request.prompt_token_ids) for request in requests), default=0)
        if highest >= vocabulary:
            raise EngineError(
                f"a prompt holds token id {highest}, but policy {self._served.checkpoint_id} has a "
                f"vocabulary of {vocabulary} tokens"
            )
        return self._pool

    async def offload(self) -> None:
        """Free the memory of our own servers, as the configuration says; `serve` allocates it again."""
        self._served = None
        if self._pool is not None:
            # The base of adapters is not read again, so it must be kept, in host memory.
            level: Literal[1, 2] = 1 if self._adapted else 2
            await self._pool.offload(level if self._config.sleep else None)

    async def close(self) -> None:
        """Close the connections; the servers are ended by their owner."""
        if self._following is not None:
            self._following.cancel()
        if self._pool is not None:
            await self._pool.__aexit__(None, None, None)

    def failure_log(self) -> str:
        """The failure logs of our own servers; empty where there are none."""
        return "\n".join(server.failure_log() for server in self.servers)

    def _new_copy(self, checkpoint: ServedCheckpoint) -> ServingCopy:
        place = self._folder / "serving" / _copy_name(checkpoint)
        if place.exists():
            shutil.rmtree(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        return ServingCopy(checkpoint.base_folder, place, checkpoint.head)

    async def _start_pool(self, checkpoint: ServedCheckpoint, policy: weight_sync.ServedPolicy) -> ServerPool:
        config, ends = self._config, checkpoint.end_token_ids
        seconds = config.progress_seconds

        def replica(address: settings.ServerAddress) -> Replica:
            key = self._key_of(address)
            return Replica(VllmClient(address.url, key, ends, seconds, address.copies))

        pool = await ServerPool(config.max_failures, config.startup_seconds, self._warn).__aenter__()
        for address in config.servers:
            await pool.admit(replica(address))
        if config.server_list is not None:
            self._listed = ListedServers(config.server_list, pool, replica, self._warn)
            self._following = asyncio.create_task(self._listed.follow())
        if config.others_servers is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            gpus = _number_of_gpus() if self._models_before else 0
            devices = devices_of_replicas(config, self._visible_devices, self._models_before, gpus)
            await policy.written()
            self.servers = [self._server(policy, number, visible) for number, visible in enumerate(devices)]
            copies = settings.copies_of_server(config.arguments)
            for server in self.servers:
                await pool.admit(
                    Replica(VllmClient(server.url, server.api_key, ends, seconds, copies), server)
                )
        return pool

    def _server(self, policy: weight_sync.ServedPolicy, number: int, devices: str | None) -> ManagedServer:
        adapted = weight_sync.ADAPTER_ENVIRONMENT if policy.adapter else {}
        arguments = server_arguments(self._config, policy.adapter)
        environment = server_environment(self._config)
        # Adapters are read from files.
        if policy.adapter is None and settings.reads_memory(self._config):
            arguments += in_server.ARGUMENTS
            environment = environment | in_server.environment(os.environ | environment)
        visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
        return ManagedServer(
            policy.folder,
            self._folder / ("server.log" if number == 0 else f"server_{number + 1}.log"),
            arguments=arguments,
            environment={**environment, **adapted, **visible},
            executable=self._config.executable or sys.executable,
            startup_seconds=self._config.startup_seconds,
            on_progress=self._on_progress if number == 0 else None,
        )


def devices_of_replicas(
    config: settings.VllmEngineConfig, visible: str | None, models_before: int = 0, gpus: int = 0
) -> list[str | None]:
    """`CUDA_VISIBLE_DEVICES` of each replica: as many devices as one server computes on with all its copies
    of the model, none of them twice.

    A single replica may see all devices (None). `visible` names the devices that this process may use, as
    `CUDA_VISIBLE_DEVICES` does; None is all, of which there are `gpus`. The servers of a further model, after
    `models_before` others, get the devices behind theirs, or where there are too few the first ones too.
    Raises ConfigError where there are too few for one model.
    """
    each = settings.devices_of_server(config.arguments) * settings.copies_of_server(config.arguments)
    needed = each * config.replicas
    given = config.environment.get("CUDA_VISIBLE_DEVICES", visible)
    names = given.split(",") if given else [str(number) for number in range(max(needed, gpus))]
    begin = needed * models_before if len(names) >= needed * (models_before + 1) else 0
    if config.replicas == 1 and begin == 0:
        return [None]
    if len(names) < needed:
        raise ConfigError(
            f"engine.replicas: {config.replicas} with {each} devices each need {needed}, and "
            f"CUDA_VISIBLE_DEVICES names {len(names)}: {given}"
        )
    return [",".join(names[first : first + each]) for first in range(begin, begin + needed, each)]


def _number_of_gpus() -> int:
    import torch  # Only here: a process that samples from one model needs none of it.

    return torch.cuda.device_count()


def _sequences_of_a_copy(config: settings.VllmEngineConfig) -> int:
    """The most sequences of each copy of the model at the same time: its share of all, and a quarter more,
    since attempts of a group go to one copy. A server sets memory aside for as many."""
    copies = config.replicas * settings.copies_of_server(config.arguments)
    return min(config.max_in_flight, math.ceil(1.25 * config.max_in_flight / copies))


def server_arguments(config: settings.VllmEngineConfig, adapter: ServedAdapter | None = None) -> list[str]:
    """The part of a server's command line that follows from the settings and the first adapter."""
    arguments = [f"--dtype={config.dtype}", f"--max-num-seqs={_sequences_of_a_copy(config)}"]
    if config.head_dtype is not None:
        arguments.append('--hf-overrides={"head_dtype": "float32"}')
    if config.max_context is not None:
        arguments.append(f"--max-model-len={config.max_context}")
    if not config.chunked_prefill:
        arguments.append("--no-enable-chunked-prefill")
    if config.sleep:
        arguments.append("--enable-sleep-mode")
    if config.enforce_eager:
        arguments.append("--enforce-eager")
    if adapter is not None:
        arguments += weight_sync.adapter_arguments(adapter)
    return [*arguments, *config.arguments]


def server_environment(config: settings.VllmEngineConfig) -> dict[str, str]:
    """The part of a server's environment variables that follows from the settings."""
    return {**(_FULL_PRECISION if config.dtype == "float32" else {}), **config.environment}


def _copy_name(checkpoint: ServedCheckpoint) -> str:
    return _BASE if checkpoint.adapter else checkpoint.checkpoint_id
