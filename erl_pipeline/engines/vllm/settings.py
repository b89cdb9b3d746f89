"""Settings of vLLM's servers, and the list of servers that a file names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings, Settings, checked_address
from erl_pipeline.config.explain import explain
from storage.errors import ConfigError

_OF_DEVICES = (
    *("--tensor-parallel-size", "-tp"),
    *("--pipeline-parallel-size", "-pp"),
    *("--prefill-context-parallel-size", "-pcp"),
)
_OF_COPIES = ("--data-parallel-size", "-dp")
_OF_MEMORY = ("--gpu-memory-utilization", "--kv-cache-memory-bytes")

_OF_TRANSFERS = ("--worker-extension-cls", "--weight-transfer-config")

_OF_CONNECTORS = "--kv-transfer-config"
_OF_OFFLOADING = ("--kv-offloading-backend",)

_OVERRIDES = "--hf-overrides"

_SET_BY_THE_PIPELINE = {
    "model",
    "served-model-name",
    "host",
    "port",
    "uds",
    "api-key",
    "dtype",
    "max-num-seqs",
    "max-model-len",
    "tokens-only",
    "skip-tokenizer-init",
    "logprobs-mode",
    "generation-config",
    "override-generation-config",
    "enable-sleep-mode",
    "disable-log-stats",
}
"""Arguments of the server that the pipeline sets itself. With other values the log-probabilities would be
wrong, or the server, or that it hangs, would not be found."""


class ServerAddress(Settings):
    """A vLLM server that the pipeline does not start.

    It may serve the model under any name. It needs `--logprobs-mode processed_logprobs`,
    `--enable-scale-out` or `--tokens-only`, and `VLLM_SERVER_DEV_MODE=1`, and must be able to read the
    run's folders. On a GPU it needs `TRITON_F32_DEFAULT=ieee` for `dtype: float32`. With `policy.lora` it
    serves the base model, and also needs `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`, `--enable-lora`,
    `--max-lora-rank`, and `--lora-target-modules` with the modules that are adapted.
    """

    url: str
    """Address, such as `http://gpu-1:8000`."""
    api_key_variable: str | None = None
    """Environment variable that holds the server's key; null if it needs no key."""
    copies: int = Field(default=1, ge=1, le=1024)
    """Copies of the model that it keeps, if it was started with `--data-parallel-size`. Each copy must prove
    new weights, and a group's attempts go to one of them."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        return checked_address(url)


class VllmSampling(PluginSettings):
    """The settings of vLLM that samples depend on."""

    type: Literal["vllm"] = "vllm"
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number type in which the servers compute; it also sets how closely they must agree with the trainer."""
    head_dtype: Literal["float32"] | None = Field(default=None, exclude_if=lambda head: head is None)
    """As `policy.head_dtype`, with which it must agree: if only one side computes the head in float32, they
    differ more than before. vLLM gets it as `--hf-overrides '{"head_dtype": "float32"}'`; others' servers
    must have been started so."""
    max_context: int | None = Field(default=None, ge=1)
    """The most tokens of prompt and answer together; null: the model's own limit."""
    max_in_flight: int = Field(default=64, ge=1)
    """The most sequences that are generated at the same time, over all servers. With 1, on the run's own
    server, repeated rollouts have the same bytes. With more, the rounding of a sequence's logits depends on
    the other sequences in its batch."""
    enforce_eager: bool = False
    """Do not compile the model: the server starts sooner but samples more slowly."""
    chunked_prefill: bool = False
    """Compute long prompts in parts, between the steps of other sequences: useful on a GPU. vLLM's CPU build
    crashes when it splits the prompt of a request that has a seed, and all requests here have one."""
    arguments: tuple[str, ...] = ()
    """Further arguments of the server that is started, such as `--tensor-parallel-size=2`; an option and its
    value may also be two items of the list."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the server that is started, such as `VLLM_CPU_KVCACHE_SPACE: "4"`."""

    @field_validator("arguments")
    @classmethod
    def _leaves_ours_alone(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        require_readable(arguments)
        for argument in arguments:
            name = option_name(argument)
            if re.sub("^--(no-)?", "", name) in _SET_BY_THE_PIPELINE:
                raise ValueError(
                    f"{name} is set by the pipeline: log-probabilities must be those of the distribution "
                    "that was sampled from, and the server must be found and seen to work; leave it out, or "
                    "use the setting of `engine` where there is one"
                )
        _require_caches_that_forget(arguments)
        return arguments


class VllmEngineConfig(VllmSampling):
    """Sampling by vLLM, on servers that are started for this run, or on the `servers` given."""

    servers: tuple[ServerAddress, ...] = ()
    """Servers that run already; empty: the run starts its own, unless there is a `server_list`."""
    server_list: Path | None = Field(default=None, exclude_if=lambda value: value is None)
    """A YAML file that names such servers, with the keys that `servers` have. It is read again every five
    seconds while the run samples: a server that is added gets the weights, proves that it has them, and then
    gets requests; one that is removed gets no more. With no server in it, the run waits for one."""
    replicas: int = Field(default=1, ge=1, le=64)
    """How many servers the run starts. Each has the whole model and its own devices: as many as `arguments`
    ask for with `--tensor-parallel-size`, `--pipeline-parallel-size` and `--prefill-context-parallel-size`,
    times `--data-parallel-size`."""
    executable: str | None = None
    """Python interpreter that has vLLM; null: the one that runs this program."""
    transfer: Literal["files", "shared_memory"] = "files"
    """How new weights come to the run's own servers. `files`: each server reads the files of the checkpoint.
    `shared_memory`: the process that trains also writes them to `/dev/shm`, and servers on the same machine
    take them from there. At most two checkpoints of a run are kept there. Where that fails, or they are not
    there, the servers read the files, and the run warns of a failure. Both are proven alike. On a machine
    that still has a checkpoint's files in its page cache both take the same time; memory is for a store that
    is slow to read. Adapters are always read from files."""
    lifecycle: Literal["persistent", "per_stage"] = "persistent"
    """`persistent`: the run's own server runs from the first stage that samples to the end of the run, and
    loads new weights while it runs. `per_stage`: it ends before training and starts again with the new
    weights. This gives the trainer the whole machine, but costs a start for each stage that samples."""
    sleep: bool = False
    """The run's own persistent server frees its GPU memory while the trainer works, and wakes up with the new
    weights. It drops its weights, which are replaced anyway; the base model of LoRA adapters moves to host
    memory. Only on GPUs: with this setting vLLM's CPU build refuses to start."""
    startup_seconds: float = Field(default=600.0, gt=0.0)
    """Deadline for a server's start, and for a server to come back when none is left."""
    progress_seconds: float = Field(default=600.0, gt=0.0)
    """A server counts as dead when it has requests, but reads and samples no token for this long. How long a
    single request waits or generates does not matter. Other calls, such as the one to read new weights, must
    be answered in this time."""
    max_failures: int = Field(default=3, ge=0)
    """How many failures of each server are tolerated. After one more it is left out until the next policy is
    served; where all are, the run stops. The count begins anew with each policy, and when a server has worked
    for half an hour."""

    @model_validator(mode="after")
    def _possible_together(self) -> VllmEngineConfig:
        if self.servers and self.server_list is not None:
            raise ValueError("servers and server_list both name servers; use one of them")
        if self.others_servers and (self.lifecycle == "per_stage" or self.sleep):
            raise ValueError(
                "lifecycle: per_stage and sleep: true are for a server that the run starts itself; leave "
                f"them out with engine.{self.others_servers}"
            )
        if self.others_servers and self.replicas > 1:
            raise ValueError(
                f"replicas: {self.replicas} is for servers that the run starts itself; with "
                f"engine.{self.others_servers} leave it out, and name every server"
            )
        if self.transfer == "shared_memory" and self.others_servers:
            raise ValueError(
                "transfer: shared_memory is for servers that the run starts itself; with "
                f"engine.{self.others_servers} use transfer: files"
            )
        if self.transfer == "shared_memory" and (taken := _taken(self.arguments)):
            raise ValueError(
                f"transfer: shared_memory sets {taken} itself; leave it out of arguments, or use transfer: "
                "files"
            )
        if self.sleep and self.lifecycle == "per_stage":
            raise ValueError(
                "sleep: true has no meaning with lifecycle: per_stage, whose server ends before the trainer "
                "works; allowed: lifecycle: persistent"
            )
        if self.head_dtype is not None and any(option_name(each) == _OVERRIDES for each in self.arguments):
            raise ValueError(
                f"head_dtype: float32 sets {_OVERRIDES} itself; leave it out of arguments, or leave "
                "head_dtype out"
            )
        return self

    @property
    def others_servers(self) -> Literal["servers", "server_list"] | None:
        """The setting that names servers which the run does not start; None where it starts its own."""
        if self.servers:
            return "servers"
        return "server_list" if self.server_list is not None else None


def reads_memory(config: VllmEngineConfig) -> bool:
    """Whether servers take weights from this machine's memory, where they are there."""
    return config.transfer == "shared_memory"


def _taken(arguments: Sequence[str]) -> str:
    """The arguments that a transfer from memory needs for itself."""
    return ", ".join(option_name(each) for each in arguments if option_name(each) in _OF_TRANSFERS)


def _require_caches_that_forget(arguments: Sequence[str]) -> None:
    """Raise ValueError for a cache outside the GPU whose connector may not implement vLLM's `reset_cache`:
    the server then says that it has forgotten all keys and values, but keeps those of earlier weights."""
    connectors = [each for each in arguments if option_name(each).partition(".")[0] == _OF_CONNECTORS]
    backends = [f"{name}={value}" for name, value in _given(arguments, _OF_OFFLOADING) if value != "native"]
    for refused in (*connectors, *backends):
        raise ValueError(
            f"{refused}: it may keep keys and values of earlier weights when the weights change; for a cache "
            "outside the GPU use --kv-offloading-size, with vLLM's own backend (native)"
        )


def option_name(argument: str) -> str:
    """The name of the option in an item; vLLM treats underscores as hyphens."""
    return argument.partition("=")[0].replace("_", "-")


def devices_of_server(arguments: Sequence[str]) -> int:
    """Devices that one copy of the model is spread over: the product of its parallel sizes but for data.

    Raises ValueError for a size that is not a whole number above 0.
    """
    size = 1
    for name, value in _given(arguments, _OF_DEVICES):
        size *= _whole_number(name, value)
    return size


def copies_of_server(arguments: Sequence[str]) -> int:
    """Copies of the model that one server keeps: data parallel. Raises ValueError as above."""
    sizes = [_whole_number(name, value) for name, value in _given(arguments, _OF_COPIES)]
    return sizes[-1] if sizes else 1


def limits_memory(arguments: Sequence[str]) -> bool:
    """Whether they say how much of a GPU's memory a server takes."""
    return any(_given(arguments, _OF_MEMORY))


def require_readable(arguments: Sequence[str]) -> None:
    """Raise ValueError for an option and its value in one item with a space, which vLLM does not know, and
    for a number of devices or copies that is no number."""
    for argument in arguments:
        option = argument.partition("=")[0]
        if argument.startswith("-") and (space := re.search(r"\s", option)):
            name, value = option[: space.start()], option[space.end() :].strip()
            raise ValueError(f"{argument!r} is one item with a space; write {name}={value}, or two items")
    devices_of_server(arguments)
    copies_of_server(arguments)


def _given(arguments: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if option_name(name) in names:
            following = arguments[place + 1] if place + 1 < len(arguments) else ""
            yield name, value if equals else following


def _whole_number(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise ValueError(f"{name}: {value!r}; allowed is a whole number above 0, as in {name}=2")
    return int(value)


class _Listed(Settings):
    servers: tuple[ServerAddress, ...]


def read_server_list(path: Path) -> tuple[ServerAddress, ...]:
    """The servers of an `engine.server_list`; an empty file names none.

    Raises ConfigError for a file that cannot be read, is not such a list, or names a server twice.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        servers = _Listed.model_validate({"servers": [] if content is None else content}).servers
    except OSError as error:
        raise ConfigError(f"engine.server_list: {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"engine.server_list: {path} is not YAML: {error}") from error
    except ValidationError as error:
        problems = "\n  ".join(explain(error, _Listed, {}))
        raise ConfigError(
            f"engine.server_list: {path} is not a list of servers, such as `- url: http://gpu-1:8000`:\n"
            f"  {problems}"
        ) from error
    urls = [server.url for server in servers]
    for url in urls:
        if urls.count(url) > 1:
            raise ConfigError(f"engine.server_list: {path} names {url} twice")
    return servers
