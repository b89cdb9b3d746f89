"""Sampling by vLLM servers over HTTP, which prove that they have the policy's weights."""

from erl_pipeline.engines import interface
from erl_pipeline.engines.vllm import settings as vllm
from erl_pipeline.engines.vllm.open_files import require_open_files
from erl_pipeline.engines.weights_in_memory import MEMORY, memory_is_usable
from storage.errors import ConfigError


def _open(
    settings: vllm.VllmEngineConfig, model: interface.SampledModel, call: interface.EngineCall
) -> interface.OpenedEngine:
    # torch and aiohttp take seconds to import, which a process that only plans should not pay.
    from erl_pipeline.engines.vllm.engine import open_served

    return open_served(settings, model, call)


def _bytes_vary_because(settings: vllm.VllmEngineConfig, batch_invariant: bool) -> str:
    """Timing decides which sequences a server computes together, and this decides how logits are rounded.

    One sequence at a time is always computed alike, on a single server of our own whose prefix cache is empty
    at the start; with batch invariance every sequence is.
    """
    if settings.others_servers:
        return (
            f"the servers in engine.{settings.others_servers} are not the run's own, so that it is not known "
            "how they compute; let the run start its servers"
        )
    if batch_invariant or (settings.replicas == 1 and settings.max_in_flight == 1):
        return ""
    return (
        "a vLLM server rounds a sequence's logits as the other sequences of its batch decide; set "
        "engine.max_in_flight: 1 and engine.replicas: 1"
    )


def _devices(settings: vllm.VllmEngineConfig) -> int:
    if settings.others_servers:
        return 0
    each = vllm.devices_of_server(settings.arguments) * vllm.copies_of_server(settings.arguments)
    return settings.replicas * each


def _keeps_gpus_because(settings: vllm.VllmEngineConfig) -> str:
    if settings.others_servers or settings.sleep or settings.lifecycle == "per_stage":
        return ""
    if vllm.limits_memory(settings.arguments):
        return ""
    return (
        "vLLM takes nearly all memory of its GPUs at its start, and keeps it while a trainer computes there; "
        "set engine.sleep: true or engine.lifecycle: per_stage, give training other GPUs with "
        "resources.groups, or leave it room with --gpu-memory-utilization=0.5 in engine.arguments"
    )


def _require_here(settings: vllm.VllmEngineConfig) -> None:
    require_open_files(settings.max_in_flight)
    if settings.server_list is not None:
        vllm.read_server_list(settings.server_list)
    if settings.transfer == "shared_memory" and not memory_is_usable():
        raise ConfigError(
            f"engine.transfer: shared_memory needs a folder {MEMORY} in which this user can write; use "
            "transfer: files"
        )


def _capacity(settings: vllm.VllmEngineConfig, asked: int) -> interface.SamplingCapacity:
    copies = sum(each.copies for each in settings.servers)
    return interface.SamplingCapacity(
        sequences=settings.max_in_flight,
        weight_copies=copies or settings.replicas * vllm.copies_of_server(settings.arguments),
        dtype=settings.dtype,
        max_tokens=settings.max_context,
    )


ENGINE = interface.EnginePlugin(
    settings=vllm.VllmEngineConfig,
    open=_open,
    in_recipes=vllm.VllmSampling,
    bytes_vary_because=_bytes_vary_because,
    devices=_devices,
    # Servers that are not the run's own serve a single model.
    keeps_gpus_because=_keeps_gpus_because,
    one_model_because=lambda settings: settings.others_servers,
    require_here=_require_here,
    capacity=_capacity,
    reads_memory=vllm.reads_memory,
    head_dtype=lambda settings, _policy: settings.head_dtype,
)
